"""Ray AIR's checkpoints: a trained model in memory, with what prepares its data."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, NoReturn, TypeVar

from headrace.compat.air.scored_data import Preprocessing, preparing_method
from headrace.core.arguments import Unsupported, known_arguments
from headrace.core.files.artifacts import require
from headrace.errors import ArgumentError, ModelError, NotOffered, nearest

C = TypeVar("C", bound="Checkpoint")

_NO_FOLDER = (
    "a checkpoint is in memory. Save the model in its library's own format, and give the file to a predictor: "
    "data.predict(hr.TorchPredictor('model.safetensors', architecture=Net))."
)
_OF_RAY = {
    "path": Unsupported(_NO_FOLDER),
    "init_kwargs": Unsupported("the module is kept as it is", None),
}


class Checkpoint:
    """A trained model in memory; ``TorchCheckpoint`` and its like are those of one library.

    ``preprocessor=`` is what prepares the data for the model: a fitted transformer of scikit-learn, a preprocessor of
    Ray's (anything with ``transform_batch`` or ``transform``), or a function of a DataFrame. ``BatchPredictor`` lets
    the data pass through it. Raises ``ArgumentError`` for a model of another library.

    >>> from sklearn.linear_model import LinearRegression
    >>> from headrace.compat.ray.train.sklearn import SklearnCheckpoint
    >>> checkpoint = SklearnCheckpoint.from_model(LinearRegression().fit([[1.0], [2.0]], [2.0, 4.0]))
    >>> checkpoint.get_model().predict([[3.0]]).round(6).tolist()
    [6.0]
    """

    kind: ClassVar[str] = ""
    predictor: ClassVar[str] = ""
    _model: Any
    _preprocessor: Any = None

    def __init__(self, model: Any = None) -> None:
        raise ArgumentError(f"{type(self).__name__}() makes nothing: from_model(model) takes a model.")

    @classmethod
    @known_arguments(also=_OF_RAY)
    def from_model(cls: type[C], model: Any, *, preprocessor: Any = None) -> C:
        """Hold a model object; nothing is copied. Raises ``ArgumentError`` for another library's.

        ``preprocessor``: what prepares the data for the model.
        """
        if not cls.kind:
            raise ArgumentError(
                "Checkpoint.from_model cannot know the library: take TorchCheckpoint.from_model or one of its like."
            )
        cls._check(model)
        return cls._made(model, preprocessor)

    @classmethod
    def from_directory(cls, path: str | os.PathLike[str]) -> NoReturn:
        """Raise ``NotOffered``: there are no folders of checkpoints."""
        raise NotOffered(f"{cls.__name__}.from_directory is not offered here: {_NO_FOLDER}")

    def to_directory(self, path: str | os.PathLike[str] | None = None) -> NoReturn:
        """Raise ``NotOffered``: there are no folders of checkpoints."""
        raise NotOffered(f"{type(self).__name__}.to_directory is not offered here: {_NO_FOLDER}")

    def get_model(self) -> Any:
        """Return the model."""
        return self._model

    def get_preprocessor(self) -> Any:
        """Return what prepares the data, or None."""
        return self._preprocessor

    def set_preprocessor(self, preprocessor: Any) -> None:
        """Let another prepare the data, or none: ``None``. Raises ``ArgumentError`` for what cannot."""
        if preprocessor is not None:
            preparing_method(preprocessor)
        self._preprocessor = preprocessor

    def preparing(self) -> Preprocessing | None:
        """Return the preprocessor as a function of a batch; None if there is none."""
        return None if self._preprocessor is None else Preprocessing(self._preprocessor)

    def given_to(self, predictor: str, options: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Return what the predictor of this name is made of: the model, and its options."""
        if predictor != self.predictor:
            raise ArgumentError(
                f"A {type(self).__name__} is for {self.predictor}, and {predictor} was given. "
                f"{predictor} takes a checkpoint of its own library."
            )
        return self._model, dict(options)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(a {type(self._model).__name__} in memory)"

    @classmethod
    def _made(cls: type[C], model: Any, preprocessor: Any) -> C:
        made = object.__new__(cls)
        made._model = model
        made.set_preprocessor(preprocessor)
        return made

    @classmethod
    def _check(cls, model: Any) -> None:
        """Raise ``ArgumentError`` for what is no model of this library."""
        from headrace.predictors import library_of

        if library_of(type(model)) != cls.kind:
            raise ArgumentError(
                f"{cls.__name__}.from_model takes a model of {cls.kind}, not {type(model).__name__}."
            )


class SklearnCheckpoint(Checkpoint):
    """A fitted estimator or pipeline of scikit-learn; see ``Checkpoint``."""

    kind, predictor = "sklearn", "SklearnPredictor"

    @classmethod
    def _check(cls, model: Any) -> None:
        if not callable(getattr(model, "fit", None)) or isinstance(model, type):
            raise ArgumentError(
                f"SklearnCheckpoint.from_model takes an estimator, not {type(model).__name__}."
            )


