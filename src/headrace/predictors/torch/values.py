"""Columns as tensors of their own, and results as columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.core.arrow.model_columns import Columns, cast, features, kind_of_column
from headrace.errors import BadInput, BadReturn
from headrace.predictors.torch.modules import Layer

_CONVERSIONS = {
    "text": "; texts have to become token ids before",
    "bytes": "; bytes have to be decoded to arrays before, as read_images does with images",
    "a list": "; lists have to become arrays of one shape before",
    "an array": "; its arrays differ in shape, and have to be made of one shape before: images by "
    "read_images(…, size=(224, 224)), others in map",
}


@dataclass(frozen=True, slots=True)
class Inputs:
    """How a module takes its inputs: on which device, in which floating dtype, under which names.

    ``required`` are those of the names that have no default. With a first layer of one feature, numbers (n,) are
    given to it as (n, 1). The first ``positional`` ones are given by place, if they are there.
    ``transfers``: how they are copied to the device, where that need not be waited for. ``dtypes`` names the
    dtype of all columns, or of some by name, if the user gave them. ``as_dict``: it takes a dict of all columns.
    """

    device: Any
    floating: Any
    names: tuple[str, ...]
    required: tuple[str, ...]
    layer: Layer | None
    positional: int = 0
    transfers: Transfers | None = None
    dtypes: str | Mapping[str, str] | None = None
    as_dict: bool = False

    def arguments(self, batch: Columns) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return positional and keyword arguments: one column as it is, several by name or side by side."""
        if self.as_dict:
            return (self._columns(batch),), {}
        if len(batch) == 1:
            ((name, array),) = batch.items()
            return (self._single(name, array),), {}
        if batch and set(batch) <= set(self.names):
            return self._by_name(batch)
        chosen = [name for name in batch if name in self.names]
        if self.required and set(self.required) <= set(chosen):
            if len(chosen) > 1:
                return self._by_name({name: batch[name] for name in chosen})
            if self._is_only_input(batch, chosen[0]):
                return (self._single(chosen[0], batch[chosen[0]]),), {}
        given = self.dtypes if isinstance(self.dtypes, str) else ""
        matrix = features(batch, _numpy_dtype(given) if given else self._dtype())
        return (self._on_device(matrix, self._torch(given) if given else self.floating),), {}

    def _columns(self, batch: Columns) -> dict[str, Any]:
        """Return columns by name, numbers (n,) as (n, 1), as Ray AIR gives them to a module."""
        tensors = {name: self._tensor(name, array) for name, array in batch.items()}
        return {name: each.unsqueeze(1) if each.ndim == 1 else each for name, each in tensors.items()}

    def _by_name(self, batch: Columns) -> tuple[tuple[Any, ...], dict[str, Any]]:
        named = {name: self._tensor(name, array) for name, array in batch.items()}
        first = self.names[: self.positional]
        if not set(first) <= named.keys():
            return (), named
        return tuple(named.pop(name) for name in first), named

    def _single(self, name: str, array: np.ndarray[Any, Any]) -> Any:
        tensor = self._tensor(name, array)
        if self._takes_one_feature() and tensor.ndim == 1:
            return tensor.to(dtype=self.floating).unsqueeze(1)
        return tensor

    def _takes_one_feature(self) -> bool:
        return self.layer is not None and (self.layer.attribute, self.layer.size) == ("in_features", 1)

    def _is_only_input(self, batch: Columns, name: str) -> bool:
        """Say whether a column is all that the module wants, and not one of several features side by side."""
        if any(array.dtype.kind not in "biuf" for array in batch.values()):
            return True
        if batch[name].ndim == 1:
            return self._takes_one_feature()
        return self.layer is None or not self.layer.misfit(self._tensor(name, batch[name]))

    def _tensor(self, name: str, array: np.ndarray[Any, Any]) -> Any:
        """Return a tensor of its own memory: the column may go on to the output, and a module may write to it."""
        kind = array.dtype.kind
        if kind not in "biufc":
            held = kind_of_column(array)
            raise BadInput(
                f"column {name!r} should hold numbers, but it is {held} {array.shape}{_CONVERSIONS.get(held, '')}"
            )
        given = self.dtypes if isinstance(self.dtypes, str) else (self.dtypes or {}).get(name, "")
        if given:
            copied = cast(name, array, _numpy_dtype(given))
            return self._on_device(
                np.array(array, order="C") if copied is array else copied, self._torch(given)
            )
        wanted = array.dtype.newbyteorder("=")
        if kind == "f":
            wanted = self._dtype()
        elif kind == "u" and array.dtype.itemsize > 1:
            wanted = np.dtype(np.int64)  # torch has few operations on uint16 and larger
        copied = array.astype(wanted) if kind == "c" else cast(name, array, wanted)
        return self._on_device(
            np.array(array, order="C") if copied is array else copied, self.floating if kind == "f" else None
        )

    def _on_device(self, array: np.ndarray[Any, Any], dtype: Any) -> Any:
        """Return a tensor on the device; of ``dtype``, if it is not to stay what it is."""
        import torch

        tensor = torch.from_numpy(np.ascontiguousarray(array))
        if self.transfers is not None:
            return self.transfers.to_device(tensor if dtype is None else tensor.to(dtype))
        return tensor.to(self.device, dtype)

    @staticmethod
    def _torch(name: str) -> Any:
        import torch

        return getattr(torch, name)

    def _dtype(self) -> np.dtype[Any]:
        name = str(self.floating).removeprefix("torch.")
        return np.dtype(name if name in ("float16", "float64") else "float32")


