"""Planning a read of JSON lines and arrays: the schema is settled, big files are cut between lines."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, BinaryIO

import msgspec
import pyarrow as pa
import pyarrow.json as pajson

from headrace.core.arrow.batch import lent, lent_stream
from headrace.core.arrow.forms import first_marked, forms_over, unmarked
from headrace.core.arrow.plain import holds
from headrace.core.files.input_files import InputFile
from headrace.core.human import short_repr
from headrace.errors import UnreadableFile
from headrace.sources import text
from headrace.sources.file_source import another_reader, damaged
from headrace.sources.records import RecordFormat, Start, row_of
from headrace.sources.text import Head, TextFile, check_types, newline_cuts, refuse_other_formats

# ------------------------------------------------------------ files that are one array or object


_ON_ONE_LINE = bytes.maketrans(b"\r\n", b"  ")  # JSON has no ends of lines within a string


def begins_array(head: Head) -> bool:
    """Say whether a file's first bytes are those of an array."""
    return head.data[text.skip_mark(head.data) :].lstrip().startswith(b"[")


_GOES_ON = (b"{", b"[", b",", b":")
_OBJECT_BYTES = 1 << 30  # a bigger file is no single object


def begins_object(path: str, head: Head) -> bool:
    """Say whether a file is one object over several lines; it is read for this if its first line ends within one."""
    first, end, _ = head.data[text.skip_mark(head.data) :].lstrip().partition(b"\n")
    if not (first.startswith(b"{") and end and first.rstrip().endswith(_GOES_ON)):
        return False
    if os.path.getsize(path) > _OBJECT_BYTES:
        return False
    try:
        msgspec.json.decode(_content(path), type=dict[str, msgspec.Raw], strict=True)
    except (UnreadableFile, msgspec.MsgspecError, RecursionError):
        return False
    return True


def lines_of(path: str) -> bytes:
    """Return the elements of a file, plain or compressed, a line each. All of it is in memory."""
    data = _content(path)
    if data[:1_000_000].lstrip().startswith(b"{"):
        return bytes(data).translate(_ON_ONE_LINE) + b"\n"
    try:
        elements = msgspec.json.decode(data, type=list[msgspec.Raw], strict=True)
    except (msgspec.MsgspecError, RecursionError) as error:
        rows = _rows_of_arrays(data)
        if rows is not None:
            return rows
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise UnreadableFile(
            f"Cannot read {path!r}: it begins with '[', so all of it should be one JSON array, and {reason}. Repair "
            "the file, or write one object or one array per line."
        ) from error
    return b"".join(bytes(each).translate(_ON_ONE_LINE) + b"\n" for each in elements)


def _rows_of_arrays(data: bytes) -> bytes | None:
    """Return lines that are an array each as objects, whose fields are ``0``, ``1``, …; None if they are not."""
    rows = []
    for line in data.splitlines():
        if not line.strip():
            continue
        try:
            elements = msgspec.json.decode(line, type=list[msgspec.Raw], strict=True)
        except (msgspec.MsgspecError, RecursionError):
            return None
        fields = (b'"%d":%s' % (place, bytes(each)) for place, each in enumerate(elements))
        rows.append(b"{" + b",".join(fields) + b"}\n")
    return b"".join(rows)


def _content(path: str) -> bytes:
    try:
        with text.open_stream(path) as stream:
            data = stream.read()
    except MemoryError:
        raise
    except (OSError, pa.ArrowException) as error:
        raise damaged(repr(path), error) from error
    return bytes(data)[text.skip_mark(data) :]


def heads_in(lines: bytes, size: int) -> Iterator[Head]:
    """Yield the first bytes, then eight times as many, and so on up to all."""
    while True:
        yield Head(lines[:size], len(lines) <= size)
        if len(lines) <= size:
            return
        size *= 8


