"""Models of Keras: objects, and archives as Keras 3 writes them."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import io
import json
import os
import sys
import tempfile
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from headrace.core.arguments import known_arguments
from headrace.core.arrow.model_columns import ModelInput, features, fed
from headrace.core.door import install_hint
from headrace.core.files.artifacts import (
    Artifact,
    NotReadable,
    check_inflated,
    from_json,
    limited,
    loading_call,
    names_in_zip,
    require,
    shortened,
    threads,
    try_elsewhere,
)
from headrace.errors import ArgumentError, MissingLibrary, ModelUnreadable, UntrustedPickle
from headrace.predictors import Direct, directly

Array = np.ndarray[Any, Any]

_CHATTER = (b"I0000 ", b"WARNING: All log messages before absl", b"To enable the following instructions")
_BACKENDS = ("tensorflow", "torch", "jax")
_ARCHIVE = {"config.json", "metadata.json"}
_FOREIGN = ("TFSMLayer", "TorchModuleWrapper", "JaxLayer", "FlaxLayer")


def kind_of(path: str) -> str | None:
    """Return ``"keras"`` if a model of Keras 3 is at ``path``, by its content; None if not."""
    names = names_in_zip(path) if os.path.isfile(path) else None
    return "keras" if names is not None and set(names) >= _ARCHIVE else None


class KerasPredictor(Direct):
    """Runs a Keras model; results are those of ``model(batch, training=False)``, bit for bit.

    Columns with the names of the model's inputs go to these, and others are left out. Otherwise a model with one
    input gets the one column as it is, or several side by side as a matrix (n, k); so does a model class that does
    not declare its inputs.
    Numbers become the dtype that the model takes. One output is an array, several are columns with their names.
    Keras runs on the backend that ``KERAS_BACKEND`` or its configuration file names.

    Parameters
    ----------
    model
        A ``keras.Model``, or the path of a ``.keras`` file.
    custom_objects
        Classes and functions of your own that a file names, as for ``keras.saving.load_model``. Those of a model
        object are found, and travel with it.
    trust_pickle
        Allows a model that brings code, which is run, such as Lambda layers.
    sha256
        Pins the content of the file.

    Raises ``ModelUnreadable``, ``ModelChanged`` and ``UntrustedPickle`` for the file, ``BadInput`` for columns that
    do not fit.

    >>> KerasPredictor("nowhere.keras")
    Traceback (most recent call last):
        ...
    headrace.errors.ModelUnreadable: There is no model at 'nowhere.keras' (looked for ...nowhere.keras).
    """

    classes = ("Model",)
    kind_of = staticmethod(kind_of)
    batch_format = "numpy"

    @known_arguments
    def __init__(
        self,
        model: Any,
        *,
        custom_objects: Mapping[str, Any] | None = None,
        trust_pickle: bool = False,
        sha256: str | None = None,
    ) -> None:
        self._artifact: Artifact | None = None
        self._model: Any = None
        self._archive: Array | None = None
        self._custom = dict(custom_objects or {})
        self._trust_pickle = trust_pickle
        self._loaded: Any = None
        if isinstance(model, str | os.PathLike):
            self._artifact = Artifact(os.fspath(model), sha256).checked()
            _check_archive(self._artifact, trust_pickle=trust_pickle)
            self.label = self._artifact.name
            require("keras", "keras", f"The model {self.label}")
            self._check_backend()
        else:
            _check_model(model)
            if sha256 is not None:
                raise ArgumentError("sha256= pins a file; give the model as a path.")
            self._model = model
            self._custom = _classes_of(model) | self._custom
            self.label = type(model).__name__

    def load(self) -> None:
        """Load the model, or use the object that was given. Raises ``ModelUnreadable`` with Keras's message."""
        _prepare_tensorflow()
        if self._artifact is not None:
            self._artifact.verify()
        if self._model is not None:
            self._loaded = _Layers(self._model)
        elif self._archive is not None:
            with _as_file(self._archive) as path:
                self._loaded = _Layers(self._load_layers(path, safe=False))
        else:
            self._loaded = _Layers(self._load_file())

    def predict(self, batch: Mapping[str, Array]) -> Any:
        """Return the output, or the outputs by name; one row per row of the batch."""
        if self._loaded is None:
            return directly(self, batch)
        return self._loaded(batch)

    def predict_one_row(self) -> None:
        """Loading a model of Keras reads all its weights; more is not tried."""

    def identity(self) -> Any:
        """Return the digest of the model's file, or of its config and weights, and the classes of its own."""
        if self._artifact is not None:
            content = self._artifact.digest()
        else:
            content = _content_digest(self._packed().tobytes())
        return (
            "keras",
            content,
            tuple(sorted(self._custom.items(), key=lambda item: item[0])),
        )

    def __reduce__(self) -> Any:
        # A model travels as an archive: unpickling its object would not find classes of the user's own script.
        state = {**self.__dict__, "_model": None, "_loaded": None}
        if self._model is not None:
            state["_archive"] = self._packed()
        return _arrive, (bool(self._custom),), state

    def _packed(self) -> Array:
        if self._archive is not None:
            return self._archive
        with tempfile.TemporaryDirectory(prefix="headrace-") as folder, _quiet():
            path = os.path.join(folder, "model.keras")
            self._model.save(path)
            return np.fromfile(path, np.uint8)

    # ---------------------------------------------------------------- loading

    def _check_backend(self) -> None:
        if not any(map(_is_installed, _BACKENDS)):
            raise MissingLibrary(
                f"The model {self.label} needs a backend for Keras, and none is installed here: "
                f"{install_hint('keras')}."
            )

    def _load_file(self) -> Any:
        assert self._artifact is not None
        if not self._trust_pickle:
            try:
                try_elsewhere(self, self._artifact, errors_count=False)
            except NotReadable as error:
                raise self._unreadable(error) from error
        return self._load_layers(self._artifact.path, safe=not self._trust_pickle)

    def _load_layers(self, path: str, *, safe: bool) -> Any:
        with _library("keras", self.label):
            import keras

            if keras.backend.backend() == "tensorflow":
                _set_threads()
        try:
            with _quiet():
                return keras.saving.load_model(
                    path, custom_objects=self._custom, compile=False, safe_mode=safe
                )
        except MemoryError:
            raise
        except Exception as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: Exception) -> ModelUnreadable:
        message = shortened(" ".join(str(error).split()).rpartition("Exception encountered: ")[2])
        if (
            "Could not locate class" in message
            or "Unknown layer" in message
            or "Could not deserialize" in message
        ):
            way_out = "Name your own classes with custom_objects={'Name': Class}."
        else:
            way_out = "Copy or save it again; a file of another version of Keras may need that version."
        where = self.label if self._artifact is None else self._artifact.path
        return ModelUnreadable(f"Keras cannot read the model {where}: {message}. {way_out}")


