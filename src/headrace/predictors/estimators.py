"""What the predictors of fitted estimators share: a model that is an object or a file, its method and identity."""

from __future__ import annotations

import os
import sys
from typing import Any, ClassVar

from headrace.core.arrow.model_columns import listed, shapes
from headrace.core.files.artifacts import Artifact, refuse_pickle, require, shortened, try_elsewhere
from headrace.errors import ArgumentError, BadInput, ModelError, ModelUnreadable, nearest
from headrace.predictors import Direct


class EstimatorPredictor(Direct):
    """Base of the predictors whose model is a fitted object of a library, a file of it, or a pickle.

    A subclass names its library, calls ``_open`` in ``__init__``, sets ``_loaded`` in ``load``, and implements
    ``_kind_of``, ``_check_model``, ``_read_file``, ``_content`` and ``_options``.
    """

    library: ClassVar[str]
    """What is imported; the extra of ours that installs it, and the first word of the identity, too."""
    library_name: ClassVar[str]
    methods: ClassVar[tuple[str, ...]]
    instead_of_pickle: ClassVar[str]
    """A sentence with the way to save a model without one."""
    not_a_model: ClassVar[str]
    """The rest of the sentence about a file of no known kind."""
    how_to_repair: ClassVar[str]
    """Questions and advice for a file that cannot be read."""

    def _open(self, model: Any, *, method: str, sha256: str | None, trust_pickle: bool) -> None:
        """Check the method, and that ``model`` is a fitted object or a file that may be read."""
        if method not in self.methods:
            raise ArgumentError(
                f"method={method!r} is not known.{nearest(str(method), self.methods)} There are: "
                f"{', '.join(self.methods)}."
            )
        self._method, self._trust_pickle = method, trust_pickle
        self._artifact: Artifact | None = None
        self._kind: str | None = None
        self._model: Any = None
        self.__dict__.update(self._unloaded())
        if isinstance(model, (str, os.PathLike)):
            self._artifact = Artifact(os.fspath(model), sha256).checked()
            self.label = self._artifact.name
            self._kind = self._checked_kind(self._artifact)
        else:
            self._model = model
            self.label = type(model).__name__
            self._check_model(model)

    def identity(self) -> Any:
        """Return the digest of the file, or the content of the object; and the options that change results."""
        content = self._content(self._model) if self._artifact is None else (self._artifact.digest(),)
        return (self.library, *content, *self._options())

    def weights(self) -> str:
        """Describe where the weights are."""
        if self._artifact is not None:
            return f"each worker reads its own copy of {self.label}"
        return f"the trees of {self.label} are private to each worker"

    def _model_to_load(self) -> Any:
        """Return the object, or read the file. Raises ``ModelUnreadable`` with the library's message."""
        artifact = self._artifact
        if artifact is None:
            return self._model
        artifact.verify()
        try:
            if self._kind != "pickle":
                try_elsewhere(self, artifact, errors_count=True)
            model = self._unpickled(artifact) if self._kind == "pickle" else self._read_file(artifact)
            self._check_model(model)
            return model
        except (ModelError, MemoryError):
            raise
        except Exception as error:
            raise ModelUnreadable(
                f"The {self.library_name} model {artifact.path} cannot be read: {self._message(error)}. "
                f"{self.how_to_repair}"
            ) from error

    def predict_one_row(self) -> None:
        """Use a model that was loaded, to see whether it works at all; its errors do not matter."""

    def _checked_kind(self, artifact: Artifact) -> str:
        """Return the kind of a file, whose libraries are installed; raise for a pickle that is not trusted."""
        kind = self._kind_of(artifact.path)
        if kind is None:
            raise ModelUnreadable(f"{artifact.path} {self.not_a_model}")
        if kind == "pickle":
            refuse_pickle(artifact, trust_pickle=self._trust_pickle, instead=self.instead_of_pickle)
        require(self.library, self.library, f"The model {artifact.name}")
        return kind

    def _refused(self, error: Exception, batch: Any) -> BadInput:
        """Return the error for a batch that the library does not take."""
        given = shapes(batch) if isinstance(batch, dict) else f"columns {listed(map(str, batch.columns))}"
        return BadInput(f"{self.library_name} refused it: {self._message(error)}. It was given {given}")

    def _message(self, error: BaseException) -> str:
        """Return a library's message in one paragraph without its full stop."""
        return shortened(error).rstrip(":") or type(error).__name__

    def _kind_of(self, path: str) -> str | None:
        """Return the kind of a file, ``"pickle"`` among them; None for a file of another kind."""
        raise NotImplementedError

    def _check_model(self, model: Any) -> None:
        """Raise ``ArgumentError`` unless this is a model of the library, ``ModelError`` unless it is fitted."""
        raise NotImplementedError

    def _read_file(self, artifact: Artifact) -> Any:
        """Return the model that is in a file, which is no pickle."""
        raise NotImplementedError

    def _unpickled(self, artifact: Artifact) -> Any:
        import cloudpickle

        with open(artifact.path, "rb") as file:
            return cloudpickle.load(file)

    def _content(self, model: Any) -> tuple[Any, ...]:
        """Return what determines an object's results, as values that are the same in every process."""
        raise NotImplementedError

    def _options(self) -> tuple[Any, ...]:
        """Return the options that change results."""
        raise NotImplementedError


class BoosterPredictor(EstimatorPredictor):
    """Base of the predictors of boosted trees: a booster, an estimator that has one, or a file of a booster."""

    methods = ("predict", "predict_proba", "class", "margin", "leaf", "contributions")
    needs_classifier: ClassVar[tuple[str, ...]]
    """The methods that an estimator has only if it is a classifier."""
    estimator_class: ClassVar[str]
    class_objectives: ClassVar[tuple[str, ...]]
    """The objectives whose results are classes."""

    def _unloaded(self) -> dict[str, Any]:
        return {"_loaded": None, "_booster": None}

    def _check_model(self, model: Any) -> None:
        library = sys.modules.get(self.library)  # it is imported if the model is one of it
        known = False
        if library is not None and not isinstance(model, type):
            known = isinstance(model, (library.Booster, getattr(library, self.estimator_class)))
        if not known:
            given = model.__name__ if isinstance(model, type) else type(model).__name__
            raise ArgumentError(
                f"{given} is not a trained model of {self.library_name}: give a Booster or a fitted "
                f"{self.estimator_class}."
            )
        if hasattr(model, "fit") and not model.__sklearn_is_fitted__():
            raise ModelError(f"{type(model).__name__} is not fitted yet: call fit() before predicting.")

    def _check_method(self, model: Any) -> None:
        """Raise ``ArgumentError`` if a model, None for a booster in a file, does not have the method."""
        if self._method not in self.needs_classifier or hasattr(model, "predict_proba"):
            return
        if hasattr(model, "fit"):
            why = f"{type(model).__name__} is no classifier"
        elif self._method == "class":  # whether a booster has classes, its objective decides
            return
        else:
            why = "a booster's method='predict' gives probabilities if it was trained to"
        raise ArgumentError(f"{self.label} has no method={self._method!r}: {why}.")

    def _check_classes(self, objective: str) -> None:
        """Raise ``ArgumentError`` if a booster of this objective has no classes."""
        if objective not in self.class_objectives:
            raise ArgumentError(
                f"{self.label} has no classes: method='class' is for classifiers, and it was trained for "
                f"{objective!r}."
            )
