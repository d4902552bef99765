"""Reading one split of a CSV file with pyarrow, and explaining what it could not read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.csv as pacsv

from millrace.core.work import Split
from millrace.sources import text
from millrace.sources.csv_format import CsvFormat
from millrace.sources.csv_options import convert_options, explained, parse_options, read_options
from millrace.sources.files import InputFile
from millrace.sources.schemas import conform, read_guarded, select

if TYPE_CHECKING:
    from millrace.sources.csv_layout import Layout


def read(
    file: InputFile,
    split: Split,
    layout: Layout,
    form: CsvFormat,
    columns: Sequence[str] | None,
    batch_rows: int,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one split."""
    target = layout.schema if columns is None else select(layout.schema, columns)
    names = layout.headers[layout.texts[split.file].header]
    types = {field.name: field.type for field in layout.schema}
    include = target.names or names[:1]  # an empty list would mean all

    def explain(error: Exception) -> Exception:
        return explained(file.path, error, names, lambda: rows_before(file.path, split, layout, form))

    for batch in read_guarded(_batches(file.path, split, form, names, types, include), explain):
        whole = batch if batch.schema.equals(target) else conform(batch, target, file.path, _no_constant)
        for start in range(0, whole.num_rows, batch_rows):
            yield whole.slice(start, batch_rows)


def _batches(
    path: str,
    split: Split,
    form: CsvFormat,
    names: Sequence[str],
    types: dict[str, pa.DataType],
    include: Sequence[str],
) -> Iterator[pa.RecordBatch]:
    def batches(block: int) -> Iterator[pa.RecordBatch]:
        with text.open_split(path, split, form.encoding) as stream:
            yield from pacsv.open_csv(
                stream,
                read_options=read_options(form, names, block),
                parse_options=parse_options(form),
                convert_options=convert_options(form, types, include),
            )

    return text.in_blocks(batches)


def _no_constant(name: str, rows: int) -> None:
    return None


# ---------------------------------------------------------------- explaining


def rows_before(path: str, split: Split, layout: Layout, form: CsvFormat) -> int | None:
    """Count the records of a file before a split; None if they cannot be parsed."""
    known = layout.texts[split.file]
    if split.start == known.body:
        return 0
    names = layout.headers[known.header]
    before = Split(split.file, known.body, split.start)
    try:
        batches = _batches(path, before, form, names, {names[0]: pa.binary()}, names[:1])
        return sum(int(batch.num_rows) for batch in batches)
    except (pa.ArrowException, OSError):
        return None
