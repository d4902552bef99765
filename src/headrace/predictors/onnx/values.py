"""What goes into an ONNX model and what comes out, as arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from headrace.core.arrow.model_columns import cast, check_texts, kind_of_column, shapes
from headrace.errors import BadInput, BadReturn

Array = np.ndarray[Any, Any]

_DTYPES = {
    "float": "float32",
    "double": "float64",
    "float16": "float16",
    "string": "object",
    **{
        name: name
        for name in ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
    },
}


class OnnxInput:
    """One input of a model: what may go into it."""

    def __init__(self, described: Any) -> None:
        self.type: str = described.type
        self.shape: list[Any] = list(described.shape)
        self.dtype = _DTYPES.get(_element(described.type))

    def __str__(self) -> str:
        dtype = "text" if self.dtype == "object" else self.dtype
        return f"{dtype} ({', '.join('any' if not isinstance(n, int) else str(n) for n in self.shape)})"

    def array(self, name: str, array: Array, batch: Mapping[str, Array]) -> Array:
        """Return ``array`` as this input takes it, or raise ``BadInput``."""
        result = _as_strings(name, array) if self.dtype == "object" else cast(name, array, self.dtype)
        if (
            result.ndim == 1
            and len(self.shape) == 2
            and (self.shape[1] == 1 or not isinstance(self.shape[1], int))
        ):
            result = result.reshape(-1, 1)
        if self.shape and not self._fits(result.shape):
            choose = ". Choose columns with inputs=[…]" if len(batch) > 1 else ""
            raise BadInput(
                f"the model takes {self}, but it was given {kind_of_column(result)} {result.shape} "
                f"({shapes(batch)}){choose}"
            )
        return np.ascontiguousarray(result)

    def is_whole(self, array: Array) -> bool:
        """Say whether a column is the whole input, rather than a feature of a matrix."""
        if array.ndim == 1 and len(self.shape) == 2:
            return self.shape[1] == 1 or self.dtype == "object"
        return self._fits(array.shape)

    def _fits(self, shape: tuple[int, ...]) -> bool:
        """Compare all dimensions but the first; names of dimensions are free."""
        return len(shape) == len(self.shape) and all(
            not isinstance(wanted, int) or wanted == given
            for wanted, given in zip(self.shape[1:], shape[1:], strict=True)
        )


def fixed_rows(inputs: Mapping[str, OnnxInput]) -> int | None:
    """Return the number of rows that a model was exported for, None if it takes any."""
    firsts = {each.shape[0] for each in inputs.values() if each.shape}
    first = firsts.pop() if len(firsts) == 1 else None
    return first if isinstance(first, int) and first > 0 else None


def _as_strings(name: str, array: Array) -> Array:
    check_texts(name, array)
    return array.astype(object, copy=False)


def joined(parts: Sequence[Any]) -> Any:
    """Put the pieces of one output together again."""
    if isinstance(parts[0], list):
        return [each for part in parts for each in part]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def keys_as_columns(name: str, maps: list[Any]) -> dict[str, Array]:
    """Turn a dict per row into a column per key."""
    keys = list(maps[0]) if maps else []
    if any(list(each) != keys for each in maps):
        raise BadReturn(
            f"its output {name!r} is a map with other keys in each row. Choose others with outputs=[…]"
        )
    return {f"{name}_{key}": np.array([each[key] for each in maps], _number(maps[0][key])) for key in keys}


def _number(value: Any) -> Any:
    return np.float32 if isinstance(value, float) else None  # a map's floats are float32 in ONNX Runtime


def is_tensor(kind: str) -> bool:
    """Say whether ONNX Runtime's type is a tensor that numpy has, such as ``tensor(float)``."""
    return _element(kind) in _DTYPES


def _element(kind: str) -> str:
    return kind[len("tensor(") : -1] if kind.startswith("tensor(") else kind
