"""Columns as models want them: one array, a matrix, or texts; and the words for what was given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from headrace.errors import BadInput

Columns = Mapping[str, np.ndarray[Any, Any]]

_KINDS: tuple[tuple[type, str], ...] = (
    (str, "text"),
    (bytes, "bytes"),
    (list, "a list"),
    (dict, "a dict"),
    (np.ndarray, "an array"),
)


def shapes(columns: Columns) -> str:
    """Say what columns are, for messages.

    >>> shapes({"a": np.zeros((2, 3), np.float32), "b": np.array([None, "y"], object)})
    'a: float32 (2, 3), b: text (2,)'
    """
    return ", ".join(f"{name}: {kind_of_column(array)} {array.shape}" for name, array in columns.items()) or (
        "nothing"
    )


def kind_of_column(array: np.ndarray[Any, Any]) -> str:
    """Return the dtype of an array; of objects, what the first that is not null is, as people call it."""
    if array.dtype.kind in "US":
        return "text" if array.dtype.kind == "U" else "bytes"
    if array.dtype.kind != "O":
        return str(array.dtype)
    first = next((value for value in array.flat if value is not None), None)
    if first is None:
        return "nulls"
    return next((words for kind, words in _KINDS if isinstance(first, kind)), type(first).__name__)


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
                f"several columns are put side by side as numbers, but {name!r} is "
                f"{kind_of_column(array)}; it was given {shapes(columns)}. Let inputs=[…] name columns of numbers "
                "only, or make numbers of this one before"
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
        raise BadInput(f"column {name!r} should be {wanted}, but it is {kind_of_column(array)} {array.shape}")
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
        found = (name for name, array in columns.items() if kind_of_column(array) == "text")
        raise BadInput(
            f"the model takes one column of texts, but it was given {shapes(columns)}. Choose one of them: "
            f"inputs={next(found, '…')!r}"
        )
    ((name, array),) = columns.items()
    check_texts(name, array)
    listed: list[str] = array.tolist()
    return listed


def check_texts(name: str, array: np.ndarray[Any, Any]) -> None:
    """Raise ``BadInput`` for the first value of a column that is no text."""
    if array.dtype.kind == "U":
        return
    place = "row" if array.ndim == 1 else "value"
    for row, value in enumerate(array.ravel().tolist()):
        if not isinstance(value, str):
            found, todo = f"of type {type(value).__name__}", ""
            if value is None:
                found = "a null"
                todo = ". Drop such rows before with filter, or put a text in their place with map_batches"
            raise BadInput(
                f"column {name!r} should hold texts, but {place} {row} of the batch is {found}{todo}"
            )


def pieces(columns: Columns, size: int) -> Iterator[tuple[dict[str, np.ndarray[Any, Any]], int]]:
    """Cut columns into pieces of ``size`` rows, and say how many of these count: the last is filled up.

    A row that is there is repeated for that, since a model takes it for sure. No rows are one piece too.

    >>> [(piece["x"].tolist(), there) for piece, there in pieces({"x": np.array([1, 2, 3])}, 2)]
    [([1, 2], 2), ([3, 3], 1)]
    """
    rows = len(next(iter(columns.values())))
    for start in range(0, max(rows, 1), size):
        there = min(size, rows - start)
        piece = {name: array[start : start + size] for name, array in columns.items()}
        yield {name: _filled(array, size) for name, array in piece.items()}, there


def _filled(array: np.ndarray[Any, Any], size: int) -> np.ndarray[Any, Any]:
    if len(array) == size:
        return array
    if not len(array):
        return np.full((size, *array.shape[1:]), "" if array.dtype.kind == "O" else 0, array.dtype)
    return np.concatenate([array, np.repeat(array[-1:], size - len(array), axis=0)])
