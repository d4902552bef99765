"""Keras models and TensorFlow SavedModels."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from headrace.annex.models.keras_models import (
    Format,
    Layers,
    Signature,
    checked_format,
    content_digest,
    format_of,
    refuse_code,
)
from headrace.core.arguments import known_arguments
from headrace.core.door import install_hint
from headrace.core.files.artifacts import (
    Artifact,
    NotReadable,
    from_json,
    require,
    shortened,
    threads,
    try_elsewhere,
)
from headrace.core.files.formats import MODELS
from headrace.errors import ArgumentError, MissingLibrary, ModelError, ModelUnreadable
from headrace.predictors import Direct, directly

Array = np.ndarray[Any, Any]

_CHATTER = (b"I0000 ", b"WARNING: All log messages before absl", b"To enable the following instructions")
_BACKENDS = ("tensorflow", "torch", "jax")


def kind_of(path: str) -> str | None:
    """Return ``"keras"`` if a Keras model or a SavedModel is at ``path``, by its content; None if not."""
    return None if format_of(path) is None else "keras"


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
        A ``keras.Model``, or the path of a ``.keras`` or HDF5 file, or of a TensorFlow SavedModel folder (as
        ``model.export`` and Keras 2 write them), for which TensorFlow is needed and Keras is not.
    signature
        Which signature of a SavedModel to call. Default: ``"serving_default"``.
    custom_objects
        Classes and functions of your own that a file names, as for ``keras.saving.load_model``. Those of a model
        object are found, and travel with it.
    trust_pickle
        Allows a model that brings code, which is run: Lambda layers, and every SavedModel, whose graph may write and
        read files.
    sha256
        Pins the content of the file or folder.

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
        signature: str = "serving_default",
        custom_objects: Mapping[str, Any] | None = None,
        trust_pickle: bool = False,
        sha256: str | None = None,
    ) -> None:
        self._artifact: Artifact | None = None
        self._format: Format | None = None
        self._model: Any = None
        self._archive: Array | None = None
        self._signature = signature
        self._custom = dict(custom_objects or {})
        self._trust_pickle = trust_pickle
        self._loaded: Any = None
        if isinstance(model, str | os.PathLike):
            self._artifact = Artifact(os.fspath(model), sha256).checked()
            self._format = checked_format(self._artifact, trust_pickle=trust_pickle)
            self.label = self._artifact.name
            require(
                "tensorflow" if self._format == "saved_model" else "keras", "keras", f"The model {self.label}"
            )
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
        if self._format == "saved_model":
            self._loaded = self._load_signature(self._path())
        elif self._model is not None:
            self._loaded = Layers(self._model)
        elif self._archive is not None:
            with _as_file(self._archive) as path:
                self._loaded = Layers(self._load_layers(path, safe=False))
        else:
            self._loaded = Layers(self._load_file(self._path()))

    def predict(self, batch: Mapping[str, Array]) -> Any:
        """Return the output, or the outputs by name; one row per row of the batch."""
        if self._loaded is None:
            return directly(self, batch)
        return self._loaded(batch)

    def predict_one_row(self) -> None:
        """Loading a model of Keras reads all its weights; more is not tried."""

    def identity(self) -> Any:
        """Return the digest of the model's files, or of its config and weights, and the classes of its own."""
        if self._artifact is not None:
            content = self._artifact.digest()
        else:
            content = content_digest(self._packed().tobytes())
        return (
            "keras",
            content,
            self._signature,
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

    def _path(self) -> str:
        assert self._artifact is not None
        return self._artifact.path

    # ---------------------------------------------------------------- loading

    def _check_backend(self) -> None:
        if self._format != "saved_model" and not any(map(_is_installed, _BACKENDS)):
            raise MissingLibrary(
                f"The model {self.label} needs a backend for Keras, and none is installed here: "
                f"{install_hint('keras')}."
            )

    def _load_file(self, path: str) -> Any:
        """Load from a file whose suffix may be another than Keras goes by."""
        suffixes = MODELS["keras"]["archive" if self._format == "archive" else "hdf5"]
        if self._artifact is not None and not self._trust_pickle:
            try:
                try_elsewhere(self, self._artifact, errors_count=False)
            except NotReadable as error:
                raise self._unreadable(error) from error
        if self._format == "hdf5":
            self._check_hdf5(path)
        if path.endswith(suffixes):
            return self._load_layers(path, safe=not self._trust_pickle)
        with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
            link = os.path.join(folder, "model" + suffixes[0])
            os.symlink(path, link)
            return self._load_layers(link, safe=not self._trust_pickle)

    def _check_hdf5(self, path: str) -> None:
        """Look for code ourselves: older versions of Keras load it from HDF5, safe mode or not."""
        h5py: Any = importlib.import_module("h5py")  # comes with Keras; has no types
        try:
            with h5py.File(path, "r") as file:
                config = file.attrs.get("model_config")
        except (OSError, RuntimeError, ValueError, KeyError) as error:
            raise self._unreadable(error) from error
        if config is None:
            raise ModelUnreadable(
                f"{path} holds no whole Keras model; if it holds weights only, load them into their model, and save "
                f"that with model.save('model.keras')."
            )
        if not self._trust_pickle and self._artifact is not None:
            try:
                refuse_code(self._artifact, from_json(config))
            except (NotReadable, TypeError) as error:
                raise self._unreadable(error) from error

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

    def _load_signature(self, path: str) -> Signature:
        with _library("tensorflow", self.label):
            import tensorflow

            _set_threads()
        try:
            loaded = tensorflow.saved_model.load(path)
            return Signature(loaded, self._signature, tensorflow)
        except (MemoryError, ModelError, ArgumentError):
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
    bases = [(each.__module__.partition(".")[0], each.__name__) for each in type(model).__mro__]
    packages = {package for package, _ in bases}
    if ("keras", "Model") in bases:
        return
    if packages & {"tensorflow", "tf_keras"} and "keras" not in packages:
        raise ArgumentError(
            f"A {type(model).__name__} of TensorFlow cannot travel to the workers. Save it with "
            f"tf.saved_model.save(model, folder), and give the folder."
        )
    raise ArgumentError(f"A Keras model is a keras.Model or a path, not {type(model).__name__}.")


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
