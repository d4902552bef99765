"""LightGBM's boosters and its estimators, as objects or as its text files."""

from __future__ import annotations

import hashlib
import os
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np

from millrace.core.arguments import known_arguments
from millrace.core.artifacts import Artifact, is_pickle, refuse_pickle, require, shortened, threads
from millrace.core.direct import Direct, directly
from millrace.core.inputs import shapes
from millrace.core.matrix import check_names, listed, matrix
from millrace.errors import ArgumentError, BadInput, ModelError, ModelUnreadable, nearest

METHODS = ("predict", "predict_proba", "class", "margin", "leaf", "contributions")
_HEAD = re.compile(rb"\s*tree\r?\n(.*\r?\n)*?version=v\d+")
_INSTEAD = "Save its booster with save_model('model.txt') instead, which holds the trees and no code."
_OTHER_NAMES = "X does not have valid feature names"


def kind_of(path: str) -> Literal["text"] | None:
    """Say whether the file at ``path`` is a model of LightGBM, by its content.

    >>> import tempfile, pathlib
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = pathlib.Path(folder, "m").write_bytes(b"tree\\nversion=v4\\n")
    ...     kind_of(folder + "/m")
    'text'
    """
    try:
        with open(path, "rb") as file:
            return "text" if _HEAD.match(file.read(256)) else None
    except OSError:
        return None


