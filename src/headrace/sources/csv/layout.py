"""Planning a read of CSV files: names and types are settled, big files are cut between records."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.csv as pacsv

from headrace.core.arrow.batch import lent_stream
from headrace.core.arrow.forms import first_marked, forms_over, unmarked
from headrace.core.files.formats import reader_of
from headrace.core.files.input_files import InputFile
from headrace.core.human import short_repr
from headrace.errors import ArgumentError, SchemaMismatch, UnreadableFile, unknown_column
from headrace.sources import text
from headrace.sources.csv import CsvFormat
from headrace.sources.csv.scanner import RecordScanner, quoted_cuts
from headrace.sources.file_source import damaged
from headrace.sources.records import NeverClosed, RecordFormat, Start, row_of
from headrace.sources.text import TextFile, check_types, newline_cuts, not_text, refuse_other_formats

NUMBERED = "without the header"

# ------------------------------------------------------------ Arrow's options, and its errors as ours


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
        quoted_strings_can_be_null=form.quoted_strings_can_be_null,
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
        r"CSV column #(\d+): Row #(\d+): (?:CSV conversion error to (.+?): )?(.*)", message, re.DOTALL
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
            f"Cannot read {place}: column {column!r} cannot become {value[3] or 'its type'}: {value[4].rstrip('.')}. "
            f"{_ADVICE.format(column=column)}"
        ).showing(value[4].rstrip("."))
    return damaged(repr(path), error)


_JSON = (b'{"', b"[{", b'["')
_PYTHON_TYPES: dict[Any, pa.DataType] = {
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bool: pa.bool_(),
    bytes: pa.binary(),
}


# ---------------------------------------------------------------- settling names and types


@dataclass(frozen=True)
class CsvRecords(RecordFormat):
    """How records of CSV are found and read."""

    form: CsvFormat
    settles = "For CSV, `column_types=` settles a column's type."

    def start(self, file: InputFile, size: int, settle: int) -> Start:
        """Read the header line and the first records."""
        form = self.form
        cuttable = (
            text.compression_of(file.path) is None
            and text.plain_encoding(form.encoding) is not None
            and form.escape_char is None
        )
        for head in text.heads(file.path, form.encoding, size):
            refuse_other_formats(file.path, head.data, "CSV", encoding=form.encoding)
            begins = head.data[text.skip_mark(head.data) :].lstrip()[:2]
            if (begins in _JSON and form.has_header) or (
                reader_of(file.path) == "read_json" and begins[:1] in (b"{", b"[")
            ):
                raise UnreadableFile(
                    f"Cannot read {file.path!r} as CSV: it begins with {begins.decode()}, as JSON. Use read_json."
                )
            try:
                found = _records(head, form)
            except NeverClosed as error:
                raise never_closed(file.path, error.args[0]) from error
            if found is None:
                continue
            start, body, end, opened = found
            if start == body == end:
                return Start(TextFile(0, cuttable, None))
            names = _names(file, head.data[start:body], form)
            _check_delimiter(file.path, names, head.data[body:end], form)
            schema, fault = _settled(file, head.data[body:end], names, form, self._types)
            if opened is not None:
                fault = fault or never_closed(file.path, opened)
            if not head.whole and len(head.data) < settle and any(map(pa.types.is_null, schema.types)):
                continue
            if not len(schema):
                return Start(TextFile(body, cuttable, None))
            return Start(TextFile(body, cuttable, tuple(schema.names)), schema, head.whole, fault)
        raise UnreadableFile(
            f"Cannot find the end of a record in the first {len(head.data):,} bytes of {file.path!r}: perhaps a "
            f"quote is never closed, or the file is not CSV. If quotes mean nothing in it, set quote_char=None."
        )

    def over(
        self, known: Sequence[tuple[str, pa.Schema]], *, whole: bool
    ) -> tuple[pa.Schema, Mapping[str, str]]:
        """Unify names and types."""
        types = self._types
        if not known:
            names = self.form.column_names or ()
            return pa.schema([pa.field(name, types.get(name, pa.null())) for name in names]), {}
        _check_widths(known, self.form)
        schema = self.unified(known)
        for name in types:
            if schema.get_field_index(name) < 0:
                raise unknown_column("column_types", name, schema.names)
        if not whole:
            # A column that was empty so far may hold anything further on, and any text is a string.
            schema = pa.schema(
                [each.with_type(pa.string()) if pa.types.is_null(each.type) else each for each in schema]
            )
        forms = forms_over([each for _, each in known], schema)
        return unmarked(schema), forms

    def cuts(self, file: BinaryIO, start: int, step: int) -> list[int]:
        """Cut behind newlines outside quotes."""
        if self.form.quote_char is None or not self.form.newlines_in_values:
            return newline_cuts(file, start, step)
        return quoted_cuts(file, start, step, _scanner(self.form))

    @functools.cached_property
    def _types(self) -> dict[str, pa.DataType]:
        types = {name: _type(name, given) for name, given in self.form.column_types.items()}
        check_types("CSV", "column_types", types, _parse_header)
        return types


def _parse_header(type_: pa.DataType) -> None:
    pacsv.open_csv(lent_stream(b"x\n"), convert_options=pacsv.ConvertOptions(column_types={"x": type_}))


def _check_widths(known: Sequence[tuple[str, pa.Schema]], form: CsvFormat) -> None:
    """Without header lines, columns go by position: all files must have equally many."""
    (first_path, first), *others = known
    for path, schema in others:
        if form.has_header and form.column_names is None:
            if not set(first.names) & set(schema.names):
                raise SchemaMismatch(
                    f"The CSV files {first_path!r} and {path!r} have no column in common: the first has "
                    f"{short_repr(first.names)}, the other {short_repr(schema.names)}. If they have no header line, "
                    "set has_header=False; otherwise read them separately."
                )
        elif len(schema) != len(first):
            raise SchemaMismatch(
                f"The CSV files {first_path!r} and {path!r} have {len(first)} and {len(schema)} columns, and without "
                "a header there are no names to match them by. Read them separately."
            )


def _check_delimiter(path: str, names: tuple[str, ...] | None, records: bytes, form: CsvFormat) -> None:
    """Refuse a header of one name if another mark divides it, and the first record just as often."""
    if names is None or len(names) != 1 or form.column_names is not None:
        return
    first = records.lstrip(b"\r\n").partition(b"\n")[0]
    for mark in "\t;|":
        if 0 < names[0].count(mark) == first.count(mark.encode()):
            raise UnreadableFile(
                f"Cannot read {path!r}: it would have one column, {short_repr(names[0])}. If {mark!r} divides its "
                f"columns, set delimiter={mark!r}; if it is one column, name it: column_names=[…], has_header=True."
            )


def _type(column: str, given: Any) -> pa.DataType:
    if isinstance(given, pa.DataType):
        return given
    if isinstance(given, type) and given in _PYTHON_TYPES:
        return _PYTHON_TYPES[given]
    try:
        return pa.type_for_alias(given)
    except (ValueError, TypeError) as error:
        raise ArgumentError(
            f"column_types[{column!r}] is {given!r}, which is not an Arrow type; write pyarrow.int64(), "
            "'int64', 'float64', 'string', 'bool', 'timestamp[us]', 'date32', … or int, float, str, bool."
        ) from error


def _records(head: text.Head, form: CsvFormat) -> tuple[int, int, int, int | None] | None:
    """Find where the header and the records begin, where the last whole record ends, and a quote that is never
    closed; None: read more."""
    data = head.data
    start = text.skip_mark(data)
    for _ in range(form.skip_rows):
        line = re.compile(rb"[^\r\n]*(?:\r\n|\n|\r|$)").match(data, start)
        start = line.end() if line else len(data)
    first = re.compile(rb"[^\r\n]").search(data, start)
    if first is None:
        return (len(data), len(data), len(data), None) if head.whole else None
    start = first.start()
    scanner = scanned(data[start:], form)
    opened = scanner.open_quote() if head.whole else None
    if opened is not None and scanner.first_end() is None:
        raise NeverClosed(start + opened)
    body = start
    if form.has_header:
        end = scanner.first_end()
        if not head.whole and (end is None or start + end == len(data)):  # "\r" may be half of "\r\n"
            return None
        body = len(data) if end is None else start + end
    if opened is not None:
        return start, body, max(body, start + (scanner.last_end() or 0)), start + opened
    last = len(data) if head.whole else start + (scanner.last_end() or 0)
    return (start, body, last, None) if head.whole or last > body else None


def never_closed(path: str, offset: int) -> UnreadableFile:
    """Return the error for a quote that is never closed."""
    return UnreadableFile(
        f"Cannot read {path!r}: the quote at byte {offset:,} is never closed, so the rest of the file "
        "would be one value. Repair the file, or set quote_char=None if quotes mean nothing in it."
    )


def scanned(data: bytes, form: CsvFormat) -> RecordScanner:
    """Scan text that starts with a record."""
    if form.escape_char is not None:  # an escaped quote or newline is neither
        data = re.sub(re.escape(form.escape_char.encode()) + rb".", b"xx", data, flags=re.DOTALL)
    scanner = _scanner(form)
    scanner.feed(data)
    return scanner


def _scanner(form: CsvFormat) -> RecordScanner:
    quote = form.quote_char.encode() if form.quote_char and form.newlines_in_values else None
    return RecordScanner(form.delimiter.encode(), quote)


def _names(file: InputFile, header: bytes, form: CsvFormat) -> tuple[str, ...] | None:
    if not form.has_header:
        return form.column_names
    try:
        reader = pacsv.open_csv(
            lent_stream(header + b"\n"),
            read_options=read_options(form, None, len(header) + 2),
            parse_options=parse_options(form),
        )
        names = tuple(reader.schema.names)
    except pa.ArrowException as error:
        raise damaged(repr(file.path), error) from error
    except UnicodeError as error:
        raise not_text(file.path, "the header line", error) from error
    if form.column_names is not None and len(form.column_names) != len(names):
        raise _wrong_names(file, form.column_names, f"has {len(names)} columns: {short_repr(list(names))}")
    return form.column_names or names


def _wrong_names(file: InputFile, names: Sequence[str], what: str) -> ArgumentError:
    return ArgumentError(f"column_names has {len(names)} names, but {file.path!r} {what}.")


def _settled(
    file: InputFile,
    records: bytes,
    names: tuple[str, ...] | None,
    form: CsvFormat,
    types: dict[str, pa.DataType],
) -> tuple[pa.Schema, UnreadableFile | None]:
    """Infer the schema; where some records cannot be parsed, from the others."""

    def texts(schema: pa.Schema) -> dict[str, pa.DataType]:
        """Return the columns that Arrow takes for binary, as they are not UTF-8, with the type of texts."""
        binary = (field.name for field in schema if pa.types.is_binary(field.type))
        return {name: pa.string() for name in binary if name not in types}

    try:
        schema = _infer(file, records, names, form, types)
        strings = texts(schema)  # asking for them shows which row is none
        return (_infer(file, records, names, form, {**strings, **types}) if strings else schema), None
    except UnreadableFile as fault:
        schema = _infer_leniently(records, names, form, types)
        if schema is None:
            raise
        strings = texts(schema)
        fields = [field.with_type(strings.get(field.name, field.type)) for field in schema]
        return pa.schema(fields), fault.with_traceback(None)


def _infer_leniently(
    records: bytes, names: tuple[str, ...] | None, form: CsvFormat, types: dict[str, pa.DataType]
) -> pa.Schema | None:
    """Infer from the records of the right width, whatever a column's values; None if there are none."""
    encoding = text.plain_encoding(form.encoding) or "utf8"
    records = records.decode(encoding, "replace").encode()  # rows that are skipped must be text
    form = replace(form, encoding="utf8")
    try:
        reader = pacsv.open_csv(
            lent_stream(records),
            read_options=read_options(form, names, len(records) + 1),
            parse_options=parse_options(form, lambda row: "skip"),
            convert_options=convert_options(form, dict.fromkeys(types, pa.binary()), None),
        )
        if not sum(batch.num_rows for batch in reader):
            return None
    except (pa.ArrowException, UnicodeError):
        return None
    return pa.schema([field.with_type(types.get(field.name, field.type)) for field in reader.schema])


def _infer(
    file: InputFile,
    records: bytes,
    names: tuple[str, ...] | None,
    form: CsvFormat,
    types: dict[str, pa.DataType],
) -> pa.Schema:
    if not records.strip(b"\r\n"):
        return pa.schema([pa.field(name, types.get(name, pa.null())) for name in names or ()])
    try:
        reader = pacsv.open_csv(
            lent_stream(records),
            read_options=read_options(form, names, len(records) + 1),
            parse_options=parse_options(form),
            convert_options=convert_options(form, types, None),
        )
        return first_marked(reader)
    except UnicodeError as error:
        raise not_text(file.path, "its text", error, form.encoding) from error
    except pa.ArrowException as error:
        width = re.search(r"Row #1: Expected \d+ columns, got (\d+)", str(error))
        if width and form.column_names is not None:
            what = f"has {width[1]} fields in its first row"
            raise _wrong_names(file, form.column_names, what) from error
        raise explained(file.path, error, names, lambda row: row_of(file.path, row, NUMBERED)) from error
