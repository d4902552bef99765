"""What the user's code gets to see of a batch: whether that is the batch's own memory is decided here, and only here.

A batch is read again: it is tried again when a call fails, its columns are carried on, and it may be the caller's own
table. So what is handed out as it lies is read-only. Some libraries write to such memory all the same: they take its
address and never ask. Where one of them is loaded, the columns that a view would share are copied first, and once for
each call. A function that was never called yet gets a copy too: its first call may be what imports such a library.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from headrace.core.arrow.batch_formats import (
    BatchFormat,
    is_tensor,
    rows_of,
    shows_arrays,
    to_format,
)
from headrace.core.arrow.buffers import NUMPY_OF
from headrace.core.arrow.input_view import InputRowsView, InputView
from headrace.core.arrow.layout import own
from headrace.core.arrow.model_columns import to_model, to_tensors

Form = BatchFormat | Literal["rows"]

WRITERS = (
    "torch",
    "tensorflow",
    "jax",
    "numba",  # guvectorize
    "scipy.linalg",  # overwrite_a=True
    "cffi",
    "_cffi_backend",
    "cupy",
    "cv2",
    "onnxruntime",  # OrtValue.update_inplace
    "paddle",
    "mxnet",
    "mlx",
)
"""Libraries that can write to an array that says it is read-only."""


def make_view(
    batch: pa.RecordBatch,
    batch_format: BatchFormat,
    *,
    tried: bool,
    formed: bool = True,
    writable: bool = False,
) -> tuple[Any, InputView]:
    """Return the view of a batch that a function gets, and the ``InputView`` that recognises it in the result.

    ``tried``: a call of the function has succeeded before. ``formed`` as for ``to_format``. Models get
    every column that can be one array as one, and convert it themselves. ``writable``: arrays and frames are the
    function's own, to be written to.
    """
    safe = protected(batch, batch_format, tried=tried and not writable)
    view = _view(safe, batch_format, formed)
    if writable:
        view = _own_view(view)
    elif tried and not is_writer_loaded():
        return view, InputView(batch, view)

    def remake(place: int) -> Any:
        (array,) = _view(batch.select([place]), "numpy", formed).values()
        return array

    return view, InputView(batch, view, safe, remake)


def _own_view(view: Any) -> Any:
    """Return the view with arrays that can be written to; Arrow has none."""
    if isinstance(view, dict):
        return {name: array if array.flags.writeable else array.copy() for name, array in view.items()}
    return view.copy() if hasattr(view, "iloc") else view


def _view(batch: pa.RecordBatch, batch_format: BatchFormat, formed: bool) -> Any:
    return to_format(batch, batch_format) if formed else to_model(batch, batch_format)


def make_rows_view(batch: pa.RecordBatch, *, tried: bool) -> InputRowsView:
    """Return the rows of a batch for a function that gets one at a time."""
    return InputRowsView(batch, protected(batch, "rows", tried=tried))


def protected(batch: pa.RecordBatch, form: Form, *, tried: bool) -> pa.RecordBatch:
    """Return this batch if the user's code cannot write to it, otherwise one with copies."""
    return batch if tried and not is_writer_loaded() else with_copies(batch, form)


def output_view(batch: pa.RecordBatch, batch_format: BatchFormat, *, live: bool) -> Any:
    """Return an output batch for the user; a copy if it is ``live``: its memory is read again later."""
    return to_format(with_copies(batch, batch_format) if live else batch, batch_format)


def output_tensors(batch: pa.RecordBatch, *, live: bool) -> dict[str, Any]:
    """Return a batch as ``output_view`` does, as a dict of arrays for what makes tensors of them."""
    made = to_tensors(with_copies(batch, "numpy") if live else batch)
    for field in batch.schema:
        if pa.types.is_null(field.type):  # a column of nothing else, in all batches
            made[field.name] = np.full(batch.num_rows, np.nan)
    return made


def output_rows(batch: pa.RecordBatch, *, live: bool) -> Iterator[dict[str, Any]]:
    """Yield the rows of a batch for whoever asked for the output; ``live`` as for ``output_view``."""
    return rows_of(with_copies(batch, "rows") if live else batch)


def is_writer_loaded() -> bool:
    """Say whether there may be code here that writes to read-only arrays."""
    return any(name in sys.modules for name in WRITERS)


def with_copies(batch: pa.RecordBatch, form: Form) -> pa.RecordBatch:
    """Return the batch with copies of all columns whose memory a view would share."""
    columns = [
        own(column) if _is_shared(field, form) else column
        for field, column in zip(batch.schema, batch.columns, strict=True)
    ]
    if all(column is before for column, before in zip(columns, batch.columns, strict=True)):
        return batch
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _is_shared(field: pa.Field, form: Form) -> bool:
    """Say whether a view shows the column's own memory, or some of it."""
    if form == "pyarrow":
        return True
    if form == "rows":
        return shows_arrays(field)
    if form == "pandas":
        return not _is_text(field.type)
    return _lies_bare(field.type)


def _is_text(type_: pa.DataType) -> bool:
    """Say whether pandas holds such values as Python objects, or as strings that nobody can change."""
    return any(
        kind(type_)
        for kind in (
            pa.types.is_string,
            pa.types.is_large_string,
            pa.types.is_string_view,
            pa.types.is_binary,
            pa.types.is_large_binary,
            pa.types.is_binary_view,
            pa.types.is_decimal,
            pa.types.is_null,
        )
    )


def _lies_bare(type_: pa.DataType) -> bool:
    """Say whether arrays of numpy can view values of this type where they lie."""
    if type_ in NUMPY_OF or is_tensor(type_) or pa.types.is_temporal(type_):
        return True
    if isinstance(type_, pa.BaseExtensionType):
        return _lies_bare(type_.storage_type)
    if pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_):
        return _lies_bare(type_.value_type)
    return False