class LightGBMPredictor(Direct):
    """Predicts with trees of LightGBM: a ``Booster``, an estimator such as ``LGBMClassifier``, or a text file.

    Columns are matched by name if the model was trained with names; otherwise one column of shape (n, k…) or
    several side by side are its matrix. NaN is a missing value. A model trained with categories of pandas takes
    DataFrames, and the same values. A value that is new counts as missing, as in LightGBM itself, unless
    ``unknown_categories="error"``.

    A file holds trees, not the estimator: it predicts as ``Booster.predict`` does (probabilities for a
    classifier). ``method="class"`` gives the number of the likeliest class.

    Parameters
    ----------
    model
        A booster or a fitted estimator; or the path of a file that ``save_model`` wrote, or of a pickle.
    method
        ``predict``; ``predict_proba`` of a classifier; ``class``: int64 (n,); ``margin``: raw scores;
        ``leaf``: the number of the leaf in each tree; ``contributions``: (n, k + 1), SHAP values.
    num_iteration
        How many rounds of trees to use; default: the best one if training stopped early, otherwise all.
    unknown_categories
        ``missing`` or ``error``: what a value is that a category of pandas did not have in training. None and NaN
        are missing either way.
    sha256
        The digest that a file must have.
    trust_pickle
        Whether a pickle may be read, which runs whatever code it has in it.

    Raises
    ------
    ModelError
        An estimator that is not fitted; ``UntrustedPickle``, ``ModelUnreadable``, ``ModelChanged``.

    Examples
    --------
    >>> import lightgbm, numpy as np
    >>> x = np.arange(100.0)
    >>> booster = lightgbm.train({"verbose": -1}, lightgbm.Dataset(x[:, None], x > 40), 50)
    >>> predictor = LightGBMPredictor(booster)
    >>> predictor.load()
    >>> predictor.predict({"x": np.array([10.0, 80.0])}).round().tolist()
    [0.0, 1.0]
    """

    @known_arguments
    def __init__(
        self,
        model: Any,
        *,
        method: str = "predict",
        num_iteration: int | None = None,
        unknown_categories: Literal["error", "missing"] = "missing",
        sha256: str | None = None,
        trust_pickle: bool = False,
    ) -> None:
        if method not in METHODS:
            raise ArgumentError(
                f"method={method!r} is not known.{nearest(str(method), METHODS)} There are: {', '.join(METHODS)}."
            )
        if num_iteration is not None and (type(num_iteration) is not int or num_iteration < 1):
            raise ArgumentError(f"num_iteration={num_iteration!r} should be a number of rounds, 1 or more.")
        if unknown_categories not in ("error", "missing"):
            raise ArgumentError(f"unknown_categories is 'missing' or 'error', not {unknown_categories!r}.")
        self._method = method
        self._unknown = unknown_categories
        self._rounds = num_iteration
        self._artifact: Artifact | None = None
        self._model: Any = None
        self._loaded: Any = None
        self._booster: Any = None
        self._names: list[str] | None = None
        self.batch_format: Literal["numpy", "pandas"] = "numpy"
        if isinstance(model, (str, os.PathLike)):
            self._artifact = Artifact(os.fspath(model), sha256).checked()
            self.label = self._artifact.name
            self._kind = _checked_kind(self._artifact, trust_pickle)
            if self._kind == "text":  # a booster, then
                self._check_method(None)
        else:
            self._model = model
            self.label = type(model).__name__
            _check_model(model)
            self._check_method(model)
            self._settle(_booster_of(model))

    def load(self) -> None:
        """Read the file, if it is one; say how batches should come."""
        model = self._model if self._artifact is None else self._read(self._artifact)
        booster = _booster_of(model)
        if self._artifact is not None:
            self._check_method(model)
            self._settle(booster)
        names = booster.feature_name()
        given_none = names == [f"Column_{i}" for i in range(len(names))]
        self._names = None if given_none else names
        self._loaded, self._booster = model, booster

    def predict(self, batch: Any) -> Any:
        """Return what the model gives for the batch."""
        if self._loaded is None:
            return directly(self, batch)
        rows = self._rows(batch)
        options: dict[str, Any] = {"num_iteration": self._rounds}
        if (count := threads()) is not None:
            options["num_threads"] = count
        try:
            if self._loaded is not self._booster and self._method in ("predict", "predict_proba"):
                with _without_names():
                    return getattr(self._loaded, self._method)(rows, **options)
            made = self._booster.predict(
                rows,
                raw_score=self._method == "margin",
                pred_leaf=self._method == "leaf",
                pred_contrib=self._method == "contributions",
                **options,
            )
        except (ValueError, TypeError) as error:
            given = shapes(batch) if isinstance(batch, dict) else f"columns {listed(map(str, batch.columns))}"
            raise BadInput(f"LightGBM refused it: {_short(error)}. It was given {given}") from error
        if self._method != "class":
            return made
        return (np.argmax(made, axis=1) if made.ndim > 1 else made > 0.5).astype(np.int64)

    def close(self) -> None:
        """Let go of what was read."""
        self._loaded = self._booster = None

    def identity(self) -> Any:
        """Return the digest of the file, or of the trees."""
        if self._artifact is not None:
            return ("lightgbm", self._artifact.digest(), self._method, self._rounds, self._unknown)
        trees = hashlib.sha256(
            _booster_of(self._model).model_to_string(num_iteration=-1).encode()
        ).hexdigest()
        best = _booster_of(self._model).best_iteration if self._rounds is None else None
        labels = getattr(self._model, "classes_", None)
        kind = type(self._model).__name__
        return ("lightgbm", kind, trees, best, labels, self._method, self._rounds, self._unknown)

    def weights(self) -> str:
        """Say where they are."""
        if self._artifact is not None:
            return f"each worker reads its own copy of {self.label}"
        return f"the trees of {self.label} are private to each worker"

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what was loaded."""
        return {**self.__dict__, "_loaded": None, "_booster": None, "_names": None}

    def _settle(self, booster: Any) -> None:
        if booster.pandas_categorical:
            require("pandas", "pandas", f"{self.label}, which was trained with categories of pandas,")
            self.batch_format = "pandas"
        if self._method == "class":
            objective = str(booster.dump_model(num_iteration=1).get("objective", "")).split(" ")[0]
            if objective not in ("binary", "multiclass", "multiclassova", "cross_entropy"):
                raise ArgumentError(
                    f"{self.label} has no classes: method='class' is for classifiers, and it was trained for "
                    f"{objective!r}."
                )

    def _check_method(self, model: Any) -> None:
        if self._method != "predict_proba" or hasattr(model, "predict_proba"):
            return
        if hasattr(model, "booster_"):
            why = f"{type(model).__name__} is no classifier"
        else:
            why = "a booster's method='predict' gives probabilities if it was trained to"
        raise ArgumentError(f"{self.label} has no method={self._method!r}: {why}.")

    def _rows(self, batch: Any) -> Any:
        """Return what the model is called with."""
        if self.batch_format == "numpy":
            columns = {self._known(name): array for name, array in batch.items()}
            return matrix(columns, names=self._names, count=self._booster.num_feature())
        import pandas as pd

        given = {self._known(str(name)): name for name in batch.columns}
        check_names(self._names or (), list(given))
        frame = batch[[given[name] for name in self._names]] if self._names else batch
        texts = [name for name in frame.columns if not pd.api.types.is_numeric_dtype(frame[name])]
        if len(texts) == len(self._booster.pandas_categorical):
            # Texts come as texts, where training had categories; LightGBM gives them the codes of training.
            if self._unknown == "error":
                for name, known in zip(texts, self._booster.pandas_categorical, strict=True):
                    _refuse_new(str(name), frame[name], known)
            frame = frame.astype(dict.fromkeys(texts, "category"))
        return frame

    def _known(self, name: str) -> str:
        """Return the name that LightGBM gave to a column: it has no spaces."""
        return name if self._names is None or name in self._names else name.replace(" ", "_")

    def _read(self, artifact: Artifact) -> Any:
        artifact.verify()
        try:
            if self._kind == "pickle":
                import cloudpickle

                with open(artifact.path, "rb") as file:
                    model = cloudpickle.load(file)
                _check_model(model)
                return model
            _check_whole(artifact.path)
            import lightgbm

            return lightgbm.Booster(model_file=artifact.path)
        except (ModelError, MemoryError):
            raise
        except Exception as error:
            raise ModelUnreadable(
                f"The LightGBM model {artifact.path} cannot be read: {_short(error)}. Is it whole, and not of a "
                "newer version of LightGBM than the one here? If so, write it again with save_model('model.txt')."
            ) from error


def _refuse_new(name: str, column: Any, known: list[Any]) -> None:
    new = column[~(column.isin(known) | column.isna())].unique().tolist()
    if new:
        raise BadInput(
            f"{name!r} has categories that the model was not trained with: {listed(map(str, new))}. Leave out "
            "unknown_categories='error' to count them as missing, or leave such rows out"
        )


def _checked_kind(artifact: Artifact, trust_pickle: bool) -> str:
    kind: str | None = kind_of(artifact.path)
    if kind is None and is_pickle(artifact.path):
        refuse_pickle(artifact, trust_pickle=trust_pickle, instead=_INSTEAD)
        kind = "pickle"
    if kind is None:
        raise ModelUnreadable(
            f"{artifact.path} is no LightGBM model: it does not begin with the lines 'tree' and 'version=' of "
            "save_model()."
        )
    require("lightgbm", "lightgbm", f"The model {artifact.name}")
    return kind


def _check_whole(path: str) -> None:
    """Raise if trees are not where the head of the file says: LightGBM ends the process where it meets none."""
    with open(path, "rb") as file:
        data = file.read()
    if b"\0" in data:
        raise ValueError("it holds bytes that are no text")  # LightGBM would never come back
    sizes = re.search(rb"^tree_sizes=([\d ]*)\r?$", data, re.MULTILINE)
    at = data.find(b"\nTree=0") + 1
    if sizes is None or not at:
        raise ValueError("it has no trees, or its head does not say how long they are")
    for number, size in enumerate(map(int, sizes[1].split())):
        tree = data[at : at + size]
        if not tree.startswith(b"Tree=%d\n" % number) or len(tree) < size or b"\nleaf_value=" not in tree:
            raise ValueError(f"its tree number {number} is damaged")
        at += size
    if not data.startswith(b"end of trees", at):
        raise ValueError("its trees do not end where they should")


def _check_model(model: Any) -> None:
    """Raise unless ``model`` is a booster or a fitted estimator of LightGBM; it is imported if it is one."""
    lightgbm = sys.modules.get("lightgbm")
    if isinstance(model, type) or lightgbm is None:
        known = False
    else:
        known = isinstance(model, (lightgbm.Booster, lightgbm.LGBMModel))
    if not known:
        given = model.__name__ if isinstance(model, type) else type(model).__name__
        raise ArgumentError(f"{given} is no trained model of LightGBM: give a Booster or a fitted LGBMModel.")
    if hasattr(model, "fit") and not model.__sklearn_is_fitted__():
        raise ModelError(f"{type(model).__name__} is not fitted yet: call fit() before predicting.")


def _booster_of(model: Any) -> Any:
    return model.booster_ if hasattr(model, "booster_") else model


@contextmanager
def _without_names() -> Iterator[None]:
    """Let an estimator that was fitted with names take a matrix: its columns are in their order already."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", _OTHER_NAMES, UserWarning)
        yield


def _short(error: BaseException) -> str:
    """Return what was said, in one paragraph without its full stop."""
    return shortened(error).rstrip(":") or type(error).__name__
