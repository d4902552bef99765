"""Reading one split of a CSV file with pyarrow, and explaining what it could not read."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.csv as pacsv

from headrace.core.arrow.batch import lent_stream
from headrace.core.human import short_repr
from headrace.core.source_ports import Bad
from headrace.core.stores.objects import open_binary
from headrace.core.work import Split
from headrace.errors import UnreadableFile
from headrace.sources import text
from headrace.sources.csv import CsvFormat
from headrace.sources.csv.layout import (
    convert_options,
    explained,
    never_closed,
    parse_options,
    read_options,
    row_of,
    scanned,
)
from headrace.sources.exact import Bisection, raise_fault, unrounded
from headrace.sources.schemas import conform, read_guarded, select

if TYPE_CHECKING:
    from headrace.sources.csv.layout import CsvLayout


class CsvReader:
    """Reads one split: in one go with Arrow, and record by record where that fails and bad rows are reported."""

    def __init__(
        self, path: str, split: Split, layout: CsvLayout, form: CsvFormat, columns: Sequence[str] | None
    ) -> None:
        self._path = path
        self._split = split
        self._layout = layout
        self._form = form
        self._target = select(layout.schema, columns)
        self._names = layout.headers[layout.texts[split.file].header]
        self._types = {field.name: field.type for field in layout.schema}
        self._inferred_floats = [
            field.name
            for field in self._target
            if pa.types.is_floating(field.type)
            and field.name not in form.column_types
            and field.name in self._names
        ]

    def read(self, batch_rows: int, bad: Bad | None) -> Iterator[pa.RecordBatch]:
        """Return the rows."""
        if bad is None:
            raise_fault(self._layout.faults, self._split.file)
            if self._ends_inside_quotes():
                raise never_closed(self._path, self._open_quote())
        batches = self._in_one_go() if bad is None else self._sound(bad)
        return self._cut(read_guarded(batches, self._explained), batch_rows)

    def _cut(self, batches: Iterator[pa.RecordBatch], batch_rows: int) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            whole = batch
            if not batch.schema.equals(self._target):
                whole = conform(batch, self._target, self._path)
            for start in range(0, whole.num_rows, batch_rows):
                yield whole.slice(start, batch_rows)

    def _in_one_go(self) -> Iterator[pa.RecordBatch]:
        def written(names: Sequence[str]) -> Iterator[pa.RecordBatch]:
            return _batches(
                self._path, self._split, self._form, functools.partial(self._parsed, as_text=names)
            )

        batches = _batches(self._path, self._split, self._form, self._parsed)
        return unrounded(batches, self._inferred_floats, written, self._names.index)

    def _parsed(
        self, stream: pa.NativeFile, form: CsvFormat, block: int, as_text: Sequence[str] = ()
    ) -> pacsv.CSVStreamingReader:
        include, types = self._target.names, self._types
        if as_text:
            include, types = list(as_text), dict.fromkeys(as_text, pa.string())
            form = replace(form, strings_can_be_null=False)
        if not include:  # an empty list would mean all; one column counts the rows, whatever it holds
            include, types = self._names[:1], {self._names[0]: pa.binary()}
        return pacsv.open_csv(
            stream,
            read_options=read_options(form, self._names, block),
            parse_options=parse_options(form),
            convert_options=convert_options(form, types, include),
        )

    def _explained(self, error: Exception) -> UnreadableFile:
        return explained(self._path, error, self._names, self._where)

    def _where(self, row: int) -> str:
        before = rows_before(self._path, self._split, self._layout, self._form)
        return self._roughly(row) if before is None else row_of(self._path, before + row)

    # ------------------------------------------------------------ bad rows

    def _sound(self, bad: Bad) -> Iterator[pa.RecordBatch]:
        given = 0
        doubtful = self._begins_the_file() and self._split.file in self._layout.faults
        if not (doubtful or self._ends_inside_quotes()):
            try:
                for batch in self._in_one_go():
                    yield batch
                    given += batch.num_rows
                return
            except MemoryError:
                raise
            except (pa.ArrowException, UnicodeError):
                pass
        yield from self._sifted(bad, given)

    def _sifted(self, bad: Bad, given: int) -> Iterator[pa.RecordBatch]:
        bisection = Bisection(self._parse, self._bad_record, bad, given=given)
        chunks = text.tolerant_chunks(self._path, self._split, self._form.encoding)
        for piece in text.pieces(chunks, self._end_of):
            scanner = scanned(piece, self._form)
            if scanner.open_quote() is None:
                yield from bisection.read(piece, scanner.records)
                continue
            *records, last = scanner.records(piece)
            yield from bisection.bisect(records)
            bisection.reject(self._unclosed(last, bisection.next_row()))

    def _end_of(self, data: bytes) -> int:
        if b"\n" not in data:  # ended by carriage returns; the last one may be half of a newline
            data = data[:-1].replace(b"\r", b"\n")
        return scanned(data, self._form).last_end() or 0

    def _parse(self, records: bytes) -> list[pa.RecordBatch]:
        def parsed(names: Sequence[str] = ()) -> Iterator[pa.RecordBatch]:
            return iter(self._parsed(lent_stream(records), self._form, len(records) + 1, names))

        if not records:
            return []
        return list(unrounded(parsed(), self._inferred_floats, parsed, self._names.index))

    def _bad_record(self, error: Exception, record: bytes, row: int) -> UnreadableFile:
        if isinstance(error, UnicodeError):
            return UnreadableFile(f"Cannot read {self._roughly(row)}: it is not valid {self._form.encoding}.")
        return explained(self._path, error, self._names, lambda _: self._roughly(row))

    def _unclosed(self, record: bytes, row: int) -> UnreadableFile:
        shown = short_repr(record[:200].decode(errors="replace"))
        return UnreadableFile(
            f"Cannot read {self._roughly(row)}: a quote in it is never closed, so the rest of the file, "
            f"{len(record):,} bytes, would be one value ({shown})."
        ).showing(shown)

    def _roughly(self, row: int) -> str:
        """Name a row without counting those of earlier splits, which may take long."""
        if self._begins_the_file():
            return row_of(self._path, row)
        return f"{self._path!r}, row {row} of the part that begins at byte {self._split.start:,}"

    def _begins_the_file(self) -> bool:
        return self._split.start == self._layout.texts[self._split.file].body

    def _ends_inside_quotes(self) -> bool:
        """Say whether planning found that the file does."""
        return self._split.stop == text.TO_THE_END and self._layout.texts[self._split.file].cuttable

    def _open_quote(self) -> int:
        with open_binary(self._path) as file:
            file.seek(self._split.start)
            return self._split.start + (scanned(file.read(), self._form).open_quote() or 0)


def _batches(
    path: str, split: Split, form: CsvFormat, parsed: Callable[..., pacsv.CSVStreamingReader]
) -> Iterator[pa.RecordBatch]:
    def batches(block: int) -> Iterator[pa.RecordBatch]:
        with text.open_split(path, split, form.encoding) as stream:
            yield from parsed(stream, form, block)

    return text.in_blocks(batches)


# ---------------------------------------------------------------- explaining


def rows_before(path: str, split: Split, layout: CsvLayout, form: CsvFormat) -> int | None:
    """Count the records of a file before a split, those of another width, too; None if they cannot be parsed."""
    known = layout.texts[split.file]
    if split.start == known.body:
        return 0
    names = layout.headers[known.header]
    before = Split(split.file, known.body, split.start)
    # Only newlines count, and such a file is cut by its bytes. In Latin-1, any bytes are text, but slowly.
    for encoding in ("utf8", "latin1"):
        try:
            return _count(
                path, before, replace(form, encoding=encoding), names, tolerant=encoding == "latin1"
            )
        except (pa.ArrowException, OSError):
            continue
    return None


def _count(path: str, split: Split, form: CsvFormat, names: Sequence[str], *, tolerant: bool) -> int:
    skipped: list[pacsv.InvalidRow] = []

    def skip(row: pacsv.InvalidRow) -> str:
        skipped.append(row)
        return "skip"

    def parsed(stream: pa.NativeFile, form: CsvFormat, block: int) -> pacsv.CSVStreamingReader:
        skipped.clear()
        return pacsv.open_csv(
            stream,
            read_options=read_options(form, names, block),
            parse_options=parse_options(form, skip if tolerant else None),
            convert_options=convert_options(form, {names[0]: pa.binary()}, names[:1]),
        )

    rows = sum(int(batch.num_rows) for batch in _batches(path, split, form, parsed))
    return rows + len(skipped)