# ------------------------------------------------------------ lines


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
    way = "Set the types with schema=pyarrow.schema([...]), or repair the row."
    if "changed from" in reason:  # a number is no text in any schema
        way = (
            "Repair the row, or read lines with read_text(…) and give the field one type in a function: "
            "map(lambda row: json.loads(row['text']))."
        )
        if schema is not None and any(holds(each.type, _is_counted) for each in schema):
            way = (
                "Dates and times of day are read of numbers only: take such texts as pyarrow.string(). " + way
            )
    return UnreadableFile(
        f"Cannot read {where}: {reason}, which does not fit the schema that was given or inferred from the start of "
        f"the files. The row is {shown}. {way}"
    ).showing(
        shown, *re.findall(r"(?<=couldn't parse:).+|(?<=Failed to parse string: )'.*'(?= as a )", reason)
    )


def _is_counted(type_: pa.DataType) -> bool:
    return bool(pa.types.is_date(type_) or pa.types.is_time(type_))


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


_CONTRADICTIONS = 100  # among the lines that the schema is inferred from

NUMBERED = "without blank lines"


@dataclass(frozen=True)
class JsonRecords(RecordFormat):
    """How lines of JSON are found and read. Without a schema, a field that is not in the first lines is an error."""

    given: pa.Schema | None
    settles = "For JSON, `schema=` settles the types."

    def start(self, file: InputFile, size: int, settle: int) -> Start:
        """Read the first lines, or the first elements of an array."""
        heads = text.heads(file.path, size=size)
        first = next(heads)
        one_value = begins_array(first) or begins_object(file.path, first)
        if one_value:
            heads = heads_in(lines_of(file.path), size)
            first = next(heads)
        cuttable = text.compression_of(file.path) is None and not one_value
        for head in chain([first], heads):
            refuse_other_formats(file.path, head.data, "JSON lines", encoding=None)
            body = text.skip_mark(head.data)
            end = len(head.data) if head.whole else head.data.rfind(b"\n") + 1
            lines = head.data[body:end]
            if not lines.strip():
                if head.whole:
                    return Start(TextFile(body, cuttable, None))
                continue
            schema, fault = _settled(file.path, lines, self.given)
            goes_on = not head.whole and len(head.data) < settle
            if self.given is None and goes_on and any(_has_null(field.type) for field in schema):
                continue
            return Start(TextFile(body, cuttable, (), one_value), schema, head.whole, fault)
        raise UnreadableFile(
            f"Cannot find the end of a line in the first {len(head.data):,} bytes of {file.path!r}; JSON lines "
            "are wanted: one object per line."
        )

    def over(
        self, known: Sequence[tuple[str, pa.Schema]], *, whole: bool
    ) -> tuple[pa.Schema, Mapping[str, str]]:
        """Unify the fields, unless a schema is given."""
        schemas = [each for _, each in known]
        if self.given is not None:
            return self.given.remove_metadata(), forms_over(schemas, self.given)
        if not known:
            return pa.schema([]), {}
        schema = self.unified(known)
        return unmarked(schema), forms_over(schemas, schema)

    def cuts(self, file: BinaryIO, start: int, step: int) -> list[int]:
        """Cut behind newlines."""
        return newline_cuts(file, start, step)


def _settled(path: str, lines: bytes, given: pa.Schema | None) -> tuple[pa.Schema, UnreadableFile | None]:
    """Infer the schema, unless it is given; where some lines cannot be parsed, from the others."""
    try:
        _check_first_line(path, lines)
        _check_text(path, lines)
        if given is not None:
            return _marked(lines, given), None
        try:
            return _with_zones(lines, first_marked(open_lines(lines, None, "infer"))), None
        except pa.ArrowException as error:
            raise explained(lines, lambda row: row_of(path, row, NUMBERED), None, error) from error
    except UnreadableFile as fault:
        objects = _fitting([line for line in records_of(lines) if _is_object(line)], given is not None)
        if not objects:
            raise
        if given is not None:
            return given, fault.with_traceback(None)
        fitting = b"".join(objects)
        schema = open_lines(fitting, None, "infer").schema
        return _with_zones(fitting, schema), fault.with_traceback(None)