class XGBoostCheckpoint(Checkpoint):
    """A booster of XGBoost, or an estimator of it such as ``XGBClassifier``; see ``Checkpoint``."""

    kind, predictor = "xgboost", "XGBoostPredictor"


class LightGBMCheckpoint(Checkpoint):
    """A booster of LightGBM; of an estimator, give ``estimator.booster_``. See ``Checkpoint``."""

    kind, predictor = "lightgbm", "LightGBMPredictor"

    @classmethod
    def _check(cls, model: Any) -> None:
        super()._check(model)
        if hasattr(model, "booster_"):
            raise ArgumentError(
                "LightGBMCheckpoint.from_model takes a booster: give model.booster_, and method='class' to the "
                "predictor for the number of the likeliest class."
            )


class KerasCheckpoint(Checkpoint):
    """A Keras model; see ``Checkpoint``."""

    kind, predictor = "keras", "KerasPredictor"

    def given_to(self, predictor: str, options: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """See ``Checkpoint.given_to``; Ray AIR's ``model_definition`` is passed over, as the model is at hand."""
        return super().given_to(predictor, {k: v for k, v in options.items() if k != "model_definition"})


class OnnxCheckpoint(Checkpoint):
    """An ONNX model: an ``onnx.ModelProto``, its bytes, or the path of an ``.onnx`` file; see ``Checkpoint``.

    >>> OnnxCheckpoint.from_model(b"\\x08\\x08\\x3a\\x00")
    OnnxCheckpoint(a bytes in memory)
    """

    kind, predictor = "onnx", "OnnxPredictor"

    def get_model(self) -> Any:
        """Return the ``onnx.ModelProto``; for that, onnx has to be installed."""
        require("onnx", "onnx", "OnnxCheckpoint.get_model")
        import onnx

        return onnx.load_model_from_string(self._model) if isinstance(self._model, bytes) else self._model

    @classmethod
    def from_model(cls: type[C], model: Any, *, preprocessor: Any = None) -> C:
        """Hold a ``ModelProto`` or its bytes; a file is read, and its weights have to be in it."""
        if isinstance(model, (str, os.PathLike)):
            model = Path(model).expanduser().read_bytes()
        if not isinstance(model, bytes) and not hasattr(model, "SerializeToString"):
            raise ArgumentError(
                f"OnnxCheckpoint.from_model takes a ModelProto, its bytes or a path, not {type(model).__name__}."
            )
        return cls._made(model, preprocessor)


class TorchCheckpoint(Checkpoint):
    """A module of PyTorch, or the weights of one; see ``Checkpoint``.

    ``get_model(model=…)``, and ``model=`` where a predictor is made, say what weights belong to: a module, or a class
    or function that makes one.
    """

    kind, predictor = "torch", "TorchPredictor"

    @classmethod
    @known_arguments
    def from_state_dict(
        cls, state_dict: Mapping[str, Any], model: Any = None, *, preprocessor: Any = None
    ) -> TorchCheckpoint:
        """Hold weights by name, and ``model``, what they belong to, if it is given: a module, a class, a function."""
        if not isinstance(state_dict, Mapping) or hasattr(state_dict, "forward"):
            raise ArgumentError(
                f"from_state_dict takes what module.state_dict() returns, not {type(state_dict).__name__}."
            )
        held = _Weights(state_dict) if model is None else _filled(model, state_dict)
        return cls._made(held, preprocessor)

    @known_arguments
    def get_model(self, model: Any = None) -> Any:
        """Return the module, with its weights. ``model``: what they belong to, where the checkpoint cannot know.

        Raises ``ModelError`` where ``model=`` is needed, ``ModelUnreadable`` if the weights do not fit.
        """
        if isinstance(self._model, _Weights):
            if model is None:
                raise ModelError(
                    "The checkpoint holds weights without a module: give the module, get_model(model=Net()), "
                    "or model=Net() where the predictor is made."
                )
            return _filled(model, self._model.state)
        return self._model if model is None else _filled(model, self._model.state_dict())

    def given_to(self, predictor: str, options: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """See ``Checkpoint.given_to``; ``model`` (or ``architecture``) and ``use_gpu`` may be among the options."""
        given = dict(options)
        if given.pop("use_gpu", False):
            given.setdefault("device", "cuda")
        architecture = given.pop("architecture", None)
        model = given.pop("model", architecture)
        _, more = super().given_to(predictor, given)
        return self.get_model(model), more


class _Weights:
    """Weights without a module."""

    def __init__(self, state: Mapping[str, Any]) -> None:
        self.state = dict(state)


def _filled(model: Any, state: Mapping[str, Any]) -> Any:
    from headrace.predictors.torch.files import filled

    return filled(model, dict(state), "the checkpoint")


_OF_PREDICTOR = ("task", "dtype", "batch_size", "call_kwargs", "trust_remote_code", "trust_pickle")


class TransformersCheckpoint(Checkpoint):
    """A model of Hugging Face's transformers with its tokenizer; see ``Checkpoint``.

    ``TransformersPredictor`` makes a pipeline of both. In ``BatchPredictor.from_checkpoint(checkpoint,
    TransformersPredictor, …)`` and in ``predict`` what is no option of the predictor is one of the pipeline's call,
    as in Ray AIR: ``top_k=3``, ``max_new_tokens=20``.

    >>> TransformersCheckpoint.from_model(3)
    Traceback (most recent call last):
    ...
    headrace.errors.ArgumentError: TransformersCheckpoint.from_model takes a transformers.PreTrainedModel, not int.
    """

    kind, predictor = "transformers", "TransformersPredictor"
    _tokenizer: Any = None

    @classmethod
    @known_arguments(also=_OF_RAY)
    def from_model(
        cls, model: Any, tokenizer: Any = None, *, preprocessor: Any = None
    ) -> TransformersCheckpoint:
        """Hold a model, and the tokenizer that its pipeline needs. ``preprocessor``: what prepares the data."""
        cls._check(model)
        made = cls._made(model, preprocessor)
        made._tokenizer = tokenizer
        return made

    def get_tokenizer(self) -> Any:
        """Return the tokenizer; None without one."""
        return self._tokenizer

    def given_to(self, predictor: str, options: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """See ``Checkpoint.given_to``; ``use_gpu``, ``pipeline_cls`` and ``tokenizer`` are as in AIR."""
        given = {name: value for name, value in options.items() if name in _OF_PREDICTOR}
        more = {name: value for name, value in options.items() if name not in _OF_PREDICTOR}
        device = more.pop("device", "cuda" if more.pop("use_gpu", False) else None)
        kind, tokenizer = more.pop("pipeline_cls", None), more.pop("tokenizer", None)
        for name in ("model_cls", "pretrained_model_kwargs"):  # they read a folder, and the model is at hand
            more.pop(name, None)
        if device is not None:
            given["device"] = _device(device)
        if more:
            given["call_kwargs"] = {**(given.get("call_kwargs") or {}), **more}
        _, made = super().given_to(predictor, given)
        pipeline = self._pipeline(made.pop("task", None), kind, tokenizer or self._tokenizer)
        return pipeline, {name: value for name, value in made.items() if name != "dtype"}

    @classmethod
    def _check(cls, model: Any) -> None:
        names = {(each.__module__.partition(".")[0], each.__name__) for each in type(model).__mro__}
        if ("transformers", "PreTrainedModel") not in names:
            raise ArgumentError(
                f"{cls.__name__}.from_model takes a transformers.PreTrainedModel, not {type(model).__name__}."
            )

    def _pipeline(self, task: str | None, kind: Any, tokenizer: Any) -> Any:
        """Return the model and its tokenizer as a pipeline."""
        import transformers

        from headrace.annex.models.transformers import task_of_class

        model = self._model
        if isinstance(tokenizer, (str, os.PathLike)):
            tokenizer = transformers.AutoTokenizer.from_pretrained(tokenizer, local_files_only=True)
        if kind is not None:
            return kind(model=model, tokenizer=tokenizer, device=model.device)
        if tokenizer is None:
            raise ArgumentError(
                f"{self!r} has no tokenizer, and a pipeline needs one: "
                "TransformersCheckpoint.from_model(model, tokenizer)."
            )
        task = task or task_of_class(type(model).__name__)
        if task is None:
            raise ArgumentError(
                f"A {type(model).__name__} does not tell its task: give task='text-classification', or another, "
                "where the predictor is made."
            )
        try:
            return transformers.pipeline(task, model=model, tokenizer=tokenizer, device=model.device)
        except KeyError:
            known = transformers.pipelines.PIPELINE_REGISTRY.get_supported_tasks()
            raise ArgumentError(
                f"task={task!r} is none that transformers {transformers.__version__} has."
                f"{nearest(str(task), known) or ' It has: ' + ', '.join(known) + '.'}"
            ) from None


def _device(device: Any) -> Any:
    """Return a device by its name; AIR's pipelines took numbers, too.

    >>> _device(0), _device(-1), _device("cuda:1")
    ('cuda:0', 'cpu', 'cuda:1')
    """
    if isinstance(device, int) and not isinstance(device, bool):
        return f"cuda:{device}" if device >= 0 else "cpu"
    return str(device)
