"""Checkpoints of scikit-learn, XGBoost, LightGBM, Keras and ONNX: each a safe file of the library's own."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from headrace.compat.air.checkpoint import Checkpoint
from headrace.core.arguments import known_arguments
from headrace.core.files.artifacts import Artifact, require
from headrace.errors import ArgumentError, ModelUnreadable

C = TypeVar("C", bound="Checkpoint")


class SklearnCheckpoint(Checkpoint):
    """A fitted estimator or pipeline of scikit-learn; in a folder, a file of skops.

    ``from_model(model)`` raises ``ArgumentError`` for any other model, ``get_model`` raises ``ModelChanged`` for
    files that are not what was written; see ``Checkpoint``.

    >>> from sklearn.linear_model import LinearRegression
    >>> checkpoint = SklearnCheckpoint.from_model(LinearRegression().fit([[1.0], [2.0]], [2.0, 4.0]))
    >>> checkpoint.get_model().predict([[3.0]]).round(6).tolist()
    [6.0]
    """

    kind, file, libraries = "sklearn", "model.skops", ("sklearn", "skops")
    predictor = "SklearnPredictor"

    @known_arguments
    def get_model(self, *, trusted: Sequence[str] = ()) -> Any:
        """Return the estimator. ``trusted``: names of types in the file that skops does not know, and you trust.

        Raises ``UntrustedPickle`` for types beyond those, and what ``Checkpoint.get_model`` does.
        """
        if self._path is None:
            return self._model
        from headrace.predictors.sklearn import read_skops

        require("skops", "sklearn", f"The checkpoint {self._path}")
        return read_skops(self.artifact(), trusted=trusted)

    @classmethod
    def _check(cls, model: Any) -> None:
        if not callable(getattr(model, "fit", None)) or isinstance(model, type):
            raise ArgumentError(
                f"SklearnCheckpoint.from_model takes an estimator, not {type(model).__name__}."
            )

    def _write(self, folder: str) -> dict[str, Any]:
        require("skops", "sklearn", "A checkpoint of scikit-learn")
        import skops.io

        skops.io.dump(self._model, os.path.join(folder, self.file))
        return {}


class XGBoostCheckpoint(Checkpoint):
    """A booster of XGBoost, or an estimator of it such as ``XGBClassifier``; in a folder, a file of ``save_model``.

    ``from_model(model)`` raises ``ArgumentError`` for any other model, ``get_model`` raises ``ModelChanged`` for
    files that are not what was written; see ``Checkpoint``.

    >>> import numpy as np, xgboost
    >>> x = np.arange(10.0)
    >>> booster = xgboost.train({"base_score": 0}, xgboost.DMatrix(x[:, None], x > 4), 20)
    >>> XGBoostCheckpoint.from_model(booster).get_model() is booster
    True
    """

    kind, file, libraries = "xgboost", "model.ubj", ("xgboost",)
    predictor = "XGBoostPredictor"

    def given_to(self, predictor: str, options: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """See ``Checkpoint.given_to``; an estimator goes as the object, since a file holds only its trees."""
        model, given = super().given_to(predictor, options)
        if self._path is None or self._manifest.get("class") == "Booster":
            return model, given
        given.pop("sha256")
        return self.get_model(), given

    def _write(self, folder: str) -> dict[str, Any]:
        self._model.save_model(os.path.join(folder, self.file))
        import xgboost

        name = type(self._model).__name__
        return {"class": name if hasattr(xgboost, name) else "Booster"}

    def _read(self, artifact: Artifact) -> Any:
        import xgboost

        kind = getattr(xgboost, str(self._manifest.get("class", "Booster")), None)
        if not isinstance(kind, type) or not issubclass(kind, (xgboost.Booster, xgboost.XGBModel)):
            raise ModelUnreadable(
                f"{self._path} names the class {self._manifest.get('class')!r}, which is not a model of this XGBoost."
            )
        model = kind()
        model.load_model(artifact.path)
        return model


class LightGBMCheckpoint(Checkpoint):
    """A booster of LightGBM; in a folder, its text file. Of an estimator, give ``estimator.booster_``.

    ``from_model(model)`` raises ``ArgumentError`` for any other model, ``get_model`` raises ``ModelChanged`` for
    files that are not what was written; see ``Checkpoint``.

    >>> import lightgbm, numpy as np
    >>> x = np.arange(100.0)
    >>> booster = lightgbm.train({"verbose": -1}, lightgbm.Dataset(x[:, None], x > 40), 5)
    >>> LightGBMCheckpoint.from_model(booster).get_model() is booster
    True
    """

    kind, file, libraries = "lightgbm", "model.txt", ("lightgbm",)
    predictor = "LightGBMPredictor"

    @classmethod
    def _check(cls, model: Any) -> None:
        super()._check(model)
        if hasattr(model, "booster_"):
            raise ArgumentError(
                "LightGBMCheckpoint.from_model takes a booster, since LightGBM's files hold no estimators: give "
                "model.booster_, and method='class' to the predictor for the number of the likeliest class."
            )

    def _write(self, folder: str) -> dict[str, Any]:
        self._model.save_model(os.path.join(folder, self.file))
        return {}

    def _read(self, artifact: Artifact) -> Any:
        import lightgbm

        return lightgbm.Booster(model_file=artifact.path)


class KerasCheckpoint(Checkpoint):
    """A Keras model; in a folder, a ``.keras`` file.

    ``from_model(model)`` raises ``ArgumentError`` for any other model, ``get_model`` raises ``ModelChanged`` for
    files that are not what was written; see ``Checkpoint``.

    >>> KerasCheckpoint.from_model(3)
    Traceback (most recent call last):
    ...
    headrace.errors.ArgumentError: KerasCheckpoint.from_model takes a model of keras, not int.
    """

    kind, file, libraries = "keras", "model.keras", ("keras",)
    predictor = "KerasPredictor"

    def given_to(self, predictor: str, options: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """See ``Checkpoint.given_to``; Ray AIR's ``model_definition`` is passed over, as the model is at hand."""
        return super().given_to(predictor, {k: v for k, v in options.items() if k != "model_definition"})

    @known_arguments
    def get_model(self, *, custom_objects: Mapping[str, Any] | None = None) -> Any:
        """Return the ``keras.Model``. ``custom_objects``: classes and functions of yours that the file names.

        Raises ``UntrustedPickle`` for a file with Python code in it, and what ``Checkpoint.get_model`` does.
        """
        if self._path is None:
            return self._model
        from headrace.predictors.keras.files import checked_format

        artifact = self.artifact()
        checked_format(artifact, trust_pickle=False)
        require("keras", "keras", f"The checkpoint {self._path}")
        import keras

        return keras.saving.load_model(artifact.path, custom_objects=custom_objects, compile=False)

    def _write(self, folder: str) -> dict[str, Any]:
        self._model.save(os.path.join(folder, self.file))
        return {}