def with_times(type_: pa.DataType, to: pa.DataType) -> pa.DataType:
    """Return a type with ``to`` for each time within it.

    >>> print(with_times(pa.struct([("at", pa.list_(pa.timestamp("s")))]), pa.string()))
    struct<at: list<item: string>>
    """
    if pa.types.is_timestamp(type_):
        return to
    if pa.types.is_list(type_):
        return pa.list_(with_times(type_.value_type, to))
    if pa.types.is_struct(type_):
        return pa.struct([each.with_type(with_times(each.type, to)) for each in type_])
    return type_


def as_texts(schema: pa.Schema) -> pa.Schema:
    """Return the schema with texts for times, whose zones Arrow would pass over."""
    return pa.schema([each.with_type(with_times(each.type, pa.string())) for each in schema])


def _with_zones(lines: bytes, schema: pa.Schema) -> pa.Schema:
    """Return the schema with UTC for times that have zones, and with texts where only some of a field have."""
    texts = as_texts(schema)
    if texts.equals(schema):
        return schema
    table = open_lines(lines, texts, "ignore").read_all()
    for at, (field, times) in enumerate(zip(texts, schema, strict=True)):
        for type_ in (times.type, with_times(times.type, pa.timestamp("s", "UTC"))):
            with contextlib.suppress(pa.ArrowInvalid):
                table.column(at).cast(type_)
                field = field.with_type(type_)
                break
        schema = schema.set(at, times.with_type(field.type))
    return schema


def _marked(lines: bytes, given: pa.Schema) -> pa.Schema:
    """Mark where these lines have nulls; what is wrong with them is reported where they are read."""
    try:
        return first_marked(open_lines(lines, given, "ignore"))
    except pa.ArrowException:
        check_types("JSON", "schema=", {each.name: each.type for each in given}, _parse_null)
        return given


def _parse_null(type_: pa.DataType) -> None:
    open_lines(b'{"x": null}\n', pa.schema([("x", type_)]), "ignore").read_all()


def _check_text(path: str, lines: bytes) -> None:
    """Refuse what is not UTF-8, which Arrow would take even for the names of fields."""
    try:
        lines.decode()
    except UnicodeDecodeError as error:
        where = row_of(path, max(count_of(lines[: error.start + 1]) - 1, 0), NUMBERED)
        raise UnreadableFile(
            f"Cannot read {where}: it is not valid UTF-8. Convert the file to UTF-8."
        ) from error


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(loaded(line), dict)
    except ValueError:
        return False


def _fitting(lines: list[bytes], given: bool) -> list[bytes]:
    """Leave out lines that contradict those before; none is left if there are many such."""
    fitting: list[bytes] = []
    waiting, refused = [lines], 0
    while waiting and not given:
        part = waiting.pop()
        try:
            open_lines(b"".join(fitting + part), None, "infer")
            fitting += part
        except pa.ArrowException:
            middle = len(part) // 2
            if middle:
                waiting += [part[middle:], part[:middle]]
                continue
            refused += 1
            if refused > _CONTRADICTIONS:
                return []
    return lines if given else fitting


def _check_first_line(path: str, lines: bytes) -> None:
    """Refuse objects over several lines, which Arrow would take as long as they end within a block."""
    first = lines.lstrip().split(b"\n", 1)[0]
    try:
        loaded(first)
    except TooDeep:
        pass  # reported where a schema is inferred from it
    except ValueError as error:
        raise explained(first, lambda row: row_of(path, row, NUMBERED), None, error) from error


def _has_null(type_: pa.DataType) -> bool:
    inner = (type_.field(i).type for i in range(type_.num_fields))
    return pa.types.is_null(type_) or any(map(_has_null, inner))
