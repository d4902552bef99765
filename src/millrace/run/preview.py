"""The values of a row in a message: a few of them, shortened; or hidden."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from millrace.run.failures import shortened
from millrace.run.rows import Rows
from millrace.screen import one_line, visible

COLUMNS = 8
CHARS = 60
LEAVES = 1_000  # within one value


def preview(batch: pa.RecordBatch) -> str:
    """Show a batch's first row: at most eight columns, and 60 characters of each. Never raises.

    >>> preview(pa.record_batch({"id": [7], "text": ["it is " * 20]}))
    "id=7, text='it is it is it is it is it is … t is it is it is it is it is '"
    >>> preview(pa.record_batch({"image": [b"1234"], "box": [{"x": 1, "y": 2}]}))
    "image=4 bytes, box={'x': 1, 'y': 2}"
    """
    shown = [
        f"{_name(batch, at)}={_shown(batch.column(at))}" for at in range(min(batch.num_columns, COLUMNS))
    ]
    more = batch.num_columns - COLUMNS
    return ", ".join([*shown, f"and {more} columns more"] if more > 0 else shown)


def _name(batch: pa.RecordBatch, at: int) -> str:
    return shortened(one_line(batch.schema.field(at).name), CHARS)


def _shown(column: pa.Array) -> str:
    """Show the first value; what Python has no value for, as Arrow prints it."""
    for show in (_short, _as_arrow_prints):
        try:
            return show(column)
        except Exception:  # Arrow's values hold what Python's cannot, and a row must be named all the same
            continue
    return "a value that cannot be shown"


def _short(column: pa.Array) -> str:
    value, kind = column[0], column.type
    if not value.is_valid:
        return "None"
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return f"{len(value.as_buffer()):,} bytes"
    if isinstance(kind, pa.FixedShapeTensorType):
        return f"a tensor of shape {tuple(kind.shape)}"
    if _is_list(kind) and len(value.values) > CHARS:
        return f"a list of {len(value.values):,}"
    if pa.types.is_nested(kind) and _leaves(column.slice(0, 1)) > LEAVES:
        return f"nested values, more than {LEAVES:,} of them"
    return shortened(repr(value.as_py()), CHARS)


def _as_arrow_prints(column: pa.Array) -> str:
    printed: str = column.slice(0, 1).to_string(window=2, container_window=2)
    return shortened(one_line(" ".join(printed.split()).removeprefix("[ ").removesuffix(" ]")), CHARS)


def _is_list(kind: pa.DataType) -> bool:
    types = pa.types
    tests = (types.is_list, types.is_large_list, types.is_fixed_size_list, types.is_map)
    views = (types.is_list_view, types.is_large_list_view)
    return any(test(kind) for test in (*tests, *views))


def _leaves(column: pa.Array) -> int:
    """Count the values that are not nested, as far as more than ``LEAVES`` of them."""
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if not pa.types.is_nested(column.type) or len(column) > LEAVES:
        return len(column)
    inner = column.flatten()
    total = 0
    for each in inner if isinstance(inner, list) else [inner]:
        total += _leaves(each)
        if total > LEAVES:
            break
    return total


def hidden(text: str, rows: Rows) -> str:
    """Take a row's values out of an error's words; of several rows nobody knows which speak in it.

    >>> row = pa.record_batch({"fare": ["1o.5"], "n": [3]})
    >>> hidden("could not convert string to float: '1o.5' (3 rows)", Rows(row, ()))
    "could not convert string to float: '…' (… rows)"
    """
    all_of_it = "(its words are hidden: they may hold data)" if text else ""
    if len(rows) != 1:
        return all_of_it
    try:
        if sum(_leaves(column.slice(0, 1)) for column in rows.batch.columns) > LEAVES:
            return all_of_it
        values = {form for column in rows.batch.columns for form in _forms(column[0].as_py())}
    except Exception:  # what cannot be read cannot be looked for
        return all_of_it
    for value in sorted(filter(None, values), key=len, reverse=True):
        text = re.sub(rf"(?<!\w){re.escape(value)}(?!\w)", "…", text)
    return text


def _forms(value: Any) -> Iterator[str]:
    """Yield the texts in which a value, or one within it, may stand in a message."""
    if isinstance(value, dict):
        inner: Iterable[Any] = value.values()
    elif isinstance(value, (list, tuple)):
        inner = value
    else:
        inner = ()
    for each in inner:
        yield from _forms(each)
    if value is not None:
        yield from (
            str(value),
            visible(str(value)),
            repr(value)[1:-1] if isinstance(value, (str, bytes)) else "",
        )
