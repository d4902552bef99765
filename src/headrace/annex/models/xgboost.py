"""XGBoost's boosters and its estimators, as objects or as files of JSON or UBJSON."""

from __future__ import annotations

import copy
import hashlib
import json
import re
from typing import Any, Literal, cast

import numpy as np

from headrace.core.arguments import known_arguments
from headrace.core.arrow.model_columns import Columns, listed, matrix
from headrace.core.files.artifacts import Artifact, is_pickle, open_regular, shortened, threads
from headrace.core.files.formats import model_format
from headrace.errors import ArgumentError, BadInput
from headrace.predictors import directly
from headrace.predictors.estimators import BoosterPredictor

_JSON = re.compile(rb'\s*\{\s*"(learner|version)"\s*:')
_UBJ = re.compile(rb"\{(L.{8}|l.{4}|I.{2}|[iU].)(learner|version)", re.DOTALL)


def kind_of(path: str) -> Literal["json", "ubj", "binary"] | None:
    """Say which kind of XGBoost file is at ``path``; ``binary`` is that of before version 1.0; None: no such file.

    >>> import tempfile, pathlib
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = pathlib.Path(folder, "m").write_bytes(b'{"learner":{}}')
    ...     kind_of(folder + "/m")
    'json'
    """
    try:
        with open(path, "rb") as file:
            head = file.read(256)
    except OSError:
        return None
    if _JSON.match(head):
        return "json"
    if _UBJ.match(head):
        return "ubj"
    if head.startswith(b"binf"):
        return "binary"
    return cast("Literal['ubj'] | None", model_format(path, "xgboost"))


