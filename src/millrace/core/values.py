"""What the user's code gives back → Arrow: batches and rows. Single columns are made in ``core.columns``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.core.batch import empty_columns, one_batch
from millrace.core.columns import a as a
from millrace.core.columns import column_from as column_from
from millrace.core.columns import keys_of
from millrace.core.frames import as_before, from_frame, varies
from millrace.core.handed import Handed, HandedRows, is_plain
from millrace.core.layout import ConversionError as ConversionError


def from_result(result: Any, handed: Handed | None = None) -> pa.RecordBatch:
    """Turn what a ``map_batches`` function returned into a batch that is nobody else's memory.

    A dict of columns, a DataFrame, a Table or a RecordBatch will do; anything else, and columns of different
    lengths, raise ``ConversionError``. ``handed`` is what the function got.
    """
    handed = handed or Handed(empty_columns(0))
    if isinstance(result, Mapping):
        if not result:
            raise ConversionError(
                "it returned a dict without columns; to drop all rows, return columns without rows"
            )
        return from_columns(result, handed)
    if isinstance(result, pa.RecordBatch):
        return handed.owned_batch(_unambiguous(result))
    if isinstance(result, pa.Table):
        return handed.owned_batch(_unambiguous(one_batch(result)))
    if hasattr(result, "columns") and hasattr(result, "iloc"):
        return handed.mended(handed.owned_batch(_unambiguous(from_frame(result, handed))))
    if hasattr(result, "columns") and hasattr(result, "to_arrow"):  # polars
        return handed.owned_batch(one_batch(result.to_arrow()))
    if result is None:
        raise ConversionError("it returned None (is a `return` missing?)")
    raise ConversionError(
        f"it returned {a(result)}; a batch is a dict of columns, a pandas DataFrame, a pyarrow Table or "
        f"RecordBatch{_naming(result)}"
    )


def _naming(result: Any) -> str:
    if isinstance(result, list) and result and isinstance(result[0], Mapping):
        return (
            ". Rows one by one are for flat_map; here, make columns of them: "
            '`return {"x": [row["x"] for row in rows]}`'
        )
    column = isinstance(result, (list, np.ndarray)) or hasattr(result, "iloc") or hasattr(result, "detach")
    name = '. Name the column: `return {"prediction": values}`; or use predict, which keeps the other columns too'
    return name if column else ""


def _unambiguous(batch: pa.RecordBatch) -> pa.RecordBatch:
    names = batch.schema.names
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ConversionError(f"two of its columns are named {twice!r}")
    return batch


def from_columns(columns: Mapping[Any, Any], handed: Handed | None = None) -> pa.RecordBatch:
    """Build a batch from a dict of column values; see ``column_from`` for what a column may be."""
    arrays: list[pa.Array] = []
    for name, values in columns.items():
        if not isinstance(name, str):
            raise ConversionError(f"column names are strings, but one is {name!r}")
        try:
            arrays.append(_column(name, values, handed))
        except ConversionError as error:
            raise ConversionError(f"column {name!r}: {error}") from error.__cause__
    lengths = {name: len(array) for name, array in zip(columns, arrays, strict=True)}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name}: {length}" for name, length in lengths.items())
        raise ConversionError(f"its columns have different lengths ({listed})")
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


def _column(name: str, values: Any, handed: Handed | None) -> pa.Array:
    if handed is None:
        return column_from(values)
    place = handed.place_of(values)
    if place is not None:
        before = handed.column(place)
        return before if is_plain(before, arrays=True) else _typed(values.tolist(), before.type, True)
    if isinstance(values, np.ndarray) and values.dtype == object and values.ndim == 1:
        return _typed(values.tolist(), handed.type_of(name), False, ragged=True)
    if isinstance(values, np.ndarray) and handed.may_be_written:
        values = values.copy()  # it may be a part of what was handed out, and be written to later
    if isinstance(values, (list, tuple)):
        return _typed(values, handed.type_of(name), False)
    made = column_from(values)
    return made if isinstance(values, np.ndarray) or hasattr(values, "detach") else handed.owned(made)


def _typed(values: Sequence[Any], like: pa.DataType | None, same: bool, *, ragged: bool = False) -> pa.Array:
    """Convert a list; to the type ``like`` if it holds the ``same`` objects, or if only that type can tell."""
    ragged = ragged or varies(like)
    if like is None or not (same or pa.types.is_map(like) or pa.types.is_decimal(like)):
        return column_from(values, ragged=ragged)
    try:
        made = column_from(values, ragged=ragged)
    except ConversionError:
        made = as_before(values, like)
        if made is None:
            raise
        return made
    if made.type == like or not (same or pa.types.is_map(like) or pa.types.is_decimal(made.type)):
        return made
    again = as_before(values, like)
    return made if again is None else again


def from_rows(
    rows: Sequence[Mapping[str, Any]], handed: HandedRows | None = None, index: Sequence[int] = ()
) -> pa.RecordBatch:
    """Build a batch from row dicts; a key that a row lacks is null there.

    ``handed`` is what the function got, ``index`` the rows of it that these were made of.
    """
    names = keys_of(rows)
    if not names:
        return empty_columns(len(rows))
    columns: dict[str, Any] = {}
    same: list[str] = []
    for name in names:
        values: Any = [row.get(name) for row in rows]
        before = handed.column(name, values, index) if handed is not None else None
        if handed is not None and isinstance(name, str):
            try:
                if before is None:
                    values = _typed(values, handed.type_of(name), False)
                else:
                    same.append(name)
                    values = before if is_plain(before, arrays=False) else _typed(values, before.type, True)
            except ConversionError as error:
                raise ConversionError(f"column {name!r}: {error}") from error.__cause__
        columns[name] = values
    made = from_columns(columns)
    return handed.marked(made, same) if handed is not None and same else made