def _arrive(own_classes: bool) -> KerasPredictor:
    _prepare_tensorflow()
    if own_classes:  # they import Keras when they are unpickled; so rather before, in silence
        with contextlib.suppress(ImportError), _hushed():
            importlib.import_module("keras")
    return KerasPredictor.__new__(KerasPredictor)


def _prepare_tensorflow() -> None:
    """Set what TensorFlow reads at import: no talk for its developers, and a GPU that workers can share."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")


def _check_model(model: Any) -> None:
    if ("keras", "Model") not in [
        (each.__module__.partition(".")[0], each.__name__) for each in type(model).__mro__
    ]:
        raise ArgumentError(
            f"A Keras model is a keras.Model or the path of a .keras file, not {type(model).__name__}. A model of "
            "TensorFlow alone is saved by tf.saved_model.save, and called in a class of your own, which loads it."
        )


def _classes_of(model: Any) -> dict[str, Any]:
    """Return the classes of a model's layers that are not Keras' own, by the names under which it saves them."""
    from keras.saving import get_registered_name

    layers = (
        [model, *model._flatten_layers()] if hasattr(model, "_flatten_layers") else [model, *model.layers]
    )
    classes = {type(layer) for layer in layers}
    return {
        get_registered_name(each): each for each in classes if each.__module__.partition(".")[0] != "keras"
    }


def _set_threads() -> None:
    import tensorflow

    if count := threads():
        with contextlib.suppress(RuntimeError):  # TensorFlow is at work already, with what it has
            tensorflow.config.threading.set_intra_op_parallelism_threads(count)
            tensorflow.config.threading.set_inter_op_parallelism_threads(1)


def _is_installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep back what Keras and TensorFlow have to settle with numpy 2 among themselves."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "__array__ implementation", DeprecationWarning)
        yield


@contextlib.contextmanager
def _hushed() -> Iterator[None]:
    """Drop what TensorFlow prints while it is imported, before its own level counts; the rest comes through."""
    if "tensorflow" in sys.modules:
        yield
        return
    with tempfile.TemporaryFile() as printed:
        stderr = os.dup(2)
        os.dup2(printed.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
            printed.seek(0)
            for line in printed:
                if not line.startswith(_CHATTER):
                    os.write(2, line)


@contextlib.contextmanager
def _library(name: str, label: str) -> Iterator[None]:
    """Import in silence; turn a failure into ``MissingLibrary``."""
    try:
        with _hushed():
            yield
    except ImportError as error:
        raise MissingLibrary(
            f"The model {label} needs {name} and a backend, and importing them failed: {error}. "
            f"Set KERAS_BACKEND to one that is installed, or: {install_hint('keras')}."
        ) from error


@contextlib.contextmanager
def _as_file(archive: Array) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
        path = os.path.join(folder, "model.keras")
        archive.tofile(path)
        yield path


# ---------------------------------------------------------------- an archive, seen without Keras


def _check_archive(artifact: Artifact, *, trust_pickle: bool) -> None:
    """Raise ``ModelUnreadable`` for what is no whole archive of Keras 3, ``UntrustedPickle`` for code in one.

    Keras' safe mode refuses the same code, in the versions that know of it.
    """
    path = artifact.path
    if kind_of(path) is None or not path.endswith(".keras"):
        raise ModelUnreadable(
            f"{path} is not a whole model of Keras 3, a file that ends in .keras. Copy it again, or save it again "
            "with model.save('model.keras'); keras.saving.load_model reads .h5 files of older versions. A SavedModel "
            "is called in a class of your own, by tensorflow.saved_model.load(folder).signatures."
        )
    try:
        check_inflated(path)
        with zipfile.ZipFile(path) as archive, archive.open("config.json") as file:
            why = None if trust_pickle else _why_code(from_json(limited(file)))
    except (OSError, ValueError, RuntimeError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise ModelUnreadable(
            f"{path} is a damaged .keras archive: {error}. Copy or save it again."
        ) from error
    if why is not None:
        raise UntrustedPickle(
            f"{path} {why}: whoever made it can run code, or reach files, on the machine that reads it. Save the "
            "model with a layer class of its own instead. If you trust it as you trust your own code, "
            f"{loading_call(path, 'trust_pickle=True')} reads it; sha256= pins it."
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


def _content_digest(archive: bytes) -> str:
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


class _Layers:
    """A ``keras.Model``: what ``predict_on_batch`` gives, which is ``model(batch, training=False)``, compiled."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._inputs, self._wrap = _inputs_of(model)

    def __call__(self, batch: Mapping[str, Array]) -> Any:
        """Return an array, or a dict of them by output name."""
        if self._inputs is None:
            return self._named(self._model.predict_on_batch(features(batch)))
        return self._named(self._model.predict_on_batch(self._wrap(fed(self._inputs, batch))))

    def _named(self, result: Any) -> Any:
        if isinstance(result, dict):
            return {name: _standard(array) for name, array in result.items()}
        if not isinstance(result, list | tuple):
            return _standard(result)
        names = list(getattr(self._model, "output_names", None) or ())
        if len(set(names)) != len(result):
            names = [f"output_{place}" for place in range(len(result))]
        return {name: _standard(array) for name, array in zip(names, result, strict=True)}


def _inputs_of(model: Any) -> tuple[dict[str, ModelInput] | None, Any]:
    """Return a model's inputs by name, and what puts their arrays into the structure that it is called with."""
    tensors = getattr(model, "inputs", None)
    if not tensors:
        return None, None  # a subclass has no inputs before it is called
    structure = getattr(model, "input", None)
    if isinstance(structure, dict):
        named = structure
    else:
        named = {tensor.name: tensor for tensor in tensors}
    inputs = {
        name: ModelInput("text" if str(tensor.dtype) == "string" else str(tensor.dtype), tuple(tensor.shape))
        for name, tensor in named.items()
    }
    if isinstance(structure, dict):
        return inputs, dict
    if len(tensors) == 1 and not isinstance(structure, list | tuple):
        return inputs, lambda arrays: next(iter(arrays.values()))
    return inputs, lambda arrays: list(arrays.values())


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
