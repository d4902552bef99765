"""A CSV format as Arrow's options, and Arrow's errors as ours."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.csv as pacsv

from headrace.core.human import short_repr
from headrace.errors import UnreadableFile
from headrace.sources import text
from headrace.sources.csv.format import CsvFormat
from headrace.sources.signatures import not_text

_ADVICE = (
    "Say what it should be with column_types={{{column!r}: 'string'}} or another type, or repair the file."
)


def read_options(form: CsvFormat, names: Sequence[str] | None, block: int) -> pacsv.ReadOptions:
    """Return how to read: ``names`` None takes them from a header line, or numbers the columns."""
    return pacsv.ReadOptions(
        use_threads=False,
        block_size=min(block, (1 << 31) - 1),
        column_names=None if names is None else list(names),
        autogenerate_column_names=names is None and not form.has_header,
        encoding=text.plain_encoding(form.encoding) or "utf8",
    )


def parse_options(
    form: CsvFormat, invalid: Callable[[pacsv.InvalidRow], str] | None = None
) -> pacsv.ParseOptions:
    """Return how fields and records are separated; ``invalid`` is called for rows of another width."""
    return pacsv.ParseOptions(
        delimiter=form.delimiter,
        quote_char=form.quote_char or False,
        escape_char=form.escape_char or False,
        newlines_in_values=form.newlines_in_values,
        invalid_row_handler=invalid,
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


def explained(
    path: str, error: Exception, names: Sequence[str] | None, where: Callable[[int], str]
) -> UnreadableFile:
    """Turn Arrow's message into one with file, row and column; ``where`` names a row of what was parsed."""
    if isinstance(error, UnicodeError):
        return not_text(path, "its text", error)
    message = str(error)
    width = re.search(r"Row #(\d+): Expected (\d+) columns, got (\d+)(?:: (.*))?", message, re.DOTALL)
    if width:
        place = where(int(width[1]) - 1)
        held = short_repr(width[4]) if width[4] else ""
        shown = f" ({held})" if held else ""
        return UnreadableFile(
            f"Cannot read {place}: it has {width[3]} fields where {width[2]} are expected{shown}. Repair the "
            "row, or check delimiter=, quote_char= and has_header=."
        ).showing(*filter(None, [held]))
    value = re.search(
        r"CSV column #(\d+): Row #(\d+): CSV conversion error to (.+?): (.*)", message, re.DOTALL
    )
    if value:
        place = where(int(value[2]) - 1)
        number = int(value[1])
        column = names[number] if names is not None and number < len(names) else f"f{number}"
        invalid = re.fullmatch(r"invalid value '(.*)'", value[4], re.DOTALL)
        if invalid:
            held = short_repr(invalid[1])
            what = f"column {column!r} holds {held}, which is not {value[3]} as in the rows before"
            advice = _ADVICE.format(column=column)
            return UnreadableFile(f"Cannot read {place}: {what}. {advice}").showing(held)
        if "UTF8" in value[4]:
            return UnreadableFile(
                f"Cannot read {place}: column {column!r} is not valid UTF-8. Say which encoding the file has, "
                "for instance encoding='latin1'."
            )
        return UnreadableFile(
            f"Cannot read {place}: column {column!r} cannot become {value[3]}: {value[4].rstrip('.')}. "
            f"{_ADVICE.format(column=column)}"
        ).showing(value[4].rstrip("."))
    return text.unreadable(path, error)


def row_of(path: str, row: int) -> str:
    """Name a row of a file."""
    return f"{path!r}, row {row} (counted from 0, without the header)"
