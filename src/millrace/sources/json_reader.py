"""What ``JsonSource`` does with pyarrow: settle the schema, cut files, read splits, explain errors."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.json as pajson

from millrace.core.ports import Bad
from millrace.core.work import Split, tell
from millrace.errors import SchemaMismatch, UnreadableFile
from millrace.sources import text
from millrace.sources.files import InputFile
from millrace.sources.json_nulls import NullGuard, refuse_null
from millrace.sources.records import newline_cuts
from millrace.sources.schemas import conform, read_guarded, select, unify
from millrace.sources.sieve import Faults, Sieve, faults_of, raise_fault
from millrace.sources.signatures import refuse_other_formats
from millrace.sources.text import TextFile

_CONTRADICTIONS = 100  # among the lines that the schema is inferred from
_OTHER_HEADS = 1 << 16  # what is read of each file after the first
_NULL_LINE = re.compile(rb"^\s*null", re.MULTILINE)
_SETTLE_BYTES = 1 << 24  # how far to read for a field that is null at first


@dataclass(frozen=True)
class Layout:
    """What was settled for all files. ``strict``: a field that ``schema`` lacks is an error."""

    schema: pa.Schema
    strict: bool
    texts: tuple[TextFile, ...]
    faults: Faults


@dataclass(frozen=True)
class _Start:
    """What the first bytes of one file tell."""

    text: TextFile
    schema: pa.Schema | None = None
    fault: UnreadableFile | None = None


# ---------------------------------------------------------------- settling the schema


def look(files: Sequence[InputFile], given: pa.Schema | None) -> Layout:
    """Read the start of every file; unify the schemas unless one is given."""
    found = [_look_at(files[0], given, text.HEAD_BYTES, _SETTLE_BYTES)] if files else []
    with ThreadPoolExecutor(4, thread_name_prefix="json") as threads:
        found.extend(threads.map(lambda file: _look_at(file, given, _OTHER_HEADS, 0), files[1:]))
    texts = tuple(start.text for start in found)
    faults = faults_of(start.fault for start in found)
    if given is not None:
        return Layout(given.remove_metadata(), False, texts, faults)
    schemas = [
        (file.path, start.schema)
        for file, start in zip(files, found, strict=True)
        if start.schema is not None
    ]
    if not schemas:
        return Layout(pa.schema([]), True, texts, faults)
    try:
        return Layout(unify(schemas), True, texts, faults)
    except SchemaMismatch as error:
        raise SchemaMismatch(f"{error} For JSON, `schema=` settles the types.") from error


def _look_at(file: InputFile, given: pa.Schema | None, size: int, settle: int) -> _Start:
    cuttable = text.compression_of(file.path) is None
    for head in text.heads(file.path, size=size):
        refuse_other_formats(file.path, head.data, "JSON lines", encoding=None)
        body = text.skip_mark(head.data)
        end = len(head.data) if head.whole else head.data.rfind(b"\n") + 1
        lines = head.data[body:end]
        if not lines.strip():
            if head.whole:
                return _Start(TextFile(body, cuttable, -1))
            continue
        if lines.lstrip().startswith(b"["):
            raise UnreadableFile(
                f"Cannot read {file.path!r}: it begins with '[', a JSON array, but JSON lines are wanted: one "
                "object per line. Convert it, for instance with `jq -c '.[]'`."
            )
        schema, fault = _settled(file.path, lines, given)
        if given is not None:
            return _Start(TextFile(body, cuttable, 0), None, fault)
        if not head.whole and len(head.data) < settle and any(_has_null(field.type) for field in schema):
            continue
        return _Start(TextFile(body, cuttable, 0), schema, fault)
    raise UnreadableFile(
        f"Cannot find the end of a line in the first {len(head.data):,} bytes of {file.path!r}; JSON lines "
        "are wanted: one object per line."
    )


def _settled(path: str, lines: bytes, given: pa.Schema | None) -> tuple[pa.Schema, UnreadableFile | None]:
    """Infer the schema, unless it is given; of lines some of which make no sense, from the others."""
    try:
        _check_first_line(path, lines)
        _check_text(path, lines)
        if given is not None:
            return given, None
        try:
            return _open_lines(lines, None, "infer").schema, None
        except pa.ArrowException as error:
            raise _explained(lines, _rows_of(path), None, error) from error
    except UnreadableFile as fault:
        objects = _fitting([line for line in _records(lines) if _is_object(line)], given is not None)
        if not objects:
            raise
        schema = given if given is not None else _open_lines(b"".join(objects), None, "infer").schema
        return schema, fault.with_traceback(None)


def _check_text(path: str, lines: bytes) -> None:
    """Refuse what is not UTF-8, which Arrow would take even for the names of fields."""
    try:
        lines.decode()
    except UnicodeDecodeError as error:
        where = _rows_of(path)(max(_count(lines[: error.start + 1]) - 1, 0))
        raise UnreadableFile(
            f"Cannot read {where}: it is not valid UTF-8. Convert the file to UTF-8."
        ) from error


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def _fitting(lines: list[bytes], given: bool) -> list[bytes]:
    """Leave out lines that contradict those before; none is left if there are many such."""
    fitting: list[bytes] = []
    waiting, refused = [lines], 0
    while waiting and not given:
        part = waiting.pop()
        try:
            _open_lines(b"".join(fitting + part), None, "infer")
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
        json.loads(first)
    except ValueError as error:
        raise _explained(first, _rows_of(path), None, error) from error


def _has_null(type_: pa.DataType) -> bool:
    inner = (type_.field(i).type for i in range(type_.num_fields))
    return pa.types.is_null(type_) or any(map(_has_null, inner))


def _open_lines(lines: bytes, schema: pa.Schema | None, unexpected: str) -> pajson.JSONStreamingReader:
    refuse_null(lines)
    return _open(pa.BufferReader(lines), schema, unexpected, len(lines) + 1)


def _open(
    stream: pa.NativeFile, schema: pa.Schema | None, unexpected: str, block: int
) -> pajson.JSONStreamingReader:
    return pajson.open_json(
        stream,
        read_options=pajson.ReadOptions(use_threads=False, block_size=min(block, (1 << 31) - 1)),
        parse_options=pajson.ParseOptions(explicit_schema=schema, unexpected_field_behavior=unexpected),
    )


# ---------------------------------------------------------------- cutting and reading


def cut(layout: Layout, files: Sequence[InputFile], block: int) -> list[Split]:
    """List the splits of all files in order."""
    splits: list[Split] = []
    for number, (file, known) in enumerate(zip(files, layout.texts, strict=True)):
        cuts: list[int] = []
        if known.cuttable and known.header >= 0 and file.size - known.body > block:
            try:
                with open(file.path, "rb") as data:
                    cuts = newline_cuts(data, known.body, block)
            except OSError as error:
                raise text.unreadable(file.path, error) from error
        splits.extend(text.splits_of(number, known, file.size, cuts))
    return splits


def read(
    path: str,
    split: Split,
    layout: Layout,
    columns: Sequence[str] | None,
    batch_rows: int,
    bad: Bad | None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one split."""
    if bad is None:
        raise_fault(layout.faults, split.file)
    target = layout.schema if columns is None else select(layout.schema, columns)
    schema, unexpected = layout.schema, "error" if layout.strict else "ignore"
    if columns is not None and len(target) and not any(pa.types.is_nested(field.type) for field in target):
        # Fields that nobody asked for may be what they like. Not so within a struct: it would lose parts.
        schema, unexpected = target, "ignore"

    def explain(error: Exception) -> Exception:
        return _diagnosed(path, split, layout, schema, unexpected, error)

    if bad is None:
        batches = _batches(path, split, schema, unexpected)
    else:
        batches = _sound(path, split, layout, schema, unexpected, bad)
    for batch in read_guarded(batches, explain):
        whole = batch if batch.schema.equals(target) else conform(batch, target, path, _no_constant)
        for start in range(0, whole.num_rows, batch_rows):
            yield whole.slice(start, batch_rows)


