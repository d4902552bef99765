"""Keras files seen without Keras: format, code, content. And what a Keras model takes and how it is called."""

from __future__ import annotations

import hashlib
import importlib
import io
import json
import os
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from headrace.core.arrow.model_columns import (
    cast,
    check_texts,
    features,
    kind_of_column,
    no_such_inputs,
    shapes,
)
from headrace.core.files.artifacts import (
    Artifact,
    NotReadable,
    check_inflated,
    from_json,
    limited,
    loading_call,
    names_in_zip,
    open_regular,
)
from headrace.core.files.formats import model_format
from headrace.errors import ArgumentError, BadInput, ModelUnreadable, UntrustedPickle, nearest

Format = Literal["archive", "hdf5", "saved_model"]

_HDF5 = b"\x89HDF\r\n\x1a\n"  # https://docs.hdfgroup.org/hdf5/develop/_f_m_t3.html
_ARCHIVE = {"config.json", "metadata.json"}
_FOREIGN = ("TFSMLayer", "TorchModuleWrapper", "JaxLayer", "FlaxLayer")


def format_of(path: str) -> Format | None:
    """Return which of the formats is at ``path``, by content; an HDF5 file by its suffix too. Never raises."""
    if os.path.isdir(path):
        forms = ("saved_model.pb", "saved_model.pbtxt")
        return "saved_model" if any(os.path.isfile(os.path.join(path, name)) for name in forms) else None
    try:
        with open_regular(path) as file:
            head = file.read(8)
    except (OSError, NotReadable):
        return None
    if head == _HDF5:
        return "hdf5" if model_format(path, "keras") else None
    names = names_in_zip(path) if head[:2] == b"PK" else None
    return "archive" if names is not None and set(names) >= _ARCHIVE else None


def checked_format(artifact: Artifact, *, trust_pickle: bool) -> Format:
    """Return the format of a model; raises ``ModelUnreadable`` for none, ``UntrustedPickle`` for code in it."""
    path = artifact.path
    found = format_of(path)
    if found is None:
        raise ModelUnreadable(
            f"{path} is not a whole Keras model: neither a .keras archive, nor an HDF5 file, nor a folder "
            f"with saved_model.pb. Copy it again, or save it again with model.save('model.keras')."
        )
    try:
        if found == "archive":
            check_inflated(path)
            if not trust_pickle:
                refuse_code(artifact, _config_of(path))
        elif found == "saved_model" and not trust_pickle:
            raise _untrusted(
                artifact, "is a SavedModel, whose graph is a program", "Save it as model.save('model.keras')."
            )
    except (OSError, ValueError, RuntimeError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise ModelUnreadable(
            f"{path} is a damaged .keras archive: {error}. Copy or save it again."
        ) from error
    return found


def _config_of(path: str) -> Any:
    with zipfile.ZipFile(path) as archive, archive.open("config.json") as file:
        return from_json(limited(file))


def refuse_code(artifact: Artifact, config: Any) -> None:
    """Raise ``UntrustedPickle`` if a model's config brings Python code, or reads other files than the model's.

    Keras' safe mode refuses the same, in versions and formats that know of it.
    """
    why = _why_code(config)
    if why is not None:
        raise _untrusted(artifact, why, "Save the model with a layer class of its own instead.")


def _untrusted(artifact: Artifact, why: str, instead: str) -> UntrustedPickle:
    return UntrustedPickle(
        f"{artifact.path} {why}: whoever made it can run code, or reach files, on the machine that reads it. "
        f"{instead} If you trust it as you trust your own code, "
        f"{loading_call(artifact.path, 'trust_pickle=True')} reads it; sha256= pins it."
    )


def _why_code(config: Any) -> str | None:
    waiting = [config]
    while waiting:
        each = waiting.pop()
        if isinstance(each, list):
            waiting += each
        elif isinstance(each, dict):
            inner = each.get("config")
            kind = each.get("class_name")
            if kind == "__lambda__" or (kind == "Lambda" and isinstance(inner, dict) and _is_code(inner)):
                return "has a Lambda layer whose Python code is in the file"
            if kind in _FOREIGN:
                return f"has a {kind}, which runs what is in another file or a pickle"
            if isinstance(each.get("vocabulary"), str) and each["vocabulary"]:
                return f"has a layer that reads its vocabulary from the file {each['vocabulary']!r}"
            waiting += each.values()
    return None


def _is_code(layer: dict[str, Any]) -> bool:
    """Say whether a Lambda layer is one as Keras 2 wrote it, with bytes of Python."""
    return layer.get("function_type") == "lambda" or isinstance(layer.get("function"), list)


def content_digest(archive: bytes) -> str:
    """Return the SHA-256 of a ``.keras`` archive's content: the same model, made and saved twice, has the same.

    Left out are the time of saving, the ids by which layers share objects (memory addresses), and the numbers in
    names like ``dense_7``, which count the layers that the process has made before.
    """
    digest = hashlib.sha256()
    with zipfile.ZipFile(io.BytesIO(archive)) as opened:
        for name in sorted(set(opened.namelist()) - {"metadata.json"}):
            content = opened.read(name)
            if name == "config.json":
                content = json.dumps(_steady(json.loads(content)), sort_keys=True).encode()
            elif name.endswith(".h5"):
                content = _arrays(content)
            digest.update(f"{name}\n{hashlib.sha256(content).hexdigest()}\n".encode())
    return digest.hexdigest()


def _steady(config: Any) -> Any:
    names: dict[str, str] = {}
    _number_anew(config, names)
    return _without_ids(config, names)


def _number_anew(config: Any, names: dict[str, str]) -> None:
    """Find the names of layers that end in a number, or could, and number them in order of appearance."""
    if isinstance(config, dict):
        inner = config.get("config")
        if isinstance(config.get("class_name"), str) and isinstance(inner, dict):
            name = inner.get("name")
            if isinstance(name, str) and name not in names:
                names[name] = f"{name.rstrip('0123456789').rstrip('_')}#{len(names)}"
    for each in config.values() if isinstance(config, dict) else config if isinstance(config, list) else ():
        _number_anew(each, names)


def _without_ids(config: Any, names: dict[str, str]) -> Any:
    if isinstance(config, dict):
        return {key: _without_ids(value, names) for key, value in config.items() if key != "shared_object_id"}
    if isinstance(config, list):
        return [_without_ids(each, names) for each in config]
    return names.get(config, config) if isinstance(config, str) else config


def _arrays(content: bytes) -> bytes:
    """Return the paths, dtypes, shapes and digests of all arrays in an HDF5 file."""
    h5py: Any = importlib.import_module("h5py")  # comes with Keras; has no types
    lines: list[str] = []

    def note(path: str, each: Any) -> None:
        if isinstance(each, h5py.Dataset):
            array = np.ascontiguousarray(each[()])
            lines.append(f"{path} {array.dtype} {array.shape} {hashlib.sha256(array.data).hexdigest()}")

    with h5py.File(io.BytesIO(content), "r") as file:
        file.visititems(note)
    return "\n".join(sorted(lines)).encode()


# ---------------------------------------------------------------- a model at work

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
