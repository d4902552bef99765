"""LightGBM's boosters and its estimators, as objects or as its text files."""

from __future__ import annotations

import hashlib
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np

from headrace.core.arguments import known_arguments
from headrace.core.arrow.model_columns import check_names, matrix
from headrace.core.files.artifacts import Artifact, NotReadable, is_pickle, open_regular, require, threads
from headrace.errors import ArgumentError
from headrace.predictors import directly
from headrace.predictors.estimators import BoosterPredictor

_HEAD = re.compile(rb"\s*tree\r?\n(.*\r?\n)*?version=v\d+")
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


class LightGBMPredictor(BoosterPredictor):
    """Predicts with trees of LightGBM: a ``Booster``, an estimator such as ``LGBMClassifier``, or a text file.

    Columns are matched by name if the model was trained with names; otherwise one column of shape (n, k…) or
    several side by side are its matrix. NaN is a missing value. A model trained with categories of pandas takes
    DataFrames, and the same values. A value that is new counts as missing, as in LightGBM itself.

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

    classes = ("Booster", "LGBMModel")
    kind_of = staticmethod(kind_of)
    library = "lightgbm"
    library_name = "LightGBM"
    estimator_class = "LGBMModel"
    needs_classifier = ("predict_proba",)
    class_objectives = ("binary", "multiclass", "multiclassova", "cross_entropy")
    instead_of_pickle = (
        "Save its booster with save_model('model.txt') instead, which holds the trees and no code."
    )
    not_a_model = (
        "is no LightGBM model: it does not begin with the lines 'tree' and 'version=' of save_model()."
    )
    how_to_repair = (
        "Is it whole, and not of a newer version of LightGBM than the one here? If so, write it again with "
        "save_model('model.txt')."
    )

    @known_arguments
    def __init__(
        self,
        model: Any,
        *,
        method: str = "predict",
        num_iteration: int | None = None,
        sha256: str | None = None,
        trust_pickle: bool = False,
    ) -> None:
        if num_iteration is not None and (type(num_iteration) is not int or num_iteration < 1):
            raise ArgumentError(f"num_iteration={num_iteration!r} should be a number of rounds, 1 or more.")
        self._rounds = num_iteration
        self.batch_format: Literal["numpy", "pandas"] = "numpy"
        self._open(model, method=method, sha256=sha256, trust_pickle=trust_pickle)
        if self._kind != "pickle":  # an object, or a file of a booster
            self._check_method(self._model)
        if self._artifact is None:
            self._choose_format(_booster_of(model))

    def load(self) -> None:
        """Read the file, if it is one; set the form of batches."""
        model = self._model_to_load()
        booster = _booster_of(model)
        if self._artifact is not None:
            self._check_method(model)
            self._choose_format(booster)
        names = booster.feature_name()
        unnamed = names == [f"Column_{i}" for i in range(len(names))]
        self._names = None if unnamed else names
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
            result = self._booster.predict(
                rows,
                raw_score=self._method == "margin",
                pred_leaf=self._method == "leaf",
                pred_contrib=self._method == "contributions",
                **options,
            )
        except (ValueError, TypeError) as error:
            raise self._refused(error, batch) from error
        if self._method != "class":
            return result
        return (np.argmax(result, axis=1) if result.ndim > 1 else result > 0.5).astype(np.int64)

    def predict_one_row(self) -> None:
        """Predict a row of zeros."""
        self._booster.predict(np.zeros((1, self._booster.num_feature())))

    def _unloaded(self) -> dict[str, Any]:
        return {**super()._unloaded(), "_names": None}

    def _kind_of(self, path: str) -> str | None:
        return kind_of(path) or ("pickle" if is_pickle(path) else None)

    def _content(self, model: Any) -> tuple[Any, ...]:
        booster = _booster_of(model)
        trees = hashlib.sha256(booster.model_to_string(num_iteration=-1).encode()).hexdigest()
        best = booster.best_iteration if self._rounds is None else None
        return (type(model).__name__, trees, best, getattr(model, "classes_", None))

    def _options(self) -> tuple[Any, ...]:
        return (self._method, self._rounds, "missing")  # what new categories are, which could be chosen once

    def _choose_format(self, booster: Any) -> None:
        """Set the form of batches; check that there are classes, where these are wanted."""
        if booster.pandas_categorical:
            require("pandas", "pandas", f"{self.label}, which was trained with categories of pandas,")
            self.batch_format = "pandas"
        if self._method == "class":
            self._check_classes(str(booster.dump_model(num_iteration=1).get("objective", "")).split(" ")[0])

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
            frame = frame.astype(dict.fromkeys(texts, "category"))
        return frame

    def _known(self, name: str) -> str:
        """Return the name that LightGBM gave to a column: it has no spaces."""
        return name if self._names is None or name in self._names else name.replace(" ", "_")

    def _read_file(self, artifact: Artifact) -> Any:
        import lightgbm

        with open_regular(artifact.path) as file:
            text = file.read().decode()
        if "\nend of trees" not in text or "\0" in text:  # LightGBM would end the process
            raise NotReadable("its end is missing, or it holds bytes that are not text")
        return lightgbm.Booster(model_str=text)


def _booster_of(model: Any) -> Any:
    return model.booster_ if hasattr(model, "booster_") else model


@contextmanager
def _without_names() -> Iterator[None]:
    """Allow a matrix for an estimator that was fitted with names: its columns are in their order already."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", _OTHER_NAMES, UserWarning)
        yield
