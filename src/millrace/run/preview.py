"""The values of a row in a message: a few of them, shortened; or hidden."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa

from millrace.run.failures import shortened
from millrace.run.rows import Rows

COLUMNS = 8
CHARS = 60


def preview(batch: pa.RecordBatch) -> str:
    """Show a batch's first row: at most eight columns, and 60 characters of each.

    >>> preview(pa.record_batch({"id": [7], "text": ["it is " * 20]}))
    "id=7, text='it is it is it is it is it is … t is it is it is it is it is '"
    >>> preview(pa.record_batch({"image": [b"1234"]}))
    'image=4 bytes'
    """
    shown = [
        f"{name}={_short(column[0])}"
        for name, column in zip(batch.schema.names[:COLUMNS], batch.columns[:COLUMNS], strict=True)
    ]
    more = batch.num_columns - COLUMNS
    return ", ".join([*shown, f"and {more} columns more"] if more > 0 else shown)


def _short(value: pa.Scalar) -> str:
    kind = value.type
    if not value.is_valid:
        return "None"
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return f"{len(value.as_buffer()):,} bytes"
    if isinstance(kind, pa.FixedShapeTensorType):
        return f"a tensor of shape {tuple(kind.shape)}"
    if pa.types.is_nested(kind) and hasattr(value, "values") and len(value.values) > CHARS:
        return f"a list of {len(value.values):,}"
    return shortened(repr(value.as_py()), CHARS)


def hidden(text: str, rows: Rows) -> str:
    """Take a row's values out of an error's words; of several rows nobody knows which speak in it.

    >>> row = pa.record_batch({"fare": ["1o.5"], "n": [3]})
    >>> hidden("could not convert string to float: '1o.5' (3 rows)", Rows(row, ()))
    "could not convert string to float: '…' (… rows)"
    """
    if len(rows) != 1:
        return "(its words are hidden: they may hold data)" if text else ""
    values = sorted((_text(column[0]) for column in rows.batch.columns), key=len, reverse=True)
    for value in filter(None, values):
        text = re.sub(rf"(?<!\w){re.escape(value)}(?!\w)", "…", text)
    return text


def _text(value: Any) -> str:
    return str(value.as_py()) if value.is_valid else ""