def _batches(path: str, split: Split, schema: pa.Schema, unexpected: str) -> Iterator[pa.RecordBatch]:
    def batches(block: int) -> Iterator[pa.RecordBatch]:
        with text.open_split(path, split) as stream:
            guarded = pa.PythonFile(NullGuard(stream), mode="r")
            for batch in _open(guarded, schema, unexpected, block):
                batch.validate(full=True)  # Arrow takes any bytes for UTF-8 here
                yield batch

    return text.in_blocks(batches)


def _sound(
    path: str, split: Split, layout: Layout, schema: pa.Schema, unexpected: str, bad: Bad
) -> Iterator[pa.RecordBatch]:
    """Read in one go, and line by line where that fails."""
    given = 0
    begins = split.start == layout.texts[split.file].body
    if not (begins and split.file in layout.faults):
        try:
            for batch in _batches(path, split, schema, unexpected):
                yield batch
                given += batch.num_rows
            return
        except MemoryError:
            raise
        except pa.ArrowException:
            pass

    def explain(error: Exception, line: bytes, row: int) -> UnreadableFile:
        where = _rows_of(path, row) if begins else lambda _: _in_part(path, split, row)
        return _explained(line, where, schema if unexpected == "error" else None, error, schema)

    sieve = Sieve(functools.partial(_parsed, schema=schema, unexpected=unexpected), explain, bad, given=given)
    for lines in _lines(path, split):
        yield from sieve.sift(lines, _records)


