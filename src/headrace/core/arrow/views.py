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

from headrace.core.arrow.batch_formats import BatchFormat, rows_of, to_format
from headrace.core.arrow.input_view import InputRowsView, InputView
from headrace.core.arrow.layout import own

Form = BatchFormat | Literal["rows"]

_TEXTS = (
    *(pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
    *(pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view),
)

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
    return to_format(batch, batch_format, formed=formed, dense=not formed)


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
    made: dict[str, Any] = to_format(with_copies(batch, "numpy") if live else batch, "numpy", dense=True)
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
    columns = [own(column) if _is_copied(column.type, form) else column for column in batch.columns]
    if all(column is before for column, before in zip(columns, batch.columns, strict=True)):
        return batch
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _is_copied(type_: pa.DataType, form: Form) -> bool:
    """Say whether a view may show the memory of a column; of text, it has values that nobody can change."""
    return form == "pyarrow" or not any(test(type_) for test in _TEXTS)
