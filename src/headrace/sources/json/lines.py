"""Lines of JSON: parsing them with pyarrow, counting them, and saying what is wrong with one."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.json as pajson

from headrace.core.arrow.lent import lent, lent_stream
from headrace.core.human import short_repr
from headrace.errors import UnreadableFile
from headrace.sources.signatures import another_reader

DEEPEST = 60
"""Levels of nesting of a line from which a schema is inferred: Arrow can neither store nor send much deeper types,
and far deeper ones end the process."""

_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)
_INNERMOST = re.compile(rb"\[\]|\{\}")
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


class TooDeep(pa.ArrowInvalid):  # type: ignore[misc]  # pyarrow has no types
    """A line of JSON is nested too deeply."""


def loaded(line: bytes, **options: Any) -> Any:
    """Parse a line as ``json.loads`` does; raise ``TooDeep`` where Python gives up."""
    try:
        return json.loads(line, **options)
    except RecursionError:
        raise TooDeep("it is nested too deeply") from None


def refuse_deep(lines: bytes) -> None:
    """Raise ``TooDeep`` if a line is nested more than ``DEEPEST`` levels deep."""
    for line in lines.splitlines():
        if line.count(b"[") + line.count(b"{") <= DEEPEST:
            continue
        rest = _STRING.sub(b"", line).translate(None, _NOT_BRACKETS)
        for _ in range(DEEPEST):
            rest = _INNERMOST.sub(b"", rest)
        if b"[" in rest or b"{" in rest:
            raise TooDeep(f"it is nested more than {DEEPEST} levels deep")


def open_lines(lines: bytes, schema: pa.Schema | None, unexpected: str) -> pajson.JSONStreamingReader:
    """Parse lines in one block. Raises what Arrow raises."""
    refuse_null(lines)
    if unexpected == "infer":
        refuse_deep(lines)
    return open_stream(lent_stream(lines), schema, unexpected, len(lines) + 1)


def open_stream(
    stream: pa.NativeFile, schema: pa.Schema | None, unexpected: str, block: int
) -> pajson.JSONStreamingReader:
    """Parse a stream, block by block; a ``NullGuard`` hides from it what would end the process."""
    return pajson.open_json(
        stream,
        read_options=pajson.ReadOptions(use_threads=False, block_size=min(block, (1 << 31) - 1)),
        parse_options=pajson.ParseOptions(explicit_schema=schema, unexpected_field_behavior=unexpected),
    )


def fails(lines: bytes, schema: pa.Schema | None, unexpected: str) -> Exception | None:
    """Return what is wrong with some of these lines, or None."""
    try:
        for batch in open_lines(lines, schema, unexpected):
            batch.validate(full=True)
    except pa.ArrowInvalid as error:
        return None if "Empty JSON" in str(error) else error
    return None


def count_of(lines: bytes) -> int:
    """Count lines, blank ones left out."""
    return sum(1 for line in lines.splitlines() if line.strip())


def records_of(lines: bytes) -> list[bytes]:
    """Cut text into lines, blank ones left out."""
    return [line for line in lines.splitlines(keepends=True) if line.strip()]


def rows_of(path: str, first: int = 0) -> Callable[[int], str]:
    """Name rows of a file by their numbers behind row ``first``."""
    return lambda row: f"{path!r}, row {first + row} (counted from 0, without blank lines)"


def explained(
    lines: bytes,
    name: Callable[[int], str],
    known: pa.Schema | None,
    error: Exception,
    schema: pa.Schema | None = None,
) -> UnreadableFile:
    """Explain the first line at fault among ``lines``; ``name`` gives the place of the n-th of them."""
    records = records_of(lines)
    unexpected = "infer" if schema is None else ("error" if known is not None else "ignore")
    low, high = 0, len(records)
    while high - low > 1:
        middle = (low + high) // 2
        # Without a schema a line may fail only beside another, so whole prefixes are tried.
        start = 0 if schema is None else low
        failed = fails(b"".join(records[start:middle]), schema, unexpected) is not None
        low, high = (low, middle) if failed else (middle, high)
    line = records[low]
    shown = short_repr(line.decode(errors="replace").strip())
    where = name(low)
    alone = fails(line, schema, unexpected) or error
    reason = str(alone).rstrip(".")
    reason = re.sub(r" in row \d+$", "", reason)
    try:
        value = loaded(line)
    except TooDeep:
        value = None  # Arrow's message has what is wrong with it
    except UnicodeDecodeError:
        return UnreadableFile(f"Cannot read {where}: it is not valid UTF-8. Convert the file to UTF-8.")
    except ValueError as invalid:
        path = where.split("'")[1] if where.startswith("'") else ""
        return UnreadableFile(
            f"Cannot read {where}: {shown} is not JSON ({invalid}). One whole object per line is wanted; repair the "
            f"line or leave the file out.{another_reader(path, 'read_json')}"
        ).showing(shown)
    if isinstance(alone, TooDeep):
        return UnreadableFile(
            f"Cannot read {where}: {reason}, and no schema can be inferred from that. Name the fields that you need "
            "with schema=pyarrow.schema([...]), which ignores all others, or leave the line out."
        )
    field = _unknown_field(value, known) if known is not None else None
    if field is not None:
        return UnreadableFile(
            f"Cannot read {where}: the field {field!r} was not there in the first part of the files, from which the "
            "schema was inferred. Give the whole schema with schema=pyarrow.schema([...]); fields that it does not "
            "name are ignored."
        )
    return UnreadableFile(
        f"Cannot read {where}: {reason}, which does not fit the schema that was given or inferred from the start of "
        f"the files. The row is {shown}. Set the types with schema=pyarrow.schema([...]), or repair the row."
    ).showing(shown, *re.findall(r"couldn't parse: ?(.+)", reason))


def _unknown_field(value: Any, known: Any, prefix: str = "") -> str | None:
    """Return the dotted name of the first field that a schema or struct type does not have."""
    if isinstance(value, list) and isinstance(known, pa.DataType) and pa.types.is_list(known):
        for item in value:
            found = _unknown_field(item, known.value_type, prefix)
            if found is not None:
                return found
    if not isinstance(value, dict) or not (isinstance(known, pa.Schema) or pa.types.is_struct(known)):
        return None
    types = {field.name: field.type for field in known}
    for name, item in value.items():
        if name not in types:
            return f"{prefix}{name}"
        deeper = _unknown_field(item, types[name], f"{prefix}{name}.")
        if deeper is not None:
            return deeper
    return None


_NULL = b"null"
_FIRST = re.compile(rb"[ \t\r\n]*(.{0,4})", re.DOTALL)


def refuse_null(data: bytes, start: int = 0) -> bytes:
    """Return the first four bytes of the first value, fewer at the end; raise ``ArrowInvalid`` if it is ``null``."""
    found = _FIRST.match(data, start)
    assert found is not None
    if found[1] == _NULL:
        raise pa.ArrowInvalid("it is null, not an object")
    return found[1]


class NullGuard:
    """A stream for Arrow that raises ``ArrowInvalid`` before a block which begins with ``null``."""

    closed = False

    def __init__(self, stream: pa.NativeFile) -> None:
        self._stream = stream
        self._begins: bytes | None = b""  # the start of the next block's first value; None: it is no null

    def read(self, size: int) -> Any:
        """Read on."""
        data: bytes = self._stream.read(size)
        if self._begins is not None:
            self._look(refuse_null(self._begins + data[:4] if self._begins else data))
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if end:
            self._look(refuse_null(data, end))
        return lent(data)

    def close(self) -> None:
        """The stream is another's to close."""

    def _look(self, start: bytes) -> None:
        self._begins = start if len(start) < len(_NULL) and _NULL.startswith(start) else None