def _parsed(lines: bytes, schema: pa.Schema, unexpected: str) -> list[pa.RecordBatch]:
    """Parse lines of one object each."""
    count = _count(lines)
    if _NULL_LINE.search(lines):
        raise pa.ArrowInvalid("it is null, not an object")
    batches = list(_open_lines(lines, schema, unexpected)) if count else []
    for batch in batches:
        batch.validate(full=True)
    if sum(batch.num_rows for batch in batches) != count:
        raise pa.ArrowInvalid("it is not one object per line")
    return batches


def _records(lines: bytes) -> list[bytes]:
    return [line for line in lines.splitlines(keepends=True) if line.strip()]


def _in_part(path: str, split: Split, row: int) -> str:
    """Name a row without counting those of earlier splits, which may take long."""
    return f"{path!r}, row {row} of the part that begins at byte {split.start:,}"


def _no_constant(name: str, rows: int) -> None:
    return None


# ---------------------------------------------------------------- explaining


def rows_before(path: str, split: Split, layout: Layout) -> int:
    """Count the lines of a file before a split, blank ones left out."""
    body = layout.texts[split.file].body
    if split.start == body:
        return 0
    before = Split(split.file, body, split.start)
    return sum(_count(lines) for lines in _lines(path, before))


def _count(lines: bytes) -> int:
    return sum(1 for line in lines.splitlines() if line.strip())


def _lines(path: str, split: Split) -> Iterator[bytes]:
    """Yield the bytes of a split in pieces of whole lines."""
    return text.pieces(text.tolerant_chunks(path, split), lambda data: data.rfind(b"\n") + 1)


def _diagnosed(
    path: str, split: Split, layout: Layout, schema: pa.Schema, unexpected: str, error: Exception
) -> UnreadableFile:
    """Find the line that Arrow stumbled over: the first piece that fails alone, then its first such line."""
    row = 0
    try:
        for lines in _lines(path, split):
            if _fails(lines, schema, unexpected) is not None:
                row += rows_before(path, split, layout)
                known = schema if unexpected == "error" else None
                return _explained(lines, _rows_of(path, row), known, error, schema)
            row += _count(lines)
    except (OSError, pa.ArrowInvalid):  # the compressed stream itself is damaged
        pass
    return text.unreadable(path, error)


def _fails(lines: bytes, schema: pa.Schema | None, unexpected: str) -> Exception | None:
    try:
        for batch in _open_lines(lines, schema, unexpected):
            batch.validate(full=True)
    except pa.ArrowInvalid as error:
        return None if "Empty JSON" in str(error) else error
    return None


def _rows_of(path: str, first: int = 0) -> Callable[[int], str]:
    return lambda row: f"{path!r}, row {first + row} (counted from 0, without blank lines)"


def _explained(
    lines: bytes,
    name: Callable[[int], str],
    known: pa.Schema | None,
    error: Exception,
    schema: pa.Schema | None = None,
) -> UnreadableFile:
    """Explain the first line at fault among ``lines``; ``name`` tells where the n-th of them stands."""
    records = _records(lines)
    unexpected = "infer" if schema is None else ("error" if known is not None else "ignore")
    low, high = 0, len(records)
    while high - low > 1:
        middle = (low + high) // 2
        # Without a schema a line may fail only beside another, so whole prefixes are tried.
        start = 0 if schema is None else low
        failed = _fails(b"".join(records[start:middle]), schema, unexpected) is not None
        low, high = (low, middle) if failed else (middle, high)
    line = records[low]
    where = name(low)
    reason = str(_fails(line, schema, unexpected) or error).rstrip(".")
    reason = re.sub(r" in row \d+$", "", reason)
    try:
        value = json.loads(line)
    except UnicodeDecodeError:
        return UnreadableFile(f"Cannot read {where}: it is not valid UTF-8. Convert the file to UTF-8.")
    except ValueError as invalid:
        return UnreadableFile(
            f"Cannot read {where}: {tell(line.decode(errors='replace').strip())} is not JSON ({invalid}). One "
            "whole object per line is wanted; repair the line or leave the file out."
        )
    field = _unknown_field(value, known) if known is not None else None
    if field is not None:
        return UnreadableFile(
            f"Cannot read {where}: the field {field!r} was not there in the first part of the files, from which "
            "the schema was inferred. Give the whole schema with schema=pyarrow.schema([...]); fields that it "
            "does not name are passed over."
        )
    return UnreadableFile(
        f"Cannot read {where}: {reason}, against the schema that was given or inferred from the start of the "
        f"files. The row is {tell(line.decode(errors='replace').strip())}. Settle the types with "
        "schema=pyarrow.schema([...]), or repair the row."
    )


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
