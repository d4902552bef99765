"""Columns as models want them: one array, a matrix, or texts; and the words for what was given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from millrace.errors import BadInput

Columns = Mapping[str, np.ndarray[Any, Any]]


def shapes(columns: Columns) -> str:
    """Say what columns are, for messages.

    >>> shapes({"a": np.zeros((2, 3), np.float32), "b": np.array(["x", "y"], object)})
    'a: float32 (2, 3), b: object (2,)'
    """
    return ", ".join(f"{name}: {array.dtype} {array.shape}" for name, array in columns.items()) or "nothing"


def features(columns: Columns, dtype: Any = None) -> np.ndarray[Any, Any]:
    """Return one column as it is, or several side by side as a matrix (n, k) of their common dtype.

    Columns of shape (n, j) take j places. With ``dtype``, values are cast as ``cast`` does.
    """
    if not columns:
        raise BadInput("the model was given no columns")
    if len(columns) == 1:
        ((name, array),) = columns.items()
        return array if dtype is None else cast(name, array, dtype)
    for name, array in columns.items():
        if array.dtype.kind not in "biuf":
            raise BadInput(
                f"several columns are put side by side as numbers, but {name!r} is {array.dtype}; it was given "
                f"{shapes(columns)}. Name the model's inputs with inputs=[…], or prepare them before"
            )
    kind = np.dtype(dtype) if dtype is not None else np.result_type(*columns.values())
    widths = [int(np.prod(array.shape[1:])) for array in columns.values()]
    rows = len(next(iter(columns.values())))
    made = np.empty((rows, sum(widths)), kind)
    at = 0
    for (name, array), width in zip(columns.items(), widths, strict=True):
        made[:, at : at + width] = cast(name, array, kind).reshape(rows, width)
        at += width
    return made


def cast(name: str, array: np.ndarray[Any, Any], dtype: Any) -> np.ndarray[Any, Any]:
    """Return ``array`` as ``dtype``; a copy only if it has another. Raises ``BadInput`` if values would change.

    Numbers may become floats of any width (rounded); they become integers only if each stays what it is.
    """
    wanted = np.dtype(dtype)
    if array.dtype == wanted:
        return array
    if array.dtype.kind not in "biuf" or wanted.kind not in "biuf":
        raise BadInput(f"column {name!r} should be {wanted}, but it is {array.dtype} {array.shape}")
    with np.errstate(invalid="ignore", over="ignore"):
        made = array.astype(wanted)
    if wanted.kind != "f" and not np.array_equal(made, array):
        raise BadInput(
            f"column {name!r} should be {wanted}, but it is {array.dtype} with values that do not fit"
        )
    return made


def texts(columns: Columns) -> list[str]:
    """Return the one column of strings as a list; raises ``BadInput`` for anything else, nulls included."""
    if len(columns) != 1:
        raise BadInput(
            f"the model takes one column of texts, but it was given {shapes(columns)}. Name it: inputs='text'"
        )
    ((name, array),) = columns.items()
    listed: list[Any] = array.tolist()
    for row, value in enumerate(listed):
        if not isinstance(value, str):
            found = "a null" if value is None else f"{type(value).__name__}"
            raise BadInput(f"column {name!r} should hold texts, but row {row} of the batch is {found}")
    return listed
