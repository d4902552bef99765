"""Reading one split of a CSV file with pyarrow, and explaining what it could not read."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.csv as pacsv

from headrace.core.arrow.batch import lent_stream
from headrace.core.human import short_repr
from headrace.core.stores.objects import open_binary
from headrace.core.work import Split
from headrace.errors import UnreadableFile
from headrace.sources import text
from headrace.sources.csv import CsvFormat
from headrace.sources.csv.layout import (
    NUMBERED,
    convert_options,
    explained,
    never_closed,
    parse_options,
    read_options,
    scanned,
)
from headrace.sources.records import Bisection, Layout, RecordReader
from headrace.sources.text import unrounded


class CsvReader(RecordReader):
    """Reads one split."""

    numbered = NUMBERED

    def __init__(
        self, path: str, split: Split, layout: Layout, columns: Sequence[str] | None, form: CsvFormat
    ) -> None:
        super().__init__(path, split, layout, columns)
        self.encoding = form.encoding
        self._form = form
        self._names = self.text.names or ()
        self._types = {field.name: field.type for field in layout.schema}
        self._inferred_floats = [
            field.name
            for field in self.target
            if pa.types.is_floating(field.type)
            and field.name not in form.column_types
            and field.name in self._names
        ]

    def in_one_go(self) -> Iterator[pa.RecordBatch]:
        def batches(names: Sequence[str] = ()) -> Iterator[pa.RecordBatch]:
            return self._batches(self.split, self._form, functools.partial(self._parsed, as_text=names))

        return unrounded(batches(), self._inferred_floats, batches, self._names.index)

    def parse(self, records: bytes) -> list[pa.RecordBatch]:
        def parsed(names: Sequence[str] = ()) -> Iterator[pa.RecordBatch]:
            return iter(self._parsed(lent_stream(records), self._form, len(records) + 1, names))

        if not records:
            return []
        return list(unrounded(parsed(), self._inferred_floats, parsed, self._names.index))

    def _parsed(
        self, stream: pa.NativeFile, form: CsvFormat, block: int, as_text: Sequence[str] = ()
    ) -> pacsv.CSVStreamingReader:
        include, types = self.target.names, self._types
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

    def _batches(
        self, split: Split, form: CsvFormat, parsed: Callable[..., pacsv.CSVStreamingReader]
    ) -> Iterator[pa.RecordBatch]:
        def batches(block: int) -> Iterator[pa.RecordBatch]:
            with text.open_split(self.path, split, form.encoding) as stream:
                yield from parsed(stream, form, block)

        return text.in_blocks(batches)

    def explained(self, error: Exception, record: bytes, place: str) -> UnreadableFile:
        # What cannot be decoded is given to Arrow as bytes that are no UTF-8.
        decoded = text.plain_encoding(self.encoding) is None and "UTF8" in str(error)
        if decoded or isinstance(error, UnicodeError):
            return UnreadableFile(f"Cannot read {place}: it is not valid {self._form.encoding}.")
        return explained(self.path, error, self._names, lambda _: place)

    # ------------------------------------------------------------ records, and quotes that are never closed

    def records(self, piece: bytes) -> list[bytes]:
        return scanned(piece, self._form).records(piece)

    def end_of(self, data: bytes) -> int:
        if b"\n" not in data:  # ended by carriage returns; the last one may be half of a newline
            data = data[:-1].replace(b"\r", b"\n")
        return scanned(data, self._form).last_end() or 0

    def sift(self, piece: bytes, bisection: Bisection) -> Iterator[pa.RecordBatch]:
        if scanned(piece, self._form).open_quote() is None:
            yield from bisection.read(piece, self.records)
            return
        *records, last = self.records(piece)
        yield from bisection.bisect(records)
        place, shown = (
            self.place(bisection.next_row(), exact=False),
            short_repr(last[:200].decode(errors="replace")),
        )
        unclosed = UnreadableFile(
            f"Cannot read {place}: a quote in it is never closed, so the rest of the file, {len(last):,} bytes, "
            f"would be one value ({shown})."
        )
        bisection.reject(unclosed.showing(shown))

    def is_doubtful(self) -> bool:
        return super().is_doubtful() or self._ends_inside_quotes()

    def refuse(self) -> None:
        if self._ends_inside_quotes():
            with open_binary(self.path) as file:
                file.seek(self.split.start)
                opened = scanned(file.read(), self._form).open_quote() or 0
            raise never_closed(self.path, self.split.start + opened)

    def _ends_inside_quotes(self) -> bool:
        """Say whether planning found that the file does."""
        return self.split.stop == text.TO_THE_END and self.text.cuttable

    # ------------------------------------------------------------ counting

    def count(self, split: Split) -> int | None:
        # Only newlines count, and such a file is cut by its bytes. In Latin-1, any bytes are text, but slowly.
        for encoding in ("utf8", "latin1"):
            try:
                return self._count(split, replace(self._form, encoding=encoding))
            except (pa.ArrowException, OSError, UnicodeError):
                continue
        return None

    def _count(self, split: Split, form: CsvFormat) -> int:
        skipped: list[pacsv.InvalidRow] = []

        def skip(row: pacsv.InvalidRow) -> str:
            skipped.append(row)
            return "skip"

        def parsed(stream: pa.NativeFile, form: CsvFormat, block: int) -> pacsv.CSVStreamingReader:
            skipped.clear()
            return pacsv.open_csv(
                stream,
                read_options=read_options(form, self._names, block),
                parse_options=parse_options(form, skip if form.encoding == "latin1" else None),
                convert_options=convert_options(form, {self._names[0]: pa.binary()}, self._names[:1]),
            )

        rows = sum(int(batch.num_rows) for batch in self._batches(split, form, parsed))
        return rows + len(skipped)
