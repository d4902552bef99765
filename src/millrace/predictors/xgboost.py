"""XGBoost's boosters and its estimators, as objects or as files of JSON or UBJSON."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import re
import sys
from typing import Any, Literal

import numpy as np

from millrace.core.arguments import known_arguments
from millrace.core.artifacts import Artifact, is_pickle, refuse_pickle, require, shortened, threads
from millrace.core.direct import Direct, directly
from millrace.core.inputs import Columns
from millrace.core.matrix import listed, matrix
from millrace.errors import ArgumentError, BadInput, ModelError, ModelUnreadable, nearest

METHODS = ("predict", "predict_proba", "class", "margin", "leaf", "contributions")
_JSON = re.compile(rb'\s*\{\s*"(learner|version)"\s*:')
_UBJ = re.compile(rb"\{(L.{8}|l.{4}|I.{2}|[iU].)(learner|version)", re.DOTALL)
_INSTEAD = "Save it with save_model('model.ubj') instead, which holds the trees and no code."
_TAIL = 64


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
    return "ubj" if os.path.splitext(path)[1].lower() == ".ubj" else None


class XGBoostPredictor(Direct):
    """Predicts with trees of XGBoost: a ``Booster``, an estimator such as ``XGBClassifier``, or a file of either.

    Columns are matched by name if the model was trained with names; otherwise one column of shape (n, k…) or
    several side by side are its matrix. NaN is a missing value. A categorical feature takes the values that
    it had in training, or their codes; a value that is new is an error, as it is in XGBoost, unless
    ``unknown_categories="missing"``.

    A file holds trees, not the estimator: it predicts as ``Booster.predict`` does (probabilities for a
    classifier, and all its trees, unless ``iteration_range`` says which). ``method="class"`` gives the number
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
    unknown_categories
        ``error`` or ``missing``: what a value is that a categorical feature did not have in training. None and NaN
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
    >>> import numpy as np, xgboost
    >>> x = np.arange(10.0)
    >>> booster = xgboost.train({"base_score": 0}, xgboost.DMatrix(x[:, None], x > 4), 20)
    >>> predictor = XGBoostPredictor(booster)
    >>> predictor.load()
    >>> predictor.predict({"x": np.array([1.0, 8.0])}).round().tolist()
    [0.0, 1.0]
    """

    batch_format: Literal["numpy"] = "numpy"

    @known_arguments
    def __init__(
        self,
        model: Any,
        *,
        method: str = "predict",
        iteration_range: tuple[int, int] | None = None,
        unknown_categories: Literal["error", "missing"] = "error",
        sha256: str | None = None,
        trust_pickle: bool = False,
    ) -> None:
        if method not in METHODS:
            raise ArgumentError(
                f"method={method!r} is not known.{nearest(str(method), METHODS)} There are: {', '.join(METHODS)}."
            )
        if unknown_categories not in ("error", "missing"):
            raise ArgumentError(f"unknown_categories is 'error' or 'missing', not {unknown_categories!r}.")
        self._method = method
        self._unknown = unknown_categories
        self._range = _checked_range(iteration_range)
        self._artifact: Artifact | None = None
        self._model: Any = None
        self._ours = False  # whether nobody else holds the model, so that its settings may be changed
        self._loaded: Any = None
        self._booster: Any = None
        self._categories: dict[str, dict[Any, int]] = {}
        self._config: dict[str, Any] = {}
        if isinstance(model, (str, os.PathLike)):
            self._artifact = Artifact(os.fspath(model), sha256).checked()
            self.label = self._artifact.name
            self._kind = _checked_kind(self._artifact, trust_pickle)
            if self._kind != "pickle":  # a booster, then
                self._check_method(None)
        else:
            self._model = model
            self.label = type(model).__name__
            _check_model(model)
            self._check_method(model)

    def load(self) -> None:
        """Read the file, if it is one, and bound the threads."""
        count = threads()
        if self._artifact is not None:
            model = self._read(self._artifact)
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
            self._check_classes()

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
        made = self._from_trees(rows)
        return self._classes(made) if self._method == "class" else made

    def close(self) -> None:
        """Let go of what was read."""
        self._loaded = self._booster = None

    def identity(self) -> Any:
        """Return the digest of the file, or of the trees."""
        if self._artifact is not None:
            return ("xgboost", self._artifact.digest(), self._method, self._range, self._unknown)
        trees = hashlib.sha256(_booster_of(self._model).save_raw("ubj")).hexdigest()
        kind, missing = type(self._model).__name__, repr(getattr(self._model, "missing", None))
        return ("xgboost", kind, trees, missing, self._method, self._range, self._unknown)

    def weights(self) -> str:
        """Say where they are."""
        if self._artifact is not None:
            return f"each worker reads its own copy of {self.label}"
        return f"the trees of {self.label} are private to each worker"

    def __copy__(self) -> XGBoostPredictor:
        """Return another for this process, of the same model: only what travels is packed."""
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__, _loaded=None, _booster=None)
        return made

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what was loaded; a copy that travelled is nobody else's."""
        loaded: dict[str, Any] = {"_loaded": None, "_booster": None, "_categories": {}, "_config": {}}
        return {**self.__dict__, **loaded, "_ours": True}

    def _check_method(self, model: Any) -> None:
        wanted = "predict_proba" if self._method == "class" else self._method
        if wanted != "predict_proba" or hasattr(model, wanted):
            return
        if not hasattr(model, "get_booster"):
            if self._method == "class":
                return
            why = "a booster's method='predict' gives probabilities if it was trained to"
        else:
            why = f"{type(model).__name__} is no classifier"
        raise ArgumentError(f"{self.label} has no method={self._method!r}: {why}.")

    def _check_classes(self) -> None:
        objective = self._config["objective"]["name"]
        if objective not in ("binary:logistic", "binary:hinge", "multi:softprob", "multi:softmax"):
            raise ArgumentError(
                f"{self.label} has no classes: method='class' is for classifiers, and it was trained for "
                f"{objective!r}."
            )

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
        if self._unknown == "error":
            new = dict.fromkeys(value for value in values if value not in codes and not _is_missing(value))
            if new:
                raise BadInput(
                    f"{name!r} has categories that the model was not trained with: {listed(map(str, new))}. Give "
                    "the model as XGBoostPredictor(model, unknown_categories='missing') to count them as missing, or "
                    "leave such rows out"
                )
        return np.array([codes.get(value, np.nan) for value in values], np.float32)

    def _read(self, artifact: Artifact) -> Any:
        artifact.verify()
        try:
            if self._kind == "pickle":
                import cloudpickle

                with open(artifact.path, "rb") as file:
                    model = cloudpickle.load(file)
                _check_model(model)
                return model
            import xgboost

            # XGBoost would go by the file's suffix; from memory it goes by the content.
            with open(artifact.path, "rb") as file:
                data = bytearray(file.read())
            _check_whole(data, self._kind)
            booster = xgboost.Booster(model_file=data)
            booster.num_features()
            return booster
        except (ModelError, MemoryError):
            raise
        except Exception as error:
            raise ModelUnreadable(
                f"The XGBoost model {artifact.path} cannot be read: {_short(error)}. Is it whole, and not of a newer "
                "version of XGBoost than the one here? If so, write it again with save_model('model.ubj')."
            ) from error


