"""Reading one split of a CSV file with pyarrow, and explaining what it could not read."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.csv as pacsv

from millrace.core.work import Split, tell
from millrace.errors import UnreadableFile
from millrace.sources import text
from millrace.sources.csv import CsvFormat
from millrace.sources.files import InputFile
from millrace.sources.schemas import conform, read_guarded, select

if TYPE_CHECKING:
    from millrace.sources.csv_layout import Layout

_ADVICE = (
    "Say what it should be with column_types={{{column!r}: 'string'}} or another type, or repair the file."
)


# ---------------------------------------------------------------- options


def read_options(form: CsvFormat, names: Sequence[str] | None, block: int) -> pacsv.ReadOptions:
    """Return how to read: ``names`` None takes them from a header line, or numbers the columns."""
    return pacsv.ReadOptions(
        use_threads=False,
        block_size=min(block, (1 << 31) - 1),
        column_names=None if names is None else list(names),
        autogenerate_column_names=names is None and not form.has_header,
        encoding=text.plain_encoding(form.encoding) or "utf8",
    )


def parse_options(form: CsvFormat) -> pacsv.ParseOptions:
    """Return how to tell fields and records apart."""
    return pacsv.ParseOptions(
        delimiter=form.delimiter,
        quote_char=form.quote_char or False,
        escape_char=form.escape_char or False,
        newlines_in_values=form.newlines_in_values,
    )


def convert_options(
    form: CsvFormat, types: dict[str, pa.DataType], include: Sequence[str] | None
) -> pacsv.ConvertOptions:
    """Return how to turn text into values; ``include`` None takes all columns."""
    options = pacsv.ConvertOptions(
        column_types=types,
        strings_can_be_null=form.strings_can_be_null,
        decimal_point=form.decimal_point,
        include_missing_columns=True,
    )
    if include is not None:
        options.include_columns = list(include)
    if form.null_values is not None:
        options.null_values = list(form.null_values)
    if form.timestamp_parsers is not None:
        options.timestamp_parsers = list(form.timestamp_parsers)
    return options


# ---------------------------------------------------------------- reading


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


def explained(
    path: str, error: Exception, names: Sequence[str] | None, before: Callable[[], int | None]
) -> UnreadableFile:
    """Turn what Arrow says into file, row and column; ``before`` counts the rows before the split."""
    message = str(error)
    width = re.search(r"Row #(\d+): Expected (\d+) columns, got (\d+)(?:: (.*))?", message, re.DOTALL)
    if width:
        where = _where(path, int(width[1]) - 1, before)
        shown = f" ({tell(width[4])})" if width[4] else ""
        return UnreadableFile(
            f"Cannot read {where}: it has {width[3]} fields where {width[2]} are expected{shown}. Repair the "
            "row, or check delimiter=, quote_char= and has_header=."
        )
    value = re.search(
        r"CSV column #(\d+): Row #(\d+): CSV conversion error to (.+?): (.*)", message, re.DOTALL
    )
    if value:
        where = _where(path, int(value[2]) - 1, before)
        number = int(value[1])
        column = names[number] if names is not None and number < len(names) else f"f{number}"
        held = re.fullmatch(r"invalid value '(.*)'", value[4], re.DOTALL)
        if held:
            what = f"column {column!r} holds {tell(held[1])}, which is not {value[3]} as in the rows before"
            return UnreadableFile(f"Cannot read {where}: {what}. {_ADVICE.format(column=column)}")
        if "UTF8" in value[4]:
            return UnreadableFile(
                f"Cannot read {where}: column {column!r} is not valid UTF-8. Say which encoding the file has, "
                "for instance encoding='latin1'."
            )
        return UnreadableFile(
            f"Cannot read {where}: column {column!r} cannot become {value[3]}: {value[4].rstrip('.')}. "
            f"{_ADVICE.format(column=column)}"
        )
    return text.unreadable(path, error)


def _where(path: str, row: int, before: Callable[[], int | None]) -> str:
    rows = before()
    if rows is None:
        return f"{path!r}, row {row} after an earlier unreadable row"
    return f"{path!r}, row {rows + row} (counted from 0, without the header)"
