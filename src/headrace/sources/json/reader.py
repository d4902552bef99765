"""Reading one split of JSON lines with pyarrow, and explaining what it could not read."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from headrace.core.arrow.batch import held
from headrace.core.work import Split
from headrace.errors import UnreadableFile
from headrace.sources import text
from headrace.sources.json.layout import (
    NUMBERED,
    NullGuard,
    TooDeep,
    as_texts,
    count_of,
    explained,
    lines_of,
    loaded,
    open_lines,
    open_stream,
    records_of,
)
from headrace.sources.records import Layout, RecordReader
from headrace.sources.text import large, rounded

_NULL_LINE = re.compile(rb"^[ \t\r]*null", re.MULTILINE)


class JsonReader(RecordReader):
    """Reads one split; ``strict``: a field that the schema lacks is an error, and so is a number that it rounds."""

    numbered = NUMBERED

    def __init__(
        self, path: str, split: Split, layout: Layout, columns: Sequence[str] | None, *, strict: bool
    ) -> None:
        super().__init__(path, split, layout, columns)
        self._inferred = strict
        self._schema, self._unexpected = layout.schema, "error" if strict else "ignore"
        if columns is not None and len(self.target) and not any(map(pa.types.is_nested, self.target.types)):
            # Fields that are not read may hold anything. Not so within a struct: it would lose parts.
            self._schema, self._unexpected = self.target, "ignore"
        texts = as_texts(self._schema)
        self._parsed = texts if strict and not texts.equals(self._schema) else self._schema

    def in_one_go(self) -> Iterator[pa.RecordBatch]:
        looked, sought = not self._inferred, False
        for batch in text.in_blocks(self._batches):
            if not looked and any(map(large, batch.columns)):
                looked = True
                for lines in self.pieces(self.split):
                    self._refuse_rounded(lines)
            if not sought and _has_empty_row(batch):  # a line that is null is such a row to Arrow
                sought = True
                for lines in self.pieces(self.split):
                    _refuse_null_lines(lines)
            yield batch

    def _batches(self, block: int) -> Iterator[pa.RecordBatch]:
        with self._opened() as stream:
            guarded = pa.PythonFile(held(NullGuard(stream)), mode="r")
            for batch in open_stream(guarded, self._parsed, self._unexpected, block):
                batch.validate(full=True)  # Arrow takes any bytes for UTF-8 here
                yield self._timed(batch)

    def _timed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Make times of texts: so a time whose zone is that of no other in its field is refused."""
        return batch if self._parsed is self._schema else batch.cast(self._schema)

    def _opened(self) -> pa.NativeFile:
        if self.text.one_value:
            return pa.BufferReader(lines_of(self.path))
        return text.open_split(self.path, self.split)

    def pieces(self, split: Split) -> Iterator[bytes]:
        return iter([lines_of(self.path)]) if self.text.one_value else super().pieces(split)

    def parse(self, records: bytes) -> list[pa.RecordBatch]:
        count = count_of(records)
        _refuse_null_lines(records)
        batches = list(open_lines(records, self._parsed, self._unexpected)) if count else []
        for batch in batches:
            batch.validate(full=True)
        batches = list(map(self._timed, batches))
        if sum(batch.num_rows for batch in batches) != count:
            raise pa.ArrowInvalid("it is not one object per line")
        if self._inferred:
            self._refuse_rounded(records)
        return batches

    def _refuse_rounded(self, lines: bytes) -> None:
        if (found := first_rounded(lines, self._schema)) is not None:
            raise Rounded(found)

    def records(self, piece: bytes) -> list[bytes]:
        return records_of(piece)

    def end_of(self, data: bytes) -> int:
        return data.rfind(b"\n") + 1

    def explained(self, error: Exception, record: bytes, place: str) -> UnreadableFile:
        if isinstance(error, Rounded):
            return explain_rounded(place, error.found)
        known = self._schema if self._unexpected == "error" else None
        return explained(record, lambda _: place, known, error, self._schema)

    def count(self, split: Split) -> int:
        return sum(map(count_of, self.pieces(split)))


def _has_empty_row(batch: pa.RecordBatch) -> bool:
    """Return whether all columns are null in some row."""
    if not all(column.null_count for column in batch.columns):
        return False
    import pyarrow.compute as pc

    nulls = [column.is_null() for column in batch.columns]
    return not nulls or bool(pc.any(functools.reduce(pc.and_, nulls)).as_py())


def _refuse_null_lines(lines: bytes) -> None:
    if _NULL_LINE.search(lines):
        raise pa.ArrowInvalid("it is null, not an object")


# ---------------------------------------------------------------- numbers that would be rounded


_MANY_DIGITS = re.compile(rb"\d{16}")


class Rounded(pa.ArrowInvalid):  # type: ignore[misc]  # pyarrow has no types
    """A line holds a number that its field would round."""

    def __init__(self, found: RoundedNumber) -> None:
        super().__init__(f"{found.text} is {found.what}")
        self.found = found


class RoundedNumber(NamedTuple):
    """The field's dotted name, the number, and what becomes of it."""

    field: str
    text: str
    what: str


def first_rounded(lines: bytes, schema: pa.Schema) -> RoundedNumber | None:
    """Find the first number that ``schema`` rounds."""
    if not _MANY_DIGITS.search(lines):
        return None
    for line in lines.splitlines():
        if _MANY_DIGITS.search(line) and (found := _in_line(line, schema)) is not None:
            return RoundedNumber(*found)
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
