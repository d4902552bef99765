"""What models take and give: columns as one array, as a matrix or as texts, and results as columns."""

from __future__ import annotations

import datetime
import decimal
import math
import numbers
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.core.arrow.layout import ConversionError
from headrace.errors import BadInput, nearest

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


@dataclass(frozen=True, slots=True)
class ModelInput:
    """One input of a model: its dtype (or ``"text"``), and its shape, where None is free; no shape: any will do."""

    dtype: str
    shape: tuple[int | None, ...] | None

    def __str__(self) -> str:
        if self.shape is None:
            return self.dtype
        return f"{self.dtype} ({', '.join('any' if size is None else str(size) for size in self.shape)})"

    def array(self, name: str, array: np.ndarray[Any, Any], columns: Columns) -> np.ndarray[Any, Any]:
        """Return a column as this input takes it, or raise ``BadInput``, which says what all ``columns`` are."""
        if self.dtype == "text":
            check_texts(name, array)
            result = array.astype(object, copy=False)
        else:
            result = cast(name, array, self.dtype)
        if self.shape is None:
            return result
        if result.ndim == 1 and len(self.shape) == 2 and self.shape[1] in (1, None):
            result = result.reshape(-1, 1)
        if not self._fits(result.shape):
            choose = ". Choose columns with inputs=[…]" if len(columns) > 1 else ""
            raise BadInput(
                f"the model takes {self}, but it was given {kind_of_column(result)} {result.shape} "
                f"({shapes(columns)}){choose}"
            )
        return result

    def is_whole(self, array: np.ndarray[Any, Any]) -> bool:
        """Say whether a column is the whole input, rather than a feature of a matrix."""
        if self.shape is None:
            return False
        if array.ndim == 1 and len(self.shape) == 2:
            return self.shape[1] == 1 or self.dtype == "text"
        return self._fits(array.shape)

    def _fits(self, shape: tuple[int, ...]) -> bool:
        wanted = self.shape or ()
        return len(shape) == len(wanted) and all(
            size is None or size == given for size, given in zip(wanted[1:], shape[1:], strict=True)
        )


def fed(inputs: Mapping[str, ModelInput], columns: Columns) -> dict[str, np.ndarray[Any, Any]]:
    """Give each input its column, by name; a single input gets the only column, or all side by side."""
    if len(inputs) == 1:
        ((name, wanted),) = inputs.items()
        if len(columns) == 1:
            ((column, array),) = columns.items()
        elif name in columns and wanted.is_whole(columns[name]):  # or it is one of several features
            column, array = name, columns[name]
        else:
            column, array = name, features(columns, None if wanted.dtype == "text" else wanted.dtype)
        return {name: wanted.array(column, array, columns)}
    if inputs.keys() <= columns.keys():
        return {name: each.array(name, columns[name], columns) for name, each in inputs.items()}
    raise no_such_inputs(inputs, columns)


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


# ---------------------------------------------------------------- what a model or function gave back

_SCALARS = (
    str,
    bytes,
    numbers.Number,
    decimal.Decimal,
    datetime.date,
    datetime.time,
    datetime.timedelta,
    np.generic,
)


def has_names(result: Any) -> bool:
    """Say whether a result is a dict, a RecordBatch, or a table of whatever library."""
    if hasattr(result, "keys") or isinstance(result, (pa.RecordBatch, pa.Table)):
        return not hasattr(result, "iloc") or hasattr(result, "columns")  # a Series has keys, too
    return hasattr(result, "columns") and (hasattr(result, "iloc") or hasattr(result, "to_arrow"))


def is_scalar(result: Any) -> bool:
    """Say whether a result is one value, of Python's or of numpy's, and not a column of them."""
    return isinstance(result, _SCALARS) or (isinstance(result, np.ndarray) and result.ndim == 0)


def flat(values: Any) -> Any:
    """Make one number per row, (n, 1) as many networks give it, a plain column."""
    shape = getattr(values, "shape", None)
    if shape is not None and len(shape) > 1 and 0 in tuple(shape[1:]):
        raise ConversionError(
            f"it returned an array of shape {tuple(shape)}, which has no values for any row"
        )
    if shape is not None and len(shape) == 2 and shape[1] == 1 and hasattr(values, "reshape"):
        return values.reshape(-1)
    return values