class OnnxCheckpoint(Checkpoint):
    """An ONNX model: an ``onnx.ModelProto``, its bytes, or the path of an ``.onnx`` file.

    ``from_model(model)`` raises ``ArgumentError`` for any other model, ``get_model`` raises ``ModelChanged`` for
    files that are not what was written; see ``Checkpoint``.

    >>> OnnxCheckpoint.from_model(b"\\x08\\x08\\x3a\\x00")
    OnnxCheckpoint(a bytes in memory)
    """

    kind, file, libraries = "onnx", "model.onnx", ("onnxruntime",)
    predictor = "OnnxPredictor"

    def get_model(self) -> Any:
        """Return the ``onnx.ModelProto``; for that, onnx has to be installed."""
        require("onnx", "onnx", "OnnxCheckpoint.get_model")
        import onnx

        model = self._model
        if self._path is not None:
            model = Path(self.artifact().path).read_bytes()
        return onnx.load_model_from_string(model) if isinstance(model, bytes) else model

    @classmethod
    def from_model(cls: type[C], model: Any, *, preprocessor: Any = None) -> C:
        """Hold a ``ModelProto`` or its bytes; a file is read, and its weights have to be in it."""
        if isinstance(model, (str, os.PathLike)):
            model = Path(model).expanduser().read_bytes()
        if not isinstance(model, bytes) and not hasattr(model, "SerializeToString"):
            raise ArgumentError(
                f"OnnxCheckpoint.from_model takes a ModelProto, its bytes or a path, not {type(model).__name__}."
            )
        return cls._made(model)._with(preprocessor)

    def _write(self, folder: str) -> dict[str, Any]:
        model = self._model
        Path(folder, self.file).write_bytes(model if isinstance(model, bytes) else model.SerializeToString())
        return {}
