"""Checkpoints: a trained model in memory, or a folder with its weights, a small JSON file, and no pickle.

The folder holds the model in its library's own safe format, and ``checkpoint.json``: the kind of model, the
versions that wrote it, and the SHA-256 of every file, which is compared whenever a model is loaded from there.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from headrace.compat.air.preprocessing import Preprocessing, preparing_method
from headrace.core.arguments import Unsupported, known_arguments
from headrace.core.files.artifacts import Artifact, require
from headrace.core.files.model_files import content, from_json
from headrace.errors import ArgumentError, ModelChanged, ModelError, ModelUnreadable

MANIFEST = "checkpoint.json"
PREPROCESSOR = "preprocessor.skops"
C = TypeVar("C", bound="Checkpoint")


FROM_MODEL = {
    "path": Unsupported("to_directory(path) writes the checkpoint, if it is to be a folder", None),
}
"""Of ``from_model`` in Ray AIR."""


class Checkpoint:
    """A trained model, in memory or in a folder; ``TorchCheckpoint`` and its like are those of one library.

    ``from_model(model)`` holds a model, ``to_directory(path)`` writes it, and ``Checkpoint.from_directory(path)``
    takes any that was written, and returns one of the right class. Raises ``ArgumentError`` for a model of another
    library; ``ModelUnreadable`` and ``ModelChanged`` where a folder is not what was written.

    ``preprocessor=`` is what prepares the data for the model: a fitted transformer of scikit-learn, a preprocessor of
    Ray's (anything with ``transform_batch`` or ``transform``), or a function of a DataFrame. ``BatchPredictor`` lets
    the data pass through it. In a folder, transformers of scikit-learn are kept as a file of skops; any other is
    code, and is given again where the folder is read: ``from_directory(path, preprocessor=prepare)``.

    Examples
    --------
    >>> import headrace as hr, tempfile
    >>> from sklearn.linear_model import LinearRegression
    >>> model = LinearRegression().fit([[1.0], [2.0]], [2.0, 4.0])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = hr.SklearnCheckpoint.from_model(model).to_directory(folder + "/doubles")
    ...     again = hr.Checkpoint.from_directory(path)
    ...     print(type(again).__name__, again.get_model().predict([[3.0]]).round(6).tolist())
    SklearnCheckpoint [6.0]
    """

    kind: ClassVar[str] = ""
    file: ClassVar[str] = ""
    libraries: ClassVar[tuple[str, ...]] = ()
    predictor: ClassVar[str] = ""

    def __init__(self, model: Any = None) -> None:
        raise ArgumentError(
            f"{type(self).__name__}() makes nothing: from_model(model) takes a model, from_directory(path) a folder."
        )

    @classmethod
    def _made(
        cls: type[C], model: Any, path: str | None = None, manifest: Mapping[str, Any] | None = None
    ) -> C:
        made = object.__new__(cls)
        made._model, made._path, made._manifest = model, path, dict(manifest or {})
        made._preprocessor = None if path is None else ...
        return made

    _preprocessor: Any  # ... while it is in the folder
    _model: Any
    _path: str | None
    _manifest: dict[str, Any]

    @classmethod
    @known_arguments(also=FROM_MODEL)
    def from_model(cls: type[C], model: Any, *, preprocessor: Any = None) -> C:
        """Hold a model object; nothing is copied or written. Raises ``ArgumentError`` for another library's.

        ``preprocessor``: what prepares the data for the model.
        """
        if not cls.kind:
            raise ArgumentError(
                "Checkpoint.from_model cannot know the library: take TorchCheckpoint.from_model or one of its like."
            )
        cls._check(model)
        return cls._made(model)._with(preprocessor)

    @classmethod
    def from_directory(cls: type[C], path: str | os.PathLike[str], *, preprocessor: Any = None) -> C:
        """Take the folder that ``to_directory`` wrote; its files are read, and compared, when the model is needed.

        ``preprocessor``: what prepares the data, where it is not in the folder or is to be another.
        Raises ``ModelUnreadable`` if there is none, ``ArgumentError`` if it holds another kind of model.
        """
        place = os.path.abspath(os.path.expanduser(os.fspath(path)))
        manifest = _manifest_at(place)
        kinds = {each.kind: each for each in _kinds()}
        found = kinds.get(manifest["kind"])
        if found is None:
            raise ModelUnreadable(
                f"{place} is a checkpoint of the kind {manifest['kind']!r}, which this version of Headrace does not "
                f"know. It knows {', '.join(kinds)}."
            )
        if not issubclass(found, cls):
            raise ArgumentError(
                f"{place} holds a {found.__name__}, and {cls.__name__} was asked for: use {found.__name__}."
                f"from_directory, or Checkpoint.from_directory for any."
            )
        made: C = found._made(None, place, manifest)
        return made if preprocessor is None else made._with(preprocessor)

    @property
    def path(self) -> str | None:
        """The folder, or None while the model is only in memory."""
        return self._path

    def to_directory(self, path: str | os.PathLike[str] | None = None) -> str:
        """Write the checkpoint to the new folder ``path`` (default: a temporary one), and return where that is.

        What appears there is complete. Raises ``ArgumentError`` if there is something already.
        """
        if path is None:
            place = os.path.join(tempfile.mkdtemp(prefix="headrace-"), "checkpoint")
        else:
            place = os.path.abspath(os.path.expanduser(os.fspath(path)))
        if os.path.exists(place) and (not os.path.isdir(place) or os.listdir(place)):
            raise ArgumentError(
                f"{place} is there already: a checkpoint is written to a new or empty folder."
            )
        parent = os.path.dirname(place)
        os.makedirs(parent, exist_ok=True)
        unfinished = tempfile.mkdtemp(prefix=f".{os.path.basename(place)}-", dir=parent)
        try:
            self._write_all(unfinished)
            os.chmod(unfinished, 0o755)
            os.replace(unfinished, place)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
        return place

    def get_model(self) -> Any:
        """Return the model: the object that was given, or one that is read from the folder, at every call.

        Raises ``ModelChanged`` if a file is not the one that was written, ``ModelUnreadable``, ``MissingLibrary``.
        """
        if self._path is None:
            return self._model
        for library in self.libraries:
            require(library, self.kind, f"The checkpoint {self._path}")
        return self._read(self.artifact())

    def get_preprocessor(self) -> Any:
        """Return the preprocessor, None if there is none.

        Raises ``ModelError`` if the checkpoint was made with one that its folder could not hold, ``UntrustedPickle``
        for one of types that skops does not know.
        """
        if self._preprocessor is not ...:
            return self._preprocessor
        lost = self._manifest.get("without_preprocessor")
        if lost is not None:
            raise ModelError(
                f"{self._path} was made with a preprocessor, {lost}, which is code and not in the folder. Give it "
                "again, Checkpoint.from_directory(path, preprocessor=…), or do without: set_preprocessor(None)."
            )
        if PREPROCESSOR in self._manifest["files"]:
            from headrace.predictors.sklearn import read_skops

            require("skops", "sklearn", f"The preprocessor of {self._path}")
            self.artifact()
            place = os.path.join(str(self._path), PREPROCESSOR)
            self._preprocessor = read_skops(
                Artifact(place, self._manifest["files"][PREPROCESSOR]), trusted=()
            )
        else:
            self._preprocessor = None
        return self._preprocessor

    def set_preprocessor(self, preprocessor: Any) -> None:
        """Let another prepare the data, or none: ``None``. Raises ``ArgumentError`` for what cannot."""
        if preprocessor is not None:
            preparing_method(preprocessor)
        self._preprocessor = preprocessor

    def preparing(self) -> Preprocessing | None:
        """Return the preprocessor as a function of a batch; None if there is none."""
        preprocessor = self.get_preprocessor()
        return None if preprocessor is None else Preprocessing(preprocessor)

    def _with(self: C, preprocessor: Any) -> C:
        self.set_preprocessor(preprocessor)
        return self

    def given_to(self, predictor: str, options: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Return what the predictor of this name is made of: a model or the path of one, and its options.

        A path goes with its digest, so that each worker reads the file itself, and only the one that was meant.
        """
        if predictor != self.predictor:
            raise ArgumentError(
                f"A {type(self).__name__} is for {self.predictor}, and {predictor} was given. "
                f"{predictor} takes a checkpoint of its own library."
            )
        if self._path is None:
            return self._model, dict(options)
        artifact = self.artifact()
        return artifact.path, {"sha256": artifact.sha256, **options}

    def artifact(self) -> Artifact:
        """Return the model's file, when every file of the folder is known to be what it was."""
        assert self._path is not None
        for name, digest in self._manifest["files"].items():
            place = os.path.join(self._path, name)
            if Artifact(place).digest() != digest:
                raise ModelChanged(
                    f"{place} has another SHA-256 than in {MANIFEST}. The checkpoint was changed or "
                    "damaged after it was written; get it again."
                )
        return Artifact(os.path.join(self._path, self.file), self._manifest["files"][self.file])

    def __repr__(self) -> str:
        if self._path is not None:
            return f"{type(self).__name__}({self._path!r})"
        return f"{type(self).__name__}(a {type(self._model).__name__} in memory)"

    # ------------------------------------------------------------ what differs from library to library

    @classmethod
    def _check(cls, model: Any) -> None:
        """Raise ``ArgumentError`` for what is no model of this library."""
        from headrace.predictors.registry import library_of

        if library_of(type(model)) != cls.kind:
            raise ArgumentError(
                f"{cls.__name__}.from_model takes a model of {cls.kind}, not {type(model).__name__}."
            )

    def _write(self, folder: str) -> dict[str, Any]:
        """Write the model's file; return what the JSON file is to remember beside."""
        raise NotImplementedError

    def _read(self, artifact: Artifact) -> Any:
        raise NotImplementedError

    def _write_all(self, folder: str) -> None:
        if self._path is None:
            remembered = self._write(folder)
            remembered["versions"] = {name: _version(name) for name in self.libraries}
        else:
            self.artifact()
            for name in self._manifest["files"]:
                _copy(os.path.join(self._path, name), os.path.join(folder, name))
            remembered = {name: value for name, value in self._manifest.items() if name != "files"}
        self._write_preprocessor(folder, remembered)
        manifest = {
            **remembered,
            "headrace_checkpoint": 1,
            "kind": self.kind,
            "files": {
                name: Artifact(os.path.join(folder, name)).digest() for name in sorted(os.listdir(folder))
            },
        }
        Path(folder, MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")

    def _write_preprocessor(self, folder: str, remembered: dict[str, Any]) -> None:
        """Write a transformer of scikit-learn; of any other, remember that there was one."""
        preprocessor, place = self._preprocessor, os.path.join(folder, PREPROCESSOR)
        if preprocessor is ...:
            return  # it is copied with the folder
        remembered.pop("without_preprocessor", None)
        if os.path.exists(place):
            os.remove(place)
        if preprocessor is None:
            return
        if type(preprocessor).__module__.partition(".")[0] == "sklearn":
            require("skops", "sklearn", "A checkpoint with a preprocessor of scikit-learn")
            import skops.io

            skops.io.dump(preprocessor, place)
        else:
            remembered["without_preprocessor"] = getattr(
                preprocessor, "__qualname__", type(preprocessor).__name__
            )


def _copy(place: str, to: str) -> None:
    (shutil.copytree if os.path.isdir(place) else shutil.copyfile)(place, to)


_KINDS = {
    "torch_checkpoint": ("TorchCheckpoint",),
    "transformers_checkpoint": ("TransformersCheckpoint",),
    "library_checkpoints": (
        "SklearnCheckpoint",
        "XGBoostCheckpoint",
        "LightGBMCheckpoint",
        "KerasCheckpoint",
        "OnnxCheckpoint",
    ),
}


def _kinds() -> list[type[Checkpoint]]:
    """Return the classes; their modules build upon this one, so they are imported by name."""
    return [
        getattr(importlib.import_module(f"headrace.compat.air.{module}"), name)
        for module, names in _KINDS.items()
        for name in names
    ]


def _manifest_at(place: str) -> dict[str, Any]:
    """Read the JSON file of a folder; it may come from anybody, so it is looked at closely."""
    path = os.path.join(place, MANIFEST)
    try:
        manifest = from_json(content(path))
    except FileNotFoundError:
        raise ModelUnreadable(
            f"There is no checkpoint at {place}: no {MANIFEST}. A checkpoint is what to_directory wrote; "
            "load_model reads model files of other makes."
        ) from None
    except (OSError, ValueError) as error:
        raise ModelUnreadable(f"{path} cannot be read: {error}. Get the checkpoint again.") from error
    if not isinstance(manifest, dict) or manifest.get("headrace_checkpoint") != 1:
        raise ModelUnreadable(f"{path} is not a checkpoint that this version of Headrace can read.")
    files: Any = manifest.get("files")
    kind: Any = manifest.get("kind")
    needed = [each.file for each in _kinds() if each.kind == kind]
    sound = isinstance(kind, str) and isinstance(files, dict) and files.keys() >= set(needed)
    if not sound or not all(map(_is_plain, files.items())):
        raise ModelUnreadable(f"{path} has no list of the checkpoint's files. Get it again.")
    checked: dict[str, Any] = manifest
    return checked


def _is_plain(entry: tuple[Any, Any]) -> bool:
    """Say whether an entry of ``files`` names a file of the folder itself, and a digest."""
    name, digest = entry
    return isinstance(digest, str) and name == os.path.basename(name) and name not in ("", "..", ".")


def _version(library: str) -> str:
    try:
        return importlib.metadata.version("scikit-learn" if library == "sklearn" else library)
    except importlib.metadata.PackageNotFoundError:  # xgboost-cpu, say
        return str(getattr(importlib.import_module(library), "__version__", "unknown"))
