"""Asks Headrace how each Arrow type reaches functions, and writes the answers into docs/types.md.

    python tools/types_table.py

Needs the extras pandas and torch. A test holds that the page says what the code answers.
"""

from __future__ import annotations

import datetime as dt
import decimal
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import headrace as hr

PAGE = Path(__file__).resolve().parents[1] / "docs" / "types.md"
_MARKED = re.compile(r"(?<=<!-- types: begin -->\n).*?(?=<!-- types: end -->)", re.DOTALL)

_DAY, _TIME = dt.date(2026, 1, 2), dt.datetime(2026, 1, 2, 3, 4, 5)
_UTC = _TIME.replace(tzinfo=dt.UTC)
TYPES: dict[str, tuple[Any, Any]] = {  # what the page calls it; the type, and a value
    "`int8` … `int64`, `uint8` … `uint64`": (pa.int32(), 7),
    "`int64` beyond 2**53": (pa.int64(), 2**53 + 1),
    "`float16`, `float32`, `float64`": (pa.float32(), 0.5),
    "`bool`": (pa.bool_(), True),
    "`string`, `large_string`": (pa.string(), "a"),
    "`binary`": (pa.binary(), b"a"),
    "`date32`": (pa.date32(), _DAY),
    "`timestamp[us]`": (pa.timestamp("us"), _TIME),
    "`timestamp[us, UTC]`": (pa.timestamp("us", "UTC"), _UTC),
    "`duration[us]`": (pa.duration("us"), dt.timedelta(seconds=1)),
    "`time64[us]`": (pa.time64("us"), dt.time(1, 2)),
    "`decimal128(9, 2)`": (pa.decimal128(9, 2), decimal.Decimal("1.25")),
    "`dictionary` of strings": (pa.dictionary(pa.int32(), pa.string()), "a"),
    "`list` of floats": (pa.list_(pa.float32()), [0.5, 1.5]),
    "`fixed_size_list` of 2 floats": (pa.list_(pa.float32(), 2), [0.5, 1.5]),
    "`struct`": (pa.struct({"a": pa.int32()}), {"a": 1}),
    "`null`": (pa.null(), None),
}


def answers(kind: Any, value: Any, *, nulls: bool) -> tuple[str, str, str]:
    """Return how a column of a type reaches a function of numpy, of pandas and of PyTorch.

    >>> answers(pa.int32(), 7, nulls=True)
    ('`float64`, null: NaN', '`float64`, null: NaN', '`torch.float64`, null: NaN')
    """
    values = [value, None if nulls else value]
    data = hr.from_arrow(pa.table({"x": pa.array(values, kind)})).with_options(
        engine="inline", progress=False
    )
    return (
        _said(lambda: next(iter(data.iter_batches(batch_format="numpy")))["x"], _numpy, nulls),
        _said(lambda: next(iter(data.iter_batches(batch_format="pandas")))["x"], _pandas, nulls),
        _said(lambda: next(iter(data.iter_torch_batches()))["x"], _torch, nulls),
    )


def _said(look: Callable[[], Any], name: Callable[[Any], str], nulls: bool) -> str:
    try:
        column = look()
    except (hr.errors.HeadraceError, TypeError, ValueError):
        return "refused"
    words = name(column)
    return f"{words}, null: {_null(list(column)[1])}" if nulls else words


def _null(value: Any) -> str:
    if isinstance(value, np.datetime64 | np.timedelta64):
        return "NaT" if np.isnat(value) else str(value)
    text = str(value.item() if hasattr(value, "item") else value)
    return {"nan": "NaN"}.get(text, text)


def _numpy(column: Any) -> str:
    if column.dtype == object:
        return f"objects: `{_name(column[0])}`"
    shape = f" of shape (n, {', '.join(map(str, column.shape[1:]))})" if column.ndim > 1 else ""
    return f"`{column.dtype}`{shape}"


def _pandas(column: Any) -> str:
    if column.dtype == object:
        return f"objects: `{_name(column.iloc[0])}`"
    return f"`{column.dtype}`"


def _torch(column: Any) -> str:
    if isinstance(column, list):
        return f"a list of `{_name(column[0])}`"
    shape = f" of shape (n, {', '.join(map(str, column.shape[1:]))})" if column.ndim > 1 else ""
    return f"`{column.dtype}`{shape}"


def _name(value: Any) -> str:
    kind = type(value)
    return (
        kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__.split('.')[0]}.{kind.__name__}"
    )


def table() -> str:
    """Return the table for the page: a row for each type, and in a cell what nulls change."""
    lines = ["| Arrow | numpy | pandas | PyTorch |", "|---|---|---|---|"]
    for name, (kind, value) in TYPES.items():
        some = answers(kind, value, nulls=True)
        none = answers(kind, value, nulls=False)
        cells = [_cell(*each) for each in zip(none, some, strict=True)]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(none: str, some: str) -> str:
    """Say both: what comes without nulls, and with some.

    >>> _cell("`int32`", "`float64`, null: NaN"), _cell("`bool`", "refused"), _cell("refused", "refused")
    ('`int32`; with nulls `float64`, NaN', '`bool`; with nulls refused', 'refused')
    >>> _cell("`float32`", "`float32`, null: NaN")
    '`float32`, NaN'
    """
    kind, _, null = some.partition(", null: ")
    if kind == none:
        return f"{kind}, {null}" if null else kind
    return f"{none}; with nulls {kind}{f', {null}' if null else ''}"


def written(page: str) -> str:
    """Return the page with what the code answers now."""
    return _MARKED.sub(lambda _: f"\n{table()}\n", page)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
