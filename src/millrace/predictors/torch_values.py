"""Columns as tensors of their own, and results as columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from millrace.core.inputs import Columns, cast, features
from millrace.errors import BadInput, BadReturn


@dataclass(frozen=True, slots=True)
class Inputs:
    """How a module takes its inputs: on which device, in which floating dtype, under which names.

    ``column``: it begins with a layer of one feature, so that numbers (n,) are given to it as (n, 1).
    """

    device: Any
    floating: Any
    names: tuple[str, ...]
    column: bool = False

    def of(self, batch: Columns) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return positional and named arguments: one column as it is, several by name or side by side."""
        if len(batch) == 1:
            ((name, array),) = batch.items()
            tensor = self._tensor(name, array)
            if self.column and tensor.ndim == 1:
                tensor = tensor.to(dtype=self.floating).unsqueeze(1)
            return (tensor,), {}
        if batch and set(batch) <= set(self.names):
            return (), {name: self._tensor(name, array) for name, array in batch.items()}
        return (self._on_device(features(batch, self._dtype()), floating=True),), {}

    def _tensor(self, name: str, array: np.ndarray[Any, Any]) -> Any:
        """Return a tensor of its own memory: the column may go on to the output, and a module may write to it."""
        kind = array.dtype.kind
        if kind not in "biufc":
            hint = "; texts have to become token ids before" if kind == "O" else ""
            raise BadInput(
                f"column {name!r} should hold numbers, but it is {array.dtype} {array.shape}{hint}"
            )
        wanted = array.dtype.newbyteorder("=")
        if kind == "f":
            wanted = self._dtype()
        elif kind == "u" and array.dtype.itemsize > 1:
            wanted = np.dtype(np.int64)  # torch knows little to do with uint16 and larger
        made = array.astype(wanted) if kind == "c" else cast(name, array, wanted)
        return self._on_device(np.array(array, order="C") if made is array else made, floating=kind == "f")

    def _on_device(self, array: np.ndarray[Any, Any], *, floating: bool) -> Any:
        import torch

        tensor = torch.from_numpy(np.ascontiguousarray(array))
        return tensor.to(self.device, self.floating if floating else None)

    def _dtype(self) -> np.dtype[Any]:
        name = str(self.floating).removeprefix("torch.")
        return np.dtype(name if name in ("float16", "float64") else "float32")


def result(made: Any) -> Any:
    """Return an array, or a dict of arrays; raises ``BadReturn`` for anything else."""
    if isinstance(made, tuple) and hasattr(made, "_asdict"):
        made = made._asdict()
    if isinstance(made, Mapping):
        return {str(name): _array(value, f"[{name!r}]") for name, value in made.items()}
    return _array(made, "")


def _array(value: Any, where: str) -> np.ndarray[Any, Any]:
    import torch

    if isinstance(value, np.ndarray):
        return value
    if not isinstance(value, torch.Tensor):
        raise BadReturn(
            f"the model returned {_kind_of_result(value)}{f' as {where}' if where else ''}, but a result is a "
            "tensor, or a dict of tensors whose names become columns. Wrap the model in one that returns such, or "
            "use map_batches"
        )
    if value.dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2):
        value = value.to(torch.float32)  # numpy has no such
    return value.numpy(force=True)  # type: ignore[no-any-return]


def _kind_of_result(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return (
            f"a {type(value).__name__} of {', '.join(type(item).__name__ for item in value[:4]) or 'nothing'}"
        )
    return f"a {type(value).__name__}"
