"""Batches as what takes tensors wants them: every column that can be is one array of numbers."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pyarrow as pa

from headrace.core.arrow import forms
from headrace.core.arrow.batch_formats import BatchFormat, to_format, to_numpy
from headrace.core.arrow.ragged import RaggedTensorType

Array = np.ndarray[Any, Any]


def to_tensors(batch: pa.RecordBatch, *, ragged: bool = True, formed: bool = True) -> dict[str, Array]:
    """View columns as ``to_format`` does; but lists that are of one length in this batch become one array.

    So do ragged tensors of one shape, if ``ragged``. Embeddings and token ids in Parquet files mostly are lists.
    """
    dense: dict[str, Array | None] = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
            dense[name] = _of_one_length(column)
        elif ragged and isinstance(column.type, RaggedTensorType):
            dense[name] = _of_one_shape(column)
    if not dense:
        return cast("dict[str, Array]", to_format(batch, "numpy", formed=formed))
    others = [name for name in batch.schema.names if dense.get(name) is None]
    rest: dict[str, Array] = to_format(batch.select(others), "numpy", formed=formed)
    made = {}
    for name in batch.schema.names:
        array = dense.get(name)
        made[name] = rest[name] if array is None else array
    return made


def to_model(batch: pa.RecordBatch, batch_format: BatchFormat) -> Any:
    """View a batch as a model of a library gets it, which makes of it what it needs."""
    return (
        to_tensors(batch, formed=False)
        if batch_format == "numpy"
        else to_format(batch, batch_format, formed=False)
    )


def _of_one_length(column: pa.Array) -> Array | None:
    """View lists as an array (n, k…), without a copy; None if they are of several lengths, or hold no numbers.

    None, too, where integers stand beside nulls and a float would round one.
    """
    if not pa.types.is_list(column.type) and not pa.types.is_large_list(column.type):
        values = to_numpy(column)
        return None if values.dtype.kind == "O" or forms.rounds(column) else values
    if column.null_count or not len(column):
        return None
    ends = to_numpy(column.offsets)
    lengths = np.diff(ends)
    if not lengths[0] or (lengths != lengths[0]).any():
        return None
    inner = _of_one_length(column.values.slice(int(ends[0]), int(ends[-1] - ends[0])))
    return None if inner is None else np.reshape(inner, (len(column), int(lengths[0]), *inner.shape[1:]))


def _of_one_shape(column: pa.Array) -> Array | None:
    arrays: list[Any] = to_numpy(column).tolist()
    if not arrays or any(each is None or each.shape != arrays[0].shape for each in arrays):
        return None
    made: Array = np.stack(arrays)
    made.flags.writeable = False
    return made
