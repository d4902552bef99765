"""What the predictors for texts share: a model that is an object or a folder, its device, weights and identity."""

from __future__ import annotations

import os
from typing import Any, ClassVar

from headrace.core.files.artifacts import Artifact, require
from headrace.errors import ArgumentError
from headrace.predictors.huggingface import (
    checked_folder,
    loading,
    restore_modes,
    set_eval_mode,
    set_library_defaults,
)


class TextPredictor:
    """Base of predictors whose model is an object of a library, or a folder that ``save_pretrained`` wrote.

    A subclass names its library, calls ``_open`` in ``__init__``, and implements ``_load_folder``, ``_copy_to``,
    ``_content`` and ``_options``.
    """

    batch_format = "numpy"

    library: ClassVar[str]
    """What is imported, the package of the model's class."""
    extra: ClassVar[str]
    """The extra of ours that installs the library; it is in messages and identities, too."""
    model_class: ClassVar[str]
    marker: ClassVar[str]
    """The JSON file by which a folder of this library is known."""
    dtypes: ClassVar[tuple[str, ...]] = ("float32", "float16", "bfloat16")

    label: str

    def _open(
        self,
        model: Any,
        *,
        device: str | None,
        dtype: str | None,
        batch_size: int,
        trust_pickle: bool,
        sha256: str | None,
    ) -> None:
        """Check the options that all have, and that ``model`` is a folder or an object of the library."""
        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
            raise ArgumentError(f"batch_size= takes a whole number of at least 1, not {batch_size!r}.")
        if dtype is not None and dtype not in self.dtypes:
            raise ArgumentError(f"dtype= takes one of {self.dtypes}, not {dtype!r}.")
        self._device, self._dtype, self._batch_size = device, dtype, batch_size
        self._trust_pickle = trust_pickle
        self._artifact: Artifact | None = None
        self._model: Any = None
        self._loaded: Any = None
        self._modes: list[tuple[Any, bool]] = []
        if isinstance(model, str | os.PathLike):
            self._artifact = checked_folder(
                os.fspath(model), sha256, marker=self.marker, trust_pickle=trust_pickle
            )
            self.label = self._artifact.name
            for module in (self.library, "torch"):
                require(module, self.extra, f"The model {self.label}")
        else:
            self._check_object(model)
            self._only_for_folders(dtype=dtype, sha256=sha256)
            self._model = model
            self.label = type(model).__name__

    def load(self) -> None:
        """Load the folder, or use the object that was given; without dropout, whatever its mode."""
        set_library_defaults()
        if self._artifact is None:
            # A copy is moved to another device: the object may be the user's own.
            self._loaded = self._model if self._device is None else self._copy_to(self._device)
        else:
            self._artifact.verify()
            with loading(self._artifact):
                self._loaded = self._load_folder(self._artifact)
        self._modes = set_eval_mode(self._loaded)

    def close(self) -> None:
        """Release the model; an object that was given has its modes again."""
        self._loaded = None
        restore_modes(self._modes)
        self._modes = []

    def identity(self) -> Any:
        """Return the digest of the folder, or the content of the object; and the options that change results."""
        content = self._content(self._model) if self._artifact is None else (self._artifact.digest(),)
        return (self.extra, *content, *self._options())

    def weights(self) -> str:
        """Describe where the weights are."""
        if self._artifact is not None:
            return f"each worker loads its own copy of {self.label}"
        return (
            "weights are shared between workers" if self._device is None else "each worker moves its own copy"
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_loaded": None, "_modes": []}

    def _precision(self) -> dict[str, Any]:
        return {} if self._dtype is None else {"dtype": self._dtype}

    def _weight_files(self) -> dict[str, Any]:
        """Return the option that refuses all but safetensors, unless pickles are trusted."""
        return {} if self._trust_pickle else {"use_safetensors": True}

    def _check_object(self, model: Any) -> None:
        """Raise ``ArgumentError`` unless ``model`` is an instance of the library's class."""
        if (self.library, self.model_class) not in _ancestors(model):
            raise ArgumentError(
                f"A {self.extra} model is a {self.model_class} or a folder, not {type(model).__name__}."
                f"{self._hint(model)}"
            )

    def _hint(self, model: Any) -> str:
        """Return what to do with an object of another class, as further sentences."""
        return ""

    def _only_for_folders(self, **options: Any) -> None:
        for name, value in options.items():
            if value is not None:
                raise ArgumentError(f"{name}= is for folders; a {self.model_class} has its own.")

    def _load_folder(self, artifact: Artifact) -> Any:
        """Return the model that is in a folder, which was checked."""
        raise NotImplementedError

    def _copy_to(self, device: str) -> Any:
        """Return a copy of the object on another device."""
        raise NotImplementedError

    def _content(self, model: Any) -> tuple[Any, ...]:
        """Return what determines an object's results, as values that are the same in every process."""
        raise NotImplementedError

    def _options(self) -> tuple[Any, ...]:
        """Return the options that change results."""
        raise NotImplementedError


def from_library(model: Any, library: str) -> bool:
    """Return whether an object's class, or one of its ancestors, is of a library; nothing is imported."""
    return any(package == library for package, _ in _ancestors(model))


def _ancestors(model: Any) -> list[tuple[str, str]]:
    return [(each.__module__.partition(".")[0], each.__name__) for each in type(model).__mro__]