def _checked_kind(artifact: Artifact, trust_pickle: bool) -> str:
    kind: str | None = kind_of(artifact.path)
    if kind is None and is_pickle(artifact.path):
        refuse_pickle(artifact, trust_pickle=trust_pickle, instead=_INSTEAD)
        kind = "pickle"
    if kind is None:
        raise ModelUnreadable(
            f"{artifact.path} is no XGBoost model: it begins neither as JSON nor as UBJSON of save_model()."
        )
    require("xgboost", "xgboost", f"The model {artifact.name}")
    return kind


def _check_whole(data: bytearray, kind: str) -> None:
    """Raise for UBJSON that was cut: XGBoost would read on behind its end, and may die of what is there."""
    if kind == "ubj" and not (data.endswith(b"}") and b"version" in data[-_TAIL:]):
        raise ValueError("its end is missing")


def _check_model(model: Any) -> None:
    """Raise unless ``model`` is a booster or a fitted estimator of XGBoost; it is imported if it is one."""
    xgboost = sys.modules.get("xgboost")
    if isinstance(model, type) or xgboost is None:
        known = False
    else:
        known = isinstance(model, (xgboost.Booster, xgboost.XGBModel))
    if not known:
        given = model.__name__ if isinstance(model, type) else type(model).__name__
        raise ArgumentError(f"{given} is no trained model of XGBoost: give a Booster or a fitted XGBModel.")
    if hasattr(model, "get_booster") and not model.__sklearn_is_fitted__():
        raise ModelError(f"{type(model).__name__} is not fitted yet: call fit() before predicting.")


def _booster_of(model: Any) -> Any:
    return model.get_booster() if hasattr(model, "get_booster") else model


def _is_missing(value: Any) -> bool:
    return value is None or value != value


def _categories(booster: Any) -> dict[str, dict[Any, int]]:
    """Return the codes of each categorical feature's values, for models that keep them (XGBoost 3.1 on)."""
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


def _short(error: BaseException) -> str:
    """Return what XGBoost said, without its stack trace, file names and time."""
    said = str(error).split("Stack trace:")[0].strip().splitlines() or [""]
    return shortened(re.sub(r"^\[[\d:]+\] \S+: ", "", said[0])).rstrip(":") or type(error).__name__
