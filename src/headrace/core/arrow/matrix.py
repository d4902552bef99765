"""The matrix that a fitted model takes: its features in their order, named and counted."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import pyarrow as pa

from headrace.core.arrow import forms
from headrace.core.arrow.batch_formats import BatchFormat, to_format, to_numpy
from headrace.core.arrow.ragged import RaggedTensorType
from headrace.core.inputs import Columns, features, shapes
from headrace.errors import BadInput, nearest

_SHOWN = 12


def listed(names: Iterable[str]) -> str:
    """Show names, for messages; the first of them where they are many.

    >>> listed(["a", "b"])
    "'a', 'b'"
    >>> listed(f"c{i}" for i in range(64))
    "'c0', 'c1', 'c2', 'c3', 'c4', 'c5', 'c6', 'c7', 'c8', 'c9', 'c10', 'c11', … (64 in all)"
    """
    known = list(names)
    more = f", … ({len(known)} in all)" if len(known) > _SHOWN else ""
    return ", ".join(map(repr, known[:_SHOWN])) + more


def check_names(names: Sequence[str], given: Sequence[str]) -> None:
    """Raise ``BadInput`` unless each of ``names``, which the model was fitted with, is given."""
    absent = [name for name in names if name not in given]
    if absent:
        raise BadInput(
            f"the model was fitted with the columns {listed(names)}, but it was given {listed(given)}: there is "
            f"no {listed(absent)}.{_instead(absent[0], names, given)}"
        )


def no_such_inputs(inputs: Mapping[str, Any], columns: Columns) -> BadInput:
    """Return the error for a model with inputs that have names, if not all of these are among the columns.

    >>> print(no_such_inputs({"a": "int64 (any)", "b": "int64 (any)"}, {"a": np.arange(2), "bb": np.arange(2)}))
    the model takes the inputs a: int64 (any), b: int64 (any), but it was given a: int64 (2,), bb: int64 (2,): there \
is no 'b'. Did you mean 'bb'? Give it columns of these names with inputs=['a', 'b']
    """
    absent = [name for name in inputs if name not in columns]
    return BadInput(
        f"the model takes the inputs {', '.join(f'{name}: {each}' for name, each in inputs.items())}, but it was "
        f"given {shapes(columns)}: there is no {listed(absent)}.{_instead(absent[0], inputs, columns)} Give it "
        f"columns of these names with inputs=[{listed(inputs)}]"
    )


def _instead(name: str, wanted: Iterable[str], given: Iterable[str]) -> str:
    """Return what ``name`` may be called here, if it is not one that is wanted itself."""
    taken = set(wanted)
    return nearest(name, [each for each in given if each not in taken])


def matrix(
    columns: Columns, *, names: Sequence[str] | None = None, count: int | None = None, dtype: Any = None
) -> np.ndarray[Any, Any]:
    """Return columns of numbers as the matrix (n, count) of a model's features.

    With ``names``, columns are taken by name, and others left out; but one column of shape (n, k…) that has
    none of the names is taken as the matrix itself. Raises ``BadInput`` for what is missing or no number.

    >>> matrix({"b": np.array([1, 2]), "a": np.array([0.5, 1.5])}, names=["a", "b"])
    array([[0.5, 1. ],
           [1.5, 2. ]])
    """
    if names is not None and not _is_matrix(columns, names):
        check_names(names, list(columns))
        columns = {name: columns[name] for name in names}
    made = features(columns, dtype)
    if made.dtype.kind not in "biuf":
        raise BadInput(f"the model takes numbers, but it was given {shapes(columns)}")
    width = math.prod(made.shape[1:])
    if count is not None and width != count:
        raise BadInput(f"the model takes {count} features, but it was given {width}: {shapes(columns)}")
    return made if made.ndim == 2 else made.reshape(len(made), width)


def _is_matrix(columns: Columns, names: Sequence[str]) -> bool:
    return len(columns) == 1 and all(array.ndim > 1 and name not in names for name, array in columns.items())


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
