"""Tables that people read: aligned lines on a terminal, HTML and cards in a notebook. And templates."""

from __future__ import annotations

import datetime
import decimal
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from headrace.core.human import duration, metric_text, plural, size, value_text
from headrace.core.terminal import cut, in_notebook, one_line, padded, say, size_of, width
from headrace.core.work import REJECTED

if TYPE_CHECKING:
    import pyarrow as pa


T = TypeVar("T")

_DOWN = ("column", "type", "value")  # the heading of a table of one row
_LEAST = 12  # columns of the terminal that a column may be cut to
_LINES = 50  # of a row that goes downwards
_PIXELS = 64  # of a thumbnail's longer side
_SIDE = 8  # pixels, at least: smaller arrays of bytes are numbers
_CHARS = 1_000  # of a text
_NUMBERS = 16  # of an array
_NAMES = 5  # of columns that are not shown


class Link(msgspec.Struct, frozen=True):
    """A file that a browser can open."""

    text: str
    path: Path

    def address(self) -> str:
        """Return where it is; a file below the present folder is named from there, as a notebook's server has it."""
        from urllib.parse import quote

        try:
            return quote(str(self.path.relative_to(Path.cwd())))
        except (ValueError, OSError):
            return "file://" + quote(str(self.path))


class Picture(msgspec.Struct, frozen=True):
    """An array that is an image, of which a notebook shows a thumbnail; ``text`` stands where there is none."""

    text: str
    pixels: Any

    def address(self) -> str:
        """Return a small PNG, as an address that holds it."""
        from base64 import b64encode

        step = -(-max(self.pixels.shape[:2]) // _PIXELS)
        return "data:image/png;base64," + b64encode(_png(self.pixels[::step, ::step])).decode()


Words = str | Link | Picture


class Table(msgspec.Struct, frozen=True):
    """Rows of cells below their headings, and below the types of their columns, if there are any.

    ``numbers`` are the columns that are aligned to the right, and not cut. ``note`` stands below.
    """

    heading: Sequence[str] = ()
    rows: Sequence[Sequence[Words]] = ()
    note: str = ""
    types: Sequence[str] = ()
    numbers: Collection[int] = ()

    def text(self, columns: int | None = None) -> str:
        r"""Return aligned lines, of at most so many columns; nothing in a cell acts as an escape.

        Long cells are cut. Where that does not suffice, columns in the middle are left out; a single row goes on
        downwards instead.

        >>> rows = [("7", "Ber\x1blin at night"), ("12", "東京")]
        >>> print(Table(("ride", "city"), rows, "and more", ("int64", "string"), {0}).text(20))
         ride  city
        int64  string
        -----  -------------
            7  Ber\x1blin a…
           12  東京
        and more
        """
        if columns is None or not self.heading or _space(self._widths()) <= columns:
            return self._drawn(self._widths())
        if self._is_a_row():
            return self.downwards().text(columns)
        widths = self._widths()
        least = [each if i in self.numbers else min(each, _LEAST) for i, each in enumerate(widths)]
        most = len(least)
        while most > 1 and _space(both_ends(least, most, 1)) > columns:
            most -= 1
        fitted = _fitted(both_ends(least, most, 1), both_ends(widths, most, 1), columns)
        return self.across(most)._drawn(fitted)

    def across(self, most: int) -> Table:
        """Return the table with so many of its columns, from both ends; a longer row goes on downwards."""
        if len(self.heading) <= most:
            return self
        if self._is_a_row():
            return self.downwards()
        shown = both_ends(range(len(self.heading)), most, -1)
        left = [name for i, name in enumerate(self.heading) if i not in shown]

        def kept(cells: Sequence[T]) -> list[T | str]:
            return [cells[i] if i >= 0 else "…" for i in shown]

        return Table(
            kept(self.heading),
            [kept(row) for row in self.rows],
            _joined(self.note, _not_shown(left)),
            kept(self.types) if self.types else (),
            {at for at, i in enumerate(shown) if i in self.numbers},
        )

    def downwards(self) -> Table:
        """Return a table of one row with a line for each column; of many, those in the middle are left out."""
        lines: list[tuple[Words, ...]] = list(zip(self.heading, self.types, self.rows[0], strict=True))
        shown = both_ends(lines, _LINES, ("…", "", ""))
        left = [name for name in self.heading if name not in {line[0] for line in shown}]
        return Table(_DOWN, shown, _joined(self.note, _not_shown(left)))

    def _is_a_row(self) -> bool:
        return len(self.rows) == 1 and bool(self.types)

    def _lines(self) -> list[list[str]]:
        return [
            [one_line(_text(cell)) for cell in row] for row in (self.heading, self.types, *self.rows) if row
        ]

    def _widths(self) -> list[int]:
        return [max(map(width, cells)) for cells in zip(*self._lines(), strict=True)]

    def _drawn(self, widths: Sequence[int]) -> str:
        lines = self._lines()
        if self.heading:
            lines.insert(1 + bool(self.types), ["-" * each for each in widths])
        drawn = [
            [padded(cell, widths[i], right=i in self.numbers) for i, cell in enumerate(line)]
            for line in lines
        ]
        notes = [one_line(self.note)] if self.note else []
        return "\n".join([*("  ".join(line).rstrip() for line in drawn), *notes])


def both_ends(items: Sequence[T], most: int, between: T) -> list[T]:
    """Return so many items, from both ends; ``between`` stands for those that are left out.

    >>> both_ends("abcdefg", 3, "…")
    ['a', 'b', '…', 'g']
    """
    if len(items) <= most:
        return list(items)
    return [*items[: (most + 1) // 2], between, *items[len(items) - most // 2 :]]


def _fitted(least: Sequence[int], widths: Sequence[int], columns: int) -> list[int]:
    """Return how wide columns are that share the room: the widest ones give way."""
    made = list(least)
    room = max(0, columns - _space(least))
    for at, i in enumerate(sorted(range(len(made)), key=lambda i: widths[i] - least[i])):
        more = min(widths[i] - least[i], room // (len(made) - at))
        made[i] += more
        room -= more
    return made


def _space(widths: Iterable[int]) -> int:
    return sum(each + 2 for each in widths) - 2


def _not_shown(names: Sequence[str]) -> str:
    few = cut(", ".join(map(one_line, names[:_NAMES])), _NAMES * _LEAST)
    more = ", …" if len(names) > _NAMES else ""
    return f"{plural(len(names), 'column')} not shown: {few}{more}" if names else ""


def _joined(*notes: str) -> str:
    return "; ".join(filter(None, notes))


def _text(words: Words) -> str:
    return words if isinstance(words, str) else words.text


# ---------------------------------------------------------------- rows of a dataset


def rows_table(rows: Sequence[Mapping[str, Any]], schemas: Iterable[pa.Schema]) -> Table:
    """Return rows as a table; ``schemas`` are those that they came with, and have the types.

    >>> import pyarrow as pa
    >>> schema = pa.schema({"id": pa.int64(), "city": pa.string(), "score": pa.float32()})
    >>> rows = [{"id": 7, "city": None, "score": 0.1}, {"id": 12, "city": "", "score": None}]
    >>> print(rows_table(rows, [schema]).text())
       id  city    score
    int64  string  float32
    -----  ------  -------
        7  null        0.1
       12  ''         null
    """
    types: dict[str, dict[str, pa.DataType]] = {}
    for schema in schemas:
        for field in schema:
            types.setdefault(field.name, {})[type_text(field.type)] = field.type
    names = list(types)
    cells = [[_cell(row.get(name), types[name].values()) for name in names] for row in rows]
    numbers = {i for i, name in enumerate(names) if all(map(_is_number, types[name].values()))}
    return Table(
        names, cells, "" if rows else "no rows", [" or ".join(types[name]) for name in names], numbers
    )


class Rows(list[dict[str, Any]]):
    """A list of rows, as ``take`` returns them, which a notebook shows as a table."""

    def __init__(self, rows: Iterable[dict[str, Any]], schemas: Sequence[pa.Schema]) -> None:
        super().__init__(rows)
        self._schemas = schemas

    def _repr_html_(self) -> str:
        return card("", (), rows_table(self, self._schemas))


def type_text(type_: pa.DataType) -> str:
    """Return a type as people know it: numbers as numpy names them, arrays with their shape.

    >>> import pyarrow as pa
    >>> [type_text(each) for each in (pa.float32(), pa.list_(pa.float64()), pa.list_(pa.float32(), 3), pa.string())]
    ['float32', 'list<float64>', 'float32 (3)', 'string']
    >>> type_text(pa.fixed_shape_tensor(pa.uint8(), [28, 28]))
    'uint8 (28, 28)'
    """
    import pyarrow as pa

    from headrace.core.arrow.forms import RaggedTensorType
    from headrace.core.arrow.objects import is_objects

    if isinstance(type_, pa.FixedShapeTensorType):
        return f"{type_text(type_.value_type)} ({', '.join(map(str, type_.shape))})"
    if isinstance(type_, RaggedTensorType):
        return f"{type_text(type_.value_type)} ({', '.join('?' * type_.ndim)})"
    if is_objects(type_):
        return "Python object"
    shape = []
    while pa.types.is_fixed_size_list(type_):
        shape.append(str(type_.list_size))
        type_ = type_.value_type
    if shape:
        return f"{type_text(type_)} ({', '.join(shape)})"
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return f"list<{type_text(type_.value_type)}>"
    if pa.types.is_struct(type_):
        return f"struct<{', '.join(f'{field.name}: {type_text(field.type)}' for field in type_)}>"
    if pa.types.is_dictionary(type_):
        return type_text(type_.value_type)
    return {"halffloat": "float16", "float": "float32", "double": "float64"}.get(str(type_), str(type_))


def columns_table(columns: Mapping[str, pa.DataType | None]) -> Table:
    """Return the names of columns with their types, as far as they are known."""
    unknown = "type known when it runs"
    return Table((), [(name, unknown if each is None else type_text(each)) for name, each in columns.items()])


def _is_number(type_: pa.DataType) -> bool:
    import pyarrow as pa

    return any(is_one(type_) for is_one in (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal))


def _cell(value: Any, types: Collection[pa.DataType]) -> Words:
    import numpy as np

    if value is None:
        return "null"
    if isinstance(value, str):
        is_plain = value == value.strip() and value not in ("", "null") and len(value) <= _CHARS
        return value if is_plain else value_text(value)
    if isinstance(value, float) and all(str(each) in ("float", "halffloat") for each in types):
        return str(np.float32(value) if "float" in map(str, types) else np.float16(value))
    if isinstance(value, float):
        return _six_digits(value)
    if isinstance(value, np.ndarray):
        first = ", ".join(map(_item, value.reshape(-1)[:_NUMBERS]))
        text = f"[{first}{', …' if value.size > _NUMBERS else ''}]"
        text = text if value.ndim == 1 else f"{value.shape} {text}"
        return Picture(text, value) if _is_image(value) else text
    if isinstance(value, (datetime.date, datetime.time, datetime.timedelta, decimal.Decimal)):
        return str(value)
    if isinstance(value, bytes) and len(value) > _NUMBERS:
        return f"{len(value):,} bytes: {value[:_LEAST]!r}…"
    return value_text(value)


def _item(item: Any) -> str:
    """Return a number of an array."""
    import numpy as np

    return _six_digits(float(item)) if isinstance(item, np.floating) else str(item)


def _six_digits(number: float) -> str:
    """Return a number with six digits, which say what it is like; a big one with all of them, as they may be needed.

    >>> _six_digits(0.6369616873214543), _six_digits(1732716000.125), _six_digits(0.25), _six_digits(float("nan"))
    ('0.636962', '1732716000.125', '0.25', 'nan')
    """
    return repr(float(f"{number:.6g}")) if abs(number) < 1e6 else repr(number)


# ---------------------------------------------------------------- images


def _is_image(array: Any) -> bool:
    """Say whether an array is of shape (h, w), (h, w, 1), (h, w, 3) or (h, w, 4), and of bytes."""
    colours = array.shape[2:] in ((), (1,), (3,), (4,))
    return array.dtype == "uint8" and array.ndim in (2, 3) and colours and min(array.shape[:2]) >= _SIDE


def _png(pixels: Any) -> bytes:
    """Return an image as PNG, as in https://www.w3.org/TR/png-3/: grey, RGB or RGBA, eight bits, without filters."""
    import struct
    import zlib

    height, width, *colours = pixels.shape
    kind = {(): 0, (1,): 0, (3,): 2, (4,): 6}[tuple(colours)]
    head = struct.pack(">2I5B", width, height, 8, kind, 0, 0, 0)
    lines = zlib.compress(b"".join(b"\0" + line.tobytes() for line in pixels))
    chunks = [(b"IHDR", head), (b"IDAT", lines), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in chunks
    )


# ---------------------------------------------------------------- cards of a notebook, and templates

_CARD_CHARS = 300  # of a text
_ACROSS = 30  # columns of a table


def rendered(template: Path, **values: Any) -> str:
    """Return the HTML that a template, whose name ends in ``.html``, makes of plain values."""
    made: str = engine(template).render_template(template.name, **values)
    return made


@cache
def engine(template: Path) -> Any:
    """Return the engine with a template; it takes what Jinja2 takes, and a tenth of the time to be imported."""
    from minijinja import Environment

    made = Environment(undefined_behavior="strict", trim_blocks=True, lstrip_blocks=True)
    made.debug = False  # its errors would hold all values
    made.add_template(template.name, template.read_text(encoding="utf-8"))
    return made


def card(title: str, facts: Sequence[tuple[str, Words]] = (), *tables: Table) -> str:
    """Return the HTML.

    >>> print(card("Dataset <b>", [("steps", "map(f)")]))
    <div class="headrace"><div style="...">Dataset &lt;b&gt;</div>
    ...map(f)</td></tr>
    ...
    """
    drawn = [
        {
            "heading": [_short(name) for name in table.heading],
            "types": [_short(name) for name in table.types],
            "numbers": [i in table.numbers for i in range(len(table.heading))],
            "rows": [[_card_cell(cell) for cell in row] for row in table.rows],
            "note": _short(table.note),
        }
        for table in (table.across(_ACROSS) for table in tables)
    ]
    told = [{"name": _short(name), **_card_cell(words)} for name, words in facts]
    return rendered(Path(__file__).parent / "card.html", title=_short(title), facts=told, tables=drawn)


def _card_cell(words: Words) -> dict[str, str]:
    cell = {"words": _short(words if isinstance(words, str) else words.text), "address": "", "picture": ""}
    if isinstance(words, Link):
        cell["address"] = words.address()
    elif isinstance(words, Picture):
        cell["picture"] = words.address()
    return cell


def _short(words: str) -> str:
    """Return words in one line, not too long, with characters that show."""
    return one_line(words if len(words) <= _CARD_CHARS else words[:_CARD_CHARS] + "…")


def show(table: Table) -> None:
    """Show a table where the program's output goes: in the cell of a notebook, or on standard output."""
    if in_notebook():
        from IPython.display import display

        display({"text/html": card("", (), table), "text/plain": table.text()}, raw=True)
    else:
        say(table.text(size_of(sys.stdout)[0]), sys.stdout)


# ---------------------------------------------------------------- the result of a run


_REJECTED = 5  # rows that are shown


def result_html(result: Any) -> str:
    """Return a result as a notebook shows it; of rejected rows, why and where, but none of their values."""
    ledger, report = result.ledger, result.report
    facts: list[tuple[str, Words]] = [
        ("rows", f"{ledger.read:,} in, {result.rows:,} out, {result.rejected:,} rejected"),
        ("took", duration(result.seconds) + (" over all drivers" if result.resumed else "")),
        ("output", f"{result.path} ({plural(result.files, 'file')}, {size(result.bytes)})"),
        ("report", Link(report.name, report) if isinstance(report, Path) else report),
    ]
    tables = []
    if result.metrics:
        notes = getattr(result.metrics, "notes", {})
        rows = [
            (name, metric_text(found) + (f" ({notes[name]})" if name in notes else ""))
            for name, found in result.metrics.items()
        ]
        tables.append(Table(("metric", "result"), rows))
    if result.rejected:
        tables.append(_rejected_table(result))
    return card("Result: complete", facts, *tables)


def _rejected_table(result: Any) -> Table:
    """Return the first rejected rows: why they are, and where they stood."""
    from headrace.core.rejected import first_rows, reason

    files = sorted((Path(result.path) / REJECTED).glob("*.arrow"))
    found = islice((why for path in files for why, _ in first_rows(path)), _REJECTED)
    rows = [(raised, str(why["_step"]), where) for why in found for where, raised in [reason(why)]]
    note = f"{result.rejected:,} rejected rows: hr.read_rejected({str(result.path)!r}) reads them"
    return Table(("rejected for", "by", "from"), rows, note)
