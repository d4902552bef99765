"""Reading one split of JSON lines with pyarrow, and explaining what it could not read."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from headrace.core.arrow.batch import held
from headrace.core.source_ports import Bad
from headrace.core.work import Split
from headrace.errors import UnreadableFile
from headrace.sources import text
from headrace.sources.exact import Bisection, large, raise_fault, rounded
from headrace.sources.file_source import damaged
from headrace.sources.json.layout import (
    NullGuard,
    TooDeep,
    count_of,
    explained,
    fails,
    lines_of,
    loaded,
    open_lines,
    open_stream,
    records_of,
    rows_of,
)
from headrace.sources.schemas import conform, read_guarded, select

if TYPE_CHECKING:
    from headrace.sources.json.layout import JsonLayout


_NULL_LINE = re.compile(rb"^[ \t\r]*null", re.MULTILINE)


def read(
    path: str,
    split: Split,
    layout: JsonLayout,
    columns: Sequence[str] | None,
    batch_rows: int,
    bad: Bad | None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one split."""
    if bad is None:
        raise_fault(layout.faults, split.file)
    target = select(layout.schema, columns)
    schema, unexpected = layout.schema, "error" if layout.strict else "ignore"
    if columns is not None and len(target) and not any(pa.types.is_nested(field.type) for field in target):
        # Fields that are not read may hold anything. Not so within a struct: it would lose parts.
        schema, unexpected = target, "ignore"

    def explain(error: Exception) -> Exception:
        return _diagnosed(path, split, layout, schema, unexpected, error)

    if bad is None:
        batches = _batches(path, split, layout, schema, unexpected)
        if layout.strict:
            batches = _unrounded(batches, path, split, layout, schema)
    else:
        batches = _sound(path, split, layout, schema, unexpected, bad)
    for batch in read_guarded(batches, explain):
        whole = batch if batch.schema.equals(target) else conform(batch, target, path)
        for start in range(0, whole.num_rows, batch_rows):
            yield whole.slice(start, batch_rows)


def _batches(
    path: str, split: Split, layout: JsonLayout, schema: pa.Schema, unexpected: str
) -> Iterator[pa.RecordBatch]:
    def batches(block: int) -> Iterator[pa.RecordBatch]:
        with _opened(path, split, layout) as stream:
            guarded = pa.PythonFile(held(NullGuard(stream)), mode="r")
            for batch in open_stream(guarded, schema, unexpected, block):
                batch.validate(full=True)  # Arrow takes any bytes for UTF-8 here
                yield batch

    return text.in_blocks(batches)


def _opened(path: str, split: Split, layout: JsonLayout) -> pa.NativeFile:
    if split.file in layout.arrays:
        return pa.BufferReader(lines_of(path))
    return text.open_split(path, split)