class XGBoostPredictor(BoosterPredictor):
    """Predicts with trees of XGBoost: a ``Booster``, an estimator such as ``XGBClassifier``, or a file of either.

    Columns are matched by name if the model was trained with names; otherwise one column of shape (n, k…) or
    several side by side are its matrix. NaN is a missing value. A categorical feature takes the values that
    it had in training, or their codes; a value that is new is an error, as it is in XGBoost.

    A file holds trees, not the estimator: it predicts as ``Booster.predict`` does (probabilities for a
    classifier, and all its trees, unless ``iteration_range`` is set). ``method="class"`` gives the number
    of the likeliest class.

    Parameters
    ----------
    model
        A booster or a fitted estimator; or the path of a file that ``save_model`` wrote, or of a pickle.
    method
        ``predict``; ``predict_proba`` of a classifier; ``class``: int64 (n,); ``margin``: before the link
        function; ``leaf``: the number of the leaf in each tree; ``contributions``: (n, k + 1), SHAP values.
    iteration_range
        ``(first, stop)``: which rounds of trees to use; default: as the model does by itself.
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
    >>> import numpy as np, xgboost
    >>> x = np.arange(10.0)
    >>> booster = xgboost.train({"base_score": 0}, xgboost.DMatrix(x[:, None], x > 4), 20)
    >>> predictor = XGBoostPredictor(booster)
    >>> predictor.load()
    >>> predictor.predict({"x": np.array([1.0, 8.0])}).round().tolist()
    [0.0, 1.0]
    """

    classes = ("Booster", "XGBModel")
    kind_of = staticmethod(kind_of)
    batch_format: Literal["numpy"] = "numpy"

    library = "xgboost"
    library_name = "XGBoost"
    estimator_class = "XGBModel"
    needs_classifier = ("predict_proba", "class")
    class_objectives = ("binary:logistic", "binary:hinge", "multi:softprob", "multi:softmax")
    instead_of_pickle = "Save it with save_model('model.ubj') instead, which holds the trees and no code."
    not_a_model = "is no XGBoost model: it begins neither as JSON nor as UBJSON of save_model()."
    how_to_repair = (
        "Is it whole, and not of a newer version of XGBoost than the one here? If so, write it again with "
        "save_model('model.ubj')."
    )

    @known_arguments
    def __init__(
        self,
        model: Any,
        *,
        method: str = "predict",
        iteration_range: tuple[int, int] | None = None,
        sha256: str | None = None,
        trust_pickle: bool = False,
    ) -> None:
        self._range = _checked_range(iteration_range)
        self._ours = False  # whether the model is this worker's alone, so that its settings may be changed
        self._open(model, method=method, sha256=sha256, trust_pickle=trust_pickle)
        if self._kind != "pickle":  # an object, or a file of a booster
            self._check_method(self._model)

    def load(self) -> None:
        """Read the file, if it is one, and bound the threads."""
        count = threads()
        if self._artifact is not None:
            model = self._model_to_load()
            self._check_method(model)
        elif count is None or self._ours:
            model = self._model
        else:
            model = copy.deepcopy(self._model)
        booster = _booster_of(model)
        if count is not None:
            booster.set_param({"nthread": count})
            if model is not booster:
                model.n_jobs = count
        self._categories = _categories(booster)
        self._config = json.loads(booster.save_config())["learner"]
        self._loaded, self._booster = model, booster
        if self._method == "class" and model is booster:
            self._check_classes(self._config["objective"]["name"])

    def predict(self, batch: Columns) -> Any:
        """Return what the model gives for the batch."""
        if self._loaded is None:
            return directly(self, batch)
        booster = self._booster
        if self._categories:
            batch = {name: self._codes(name, array) for name, array in batch.items()}
        rows = matrix(batch, names=booster.feature_names, count=booster.num_features())
        # Names and number of the features are checked, and a matrix has no names to check again.
        if self._loaded is not booster and self._method in ("predict", "predict_proba", "class"):
            method = getattr(self._loaded, "predict" if self._method == "class" else self._method)
            return method(rows, iteration_range=self._range, validate_features=False)
        result = self._from_trees(rows)
        return self._classes(result) if self._method == "class" else result

    def predict_one_row(self) -> None:
        """Predict a row of zeros."""
        self._from_trees(np.zeros((1, self._booster.num_features()), np.float32))

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what was loaded; a copy that was sent belongs to its worker alone."""
        return {**super().__getstate__(), "_ours": True}

    def _unloaded(self) -> dict[str, Any]:
        return {**super()._unloaded(), "_categories": {}, "_config": {}}

    def _kind_of(self, path: str) -> str | None:
        return kind_of(path) or ("pickle" if is_pickle(path) else None)

    def _content(self, model: Any) -> tuple[Any, ...]:
        trees = hashlib.sha256(_booster_of(model).save_raw("ubj")).hexdigest()
        return (type(model).__name__, trees, repr(getattr(model, "missing", None)))

    def _options(self) -> tuple[Any, ...]:
        return (self._method, self._range, "error")  # what new categories are, which could be chosen once

    def _message(self, error: BaseException) -> str:
        """Leave out XGBoost's stack trace, file names and time."""
        lines = str(error).split("Stack trace:")[0].strip().splitlines() or [""]
        return shortened(re.sub(r"^\[[\d:]+\] \S+: ", "", lines[0])).rstrip(":") or type(error).__name__

    def _from_trees(self, rows: np.ndarray[Any, Any]) -> Any:
        """Predict as ``Booster.predict`` does; without a copy of the matrix where XGBoost can."""
        between = self._range or (0, 0)
        linear = self._config["gradient_booster"]["name"] == "gblinear"
        if self._range is None and self._loaded is not self._booster and not linear:
            between = (0, getattr(self._loaded, "best_iteration", -1) + 1)  # as the estimator does
        missing = getattr(self._loaded, "missing", np.nan)
        plain = self._method in ("predict", "class", "margin")
        if plain and not linear:
            kind = "margin" if self._method == "margin" else "value"
            return self._booster.inplace_predict(
                rows, iteration_range=between, predict_type=kind, missing=missing, validate_features=False
            )
        import xgboost

        return self._booster.predict(
            xgboost.DMatrix(
                rows,
                missing=missing,
                nthread=threads(),
                feature_types=self._booster.feature_types,
                enable_categorical=True,
            ),
            iteration_range=between,
            output_margin=self._method == "margin",
            pred_leaf=self._method == "leaf",
            pred_contribs=self._method == "contributions",
            validate_features=False,
        )

    def _classes(self, made: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return the number of the likeliest class."""
        objective = self._config["objective"]["name"]
        if objective == "multi:softprob":
            found: np.ndarray[Any, Any] = np.argmax(made, axis=1)
        else:
            found = made if objective == "multi:softmax" else made > 0.5
        return found.astype(np.int64)

    def _codes(self, name: str, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return the codes of a categorical feature's values; numbers are codes where the values are texts."""
        codes = self._categories.get(name)
        if codes is None or (array.dtype != object and all(isinstance(value, str) for value in codes)):
            return array
        if array.ndim != 1:
            raise BadInput(
                f"{name!r} is one categorical feature, but it was given {array.dtype} {array.shape}"
            )
        if array.dtype != object and array.dtype.kind in "US":
            array = array.astype(object)
        values = array.tolist()
        new = dict.fromkeys(value for value in values if value not in codes and not _is_missing(value))
        if new:
            raise BadInput(
                f"{name!r} has categories that the model was not trained with: {listed(map(str, new))}. Leave such "
                "rows out, or make nulls of such values in a step before, which count as missing"
            )
        return np.array([codes.get(value, np.nan) for value in values], np.float32)

    def _read_file(self, artifact: Artifact) -> Any:
        import xgboost

        # XGBoost would go by the file's suffix; from memory it goes by the content.
        with open_regular(artifact.path) as file:
            data = bytearray(file.read())
        booster = xgboost.Booster(model_file=data)
        booster.num_features()
        return booster


def _booster_of(model: Any) -> Any:
    return model.get_booster() if hasattr(model, "get_booster") else model


def _is_missing(value: Any) -> bool:
    return value is None or value != value


def _categories(booster: Any) -> dict[str, dict[Any, int]]:
    """Return the codes of each categorical feature's values, for models that store them (XGBoost 3.1 and later)."""
    if "c" not in (booster.feature_types or ()) or not hasattr(booster, "get_categories"):
        return {}
    pairs = booster.get_categories(export_to_arrow=True).to_arrow() or ()
    return {
        name: {value: code for code, value in enumerate(values.to_pylist())}
        for name, values in pairs
        if values is not None
    }


def _checked_range(given: Any) -> tuple[int, int] | None:
    if given is None:
        return None
    whole = isinstance(given, (tuple, list)) and len(given) == 2 and all(type(each) is int for each in given)
    if not whole or not 0 <= given[0] <= given[1]:
        raise ArgumentError(f"iteration_range={given!r} should be two numbers of rounds: (first, stop).")
    return given[0], given[1]