def _numpy_dtype(name: str) -> np.dtype[Any]:
    """Return numpy's dtype of this name of torch's; float32 where numpy has none."""
    return np.dtype("float32" if name == "bfloat16" else name)


def to_array(value: Any) -> Any:
    """Return a tensor as an array, when its values are there."""
    return value if isinstance(value, np.ndarray) else value.numpy(force=True)


def to_result(output: Any, copy: Callable[[Any], Any] = to_array) -> Any:
    """Return what ``copy`` makes of a tensor, or of each in a dict; raises ``BadReturn`` for anything else."""
    if isinstance(output, tuple) and hasattr(output, "_asdict"):
        output = output._asdict()
    if isinstance(output, Mapping):
        return {str(name): _copied(value, f"[{name!r}]", copy) for name, value in output.items()}
    return _copied(output, "", copy)


def first_rows(result: Any, size: int, count: int) -> Any:
    """Return the first ``count`` rows of a result; raises ``BadReturn`` unless there is one for each of ``size``."""
    if isinstance(result, dict):
        return {name: first_rows(array, size, count) for name, array in result.items()}
    if result.shape[:1] != (size,):
        raise BadReturn(f"the model gave {result.shape}, which is not one result for each of {size} rows")
    return result[:count]


def concat_arrays(parts: Sequence[Any]) -> Any:
    """Concatenate arrays, or dicts of arrays."""
    if len(parts) == 1:
        return parts[0]
    if isinstance(parts[0], dict):
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return np.concatenate(parts)


def _copied(value: Any, where: str, copy: Callable[[Any], Any]) -> Any:
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
    return copy(value)


def _kind_of_result(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return (
            f"a {type(value).__name__} of {', '.join(type(item).__name__ for item in value[:4]) or 'nothing'}"
        )
    return f"a {type(value).__name__}"


class Transfers:
    """Inputs travel on a stream of their own, so while the batch before is computed; results follow what made them.

    All copies go by pinned memory: from and to any other, the device would make this thread wait. A result is copied
    on the computing stream, as a module may fill the same memory again for the next batch. Both by the rules of
    PyTorch's notes on CUDA semantics; the gain was not measured.
    """

    def __init__(self, device: Any) -> None:
        import torch

        self._device = device
        self._sending = torch.cuda.Stream(device)

    def to_device(self, tensor: Any) -> Any:
        """Return a copy on the device, for the computing stream to use; it may not be complete yet."""
        import torch

        computing = torch.cuda.current_stream(self._device)
        pinned = tensor.pin_memory()  # it is not freed before it was copied
        with torch.cuda.stream(self._sending):
            there = pinned.to(self._device, non_blocking=True)
        computing.wait_stream(self._sending)
        # Its memory is the sending stream's, which must not use it again before.
        there.record_stream(computing)
        return there

    def to_host(self, tensor: Any) -> Any:
        """Return a copy in this machine's memory; its values are there when an event marked later has passed."""
        import torch

        if tensor.device.type != self._device.type:
            return tensor.detach().cpu().clone()
        tensor = tensor.detach().resolve_conj().resolve_neg()
        here = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        return here.copy_(tensor, non_blocking=True)

    def mark(self) -> Any:
        """Return an event that passes when all that was begun on the computing stream is done."""
        import torch

        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._device))
        return event


def transfers_to(device: Any) -> Transfers | None:
    """Return how to copy to and from a device; None where copies cannot overlap with computing."""
    return Transfers(device) if device.type == "cuda" else None