def _unrounded(
    batches: Iterator[pa.RecordBatch], path: str, split: Split, layout: JsonLayout, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield the same batches; if some numbers are big enough, search the split's lines for one that was rounded."""
    looked = False
    for batch in batches:
        if not looked and any(map(large, batch.columns)):
            looked = True
            row = 0
            for lines in _lines(path, split, layout):
                if (found := first_rounded(lines, schema)) is not None:
                    where = rows_of(path, rows_before(path, split, layout) + row)(found.line)
                    raise explain_rounded(where, found)
                row += count_of(lines)
        yield batch


def _sound(
    path: str, split: Split, layout: JsonLayout, schema: pa.Schema, unexpected: str, bad: Bad
) -> Iterator[pa.RecordBatch]:
    """Read in one go, and line by line where that fails."""
    given = 0
    begins = split.start == layout.texts[split.file].body
    if not (begins and split.file in layout.faults):
        batches = _batches(path, split, layout, schema, unexpected)
        if layout.strict:
            batches = _unrounded(batches, path, split, layout, schema)
        try:
            for batch in batches:
                yield batch
                given += batch.num_rows
            return
        except MemoryError:
            raise
        except (pa.ArrowException, UnreadableFile):
            pass

    def explain(error: Exception, line: bytes, row: int) -> UnreadableFile:
        where = rows_of(path, row) if begins else lambda _: _in_part(path, split, row)
        if isinstance(error, Rounded):
            return explain_rounded(where(0), error.found)
        return explained(line, where, schema if unexpected == "error" else None, error, schema)

    bisection = Bisection(
        functools.partial(_parsed, schema=schema, unexpected=unexpected, inferred=layout.strict),
        explain,
        bad,
        given=given,
    )
    for lines in _lines(path, split, layout):
        yield from bisection.read(lines, records_of)


def _parsed(lines: bytes, schema: pa.Schema, unexpected: str, inferred: bool) -> list[pa.RecordBatch]:
    """Parse lines of one object each."""
    count = count_of(lines)
    if _NULL_LINE.search(lines):
        raise pa.ArrowInvalid("it is null, not an object")
    batches = list(open_lines(lines, schema, unexpected)) if count else []
    for batch in batches:
        batch.validate(full=True)
    if sum(batch.num_rows for batch in batches) != count:
        raise pa.ArrowInvalid("it is not one object per line")
    if inferred and (found := first_rounded(lines, schema)) is not None:
        raise Rounded(found)
    return batches


def _in_part(path: str, split: Split, row: int) -> str:
    """Name a row without counting those of earlier splits, which may take long."""
    return f"{path!r}, row {row} of the part that begins at byte {split.start:,}"


# ---------------------------------------------------------------- explaining


def rows_before(path: str, split: Split, layout: JsonLayout) -> int:
    """Count the lines of a file before a split, blank ones left out."""
    body = layout.texts[split.file].body
    if split.start == body:
        return 0
    before = Split(split.file, body, split.start)
    return sum(count_of(lines) for lines in _lines(path, before, layout))


def _lines(path: str, split: Split, layout: JsonLayout) -> Iterator[bytes]:
    """Yield the bytes of a split in pieces of whole lines."""
    if split.file in layout.arrays:
        return iter([lines_of(path)])
    return text.pieces(text.tolerant_chunks(path, split), lambda data: data.rfind(b"\n") + 1)


def _diagnosed(
    path: str, split: Split, layout: JsonLayout, schema: pa.Schema, unexpected: str, error: Exception
) -> UnreadableFile:
    """Find the line that Arrow stumbled over: the first piece that fails alone, then its first such line."""
    row = 0
    try:
        for lines in _lines(path, split, layout):
            if fails(lines, schema, unexpected) is not None:
                row += rows_before(path, split, layout)
                known = schema if unexpected == "error" else None
                return explained(lines, rows_of(path, row), known, error, schema)
            row += count_of(lines)
    except (OSError, pa.ArrowInvalid):  # the compressed stream itself is damaged
        pass
    return damaged(repr(path), error)


_MANY_DIGITS = re.compile(rb"\d{16}")


class Rounded(pa.ArrowInvalid):  # type: ignore[misc]  # pyarrow has no types
    """A line holds a number that its field would round."""

    def __init__(self, found: RoundedNumber) -> None:
        super().__init__(f"{found.text} is {found.what}")
        self.found = found


class RoundedNumber(NamedTuple):
    """Which line (blank ones not counted), the field's dotted name, the number, and what becomes of it."""

    line: int
    field: str
    text: str
    what: str


def first_rounded(lines: bytes, schema: pa.Schema) -> RoundedNumber | None:
    """Find the first number that ``schema`` rounds."""
    if not _MANY_DIGITS.search(lines):
        return None
    row = 0
    for line in lines.splitlines():
        if not line.strip():
            continue
        if _MANY_DIGITS.search(line):
            found = _in_line(line, schema)
            if found is not None:
                return RoundedNumber(row, *found)
        row += 1
    return None


def _in_line(line: bytes, schema: pa.Schema) -> tuple[str, str, str] | None:
    try:
        value = loaded(line, parse_int=str)
    except TooDeep:
        raise
    except ValueError:  # another check reports it
        return None
    for field in schema:
        if isinstance(value, dict) and (found := _in(value.get(field.name), field.type, field.name)):
            return found
    return None


def _in(value: Any, type_: pa.DataType, name: str) -> tuple[str, str, str] | None:
    if pa.types.is_floating(type_) and isinstance(value, str):
        what = rounded(value)
        return None if what is None else (name, value, what)
    if pa.types.is_struct(type_) and isinstance(value, dict):
        inner = ((value.get(field.name), field.type, f"{name}.{field.name}") for field in type_)
    elif pa.types.is_list(type_) and isinstance(value, list):
        inner = ((item, type_.value_type, name) for item in value)
    else:
        return None
    return next((found for each in inner if (found := _in(*each))), None)


def explain_rounded(where: str, found: RoundedNumber) -> UnreadableFile:
    """Return the error for a number that would be rounded."""
    return UnreadableFile(
        f"Cannot read {where}: the field {found.field!r} is {found.text}, {found.what}; that type was inferred from "
        "the first part of the files. Set the type with schema=pyarrow.schema([...]): decimal128(38, 9) or uint64 "
        "hold such numbers, float64 rounds them."
    ).showing(found.text)
