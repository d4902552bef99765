"""A Keras model, or a TensorFlow SavedModel, at work: what it takes by name, and how it is called."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.core.arrow.model_columns import (
    cast,
    check_texts,
    features,
    kind_of_column,
    no_such_inputs,
    shapes,
)
from headrace.errors import ArgumentError, BadInput, nearest

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class KerasInput:
    """One input: its dtype, and its shape, in which None is free; no shape if it is not known."""

    dtype: str
    shape: tuple[int | None, ...] | None

    def __str__(self) -> str:
        dtype = "text" if self.dtype == "string" else self.dtype
        if self.shape is None:
            return dtype
        return f"{dtype} ({', '.join('any' if size is None else str(size) for size in self.shape)})"

    def array(self, name: str, array: Array, batch: Mapping[str, Array]) -> Array:
        """Return ``array`` as this input takes it, or raise ``BadInput``."""
        result = _as_strings(name, array) if self.dtype == "string" else cast(name, array, self.dtype)
        if self.shape is None:
            return result
        if result.ndim == 1 and len(self.shape) == 2 and self.shape[1] in (1, None):
            result = result.reshape(-1, 1)
        if not self._fits(result.shape):
            choose = ". Choose columns with inputs=[…]" if len(batch) > 1 else ""
            raise BadInput(
                f"the model takes {self}, but it was given {kind_of_column(result)} {result.shape} "
                f"({shapes(batch)}){choose}"
            )
        return result

    def is_whole(self, array: Array) -> bool:
        """Say whether a column is the whole input, rather than a feature of a matrix."""
        if self.shape is None:
            return False
        if array.ndim == 1 and len(self.shape) == 2:
            return self.shape[1] == 1 or self.dtype == "string"
        return self._fits(array.shape)

    def _fits(self, shape: tuple[int, ...]) -> bool:
        wanted = self.shape or ()
        return len(shape) == len(wanted) and all(
            size is None or size == given for size, given in zip(wanted[1:], shape[1:], strict=True)
        )


def feed(inputs: Mapping[str, KerasInput], batch: Mapping[str, Array]) -> dict[str, Array]:
    """Give each input its column, by name; a single input gets the only column, or all side by side."""
    if len(inputs) == 1:
        ((name, wanted),) = inputs.items()
        if len(batch) == 1:
            ((column, array),) = batch.items()
        elif name in batch and wanted.is_whole(batch[name]):  # or it is one of several features
            column, array = name, batch[name]
        else:
            column, array = name, features(batch, None if wanted.dtype == "string" else wanted.dtype)
        return {name: wanted.array(column, array, batch)}
    if inputs.keys() <= batch.keys():
        return {name: each.array(name, batch[name], batch) for name, each in inputs.items()}
    raise no_such_inputs(inputs, batch)


class Layers:
    """A ``keras.Model``: what ``predict_on_batch`` gives, which is ``model(batch, training=False)``, compiled."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._inputs, self._wrap = _inputs_of(model)

    def __call__(self, batch: Mapping[str, Array]) -> Any:
        """Return an array, or a dict of them by output name."""
        if self._inputs is None:
            return self._named(self._model.predict_on_batch(features(batch)))
        return self._named(self._model.predict_on_batch(self._wrap(feed(self._inputs, batch))))

    def _named(self, result: Any) -> Any:
        if isinstance(result, dict):
            return {name: _standard(array) for name, array in result.items()}
        if not isinstance(result, list | tuple):
            return _standard(result)
        names = list(getattr(self._model, "output_names", None) or ())
        if len(set(names)) != len(result):
            names = [f"output_{place}" for place in range(len(result))]
        return {name: _standard(array) for name, array in zip(names, result, strict=True)}


class Signature:
    """One signature of a TensorFlow SavedModel, with its named inputs and outputs."""

    def __init__(self, loaded: Any, signature: str, tensorflow: Any) -> None:
        known = list(loaded.signatures)
        if signature not in known:
            raise ArgumentError(
                f"The SavedModel has no signature {signature!r}; it has {known}.{nearest(signature, known)} Say "
                f"which with signature=."
            )
        self._loaded = loaded  # its variables live only as long as it does
        self._call = loaded.signatures[signature]
        self._constant = tensorflow.constant
        self._inputs = {
            name: KerasInput(
                each.dtype.name, None if each.shape.rank is None else tuple(each.shape.as_list())
            )
            for name, each in self._call.structured_input_signature[1].items()
        }

    def __call__(self, batch: Mapping[str, Array]) -> Any:
        """Return an array, or a dict of them by output name."""
        arrays = feed(self._inputs, batch)
        results = self._call(**{name: self._constant(array) for name, array in arrays.items()})
        columns = {name: _standard(results[name].numpy()) for name in sorted(results)}
        return next(iter(columns.values())) if len(columns) == 1 else columns


def _inputs_of(model: Any) -> tuple[dict[str, KerasInput] | None, Any]:
    """Return a model's inputs by name, and what puts their arrays into the structure that it is called with."""
    tensors = getattr(model, "inputs", None)
    if not tensors:
        return None, None  # a subclass has no inputs before it is called
    structure = getattr(model, "input", None)
    if isinstance(structure, dict):
        named = structure
    else:
        named = {tensor.name: tensor for tensor in tensors}
    inputs = {name: KerasInput(str(tensor.dtype), tuple(tensor.shape)) for name, tensor in named.items()}
    if isinstance(structure, dict):
        return inputs, dict
    if len(tensors) == 1 and not isinstance(structure, list | tuple):
        return inputs, lambda arrays: next(iter(arrays.values()))
    return inputs, lambda arrays: list(arrays.values())


def _as_strings(name: str, array: Array) -> Array:
    check_texts(name, array)
    return array.astype(object, copy=False)


def _standard(array: Any) -> Array:
    """Return a result as numpy's own kinds: bfloat16 as float32, TensorFlow's bytes as texts."""
    result: Array = np.asarray(array)
    if result.dtype.name == "bfloat16":
        return result.astype(np.float32)
    if result.dtype.kind == "O" and result.size and isinstance(result.flat[0], bytes):
        texts = np.empty(result.shape, object)
        texts.reshape(-1)[:] = [value.decode("utf-8", "replace") for value in result.flat]
        return texts
    return result
