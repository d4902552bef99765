"""Ray AIR's checkpoints: a model in memory, or values by name, with what prepares its data."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, ClassVar, NoReturn, TypeVar

from headrace.compat.air.user_parts import Preprocessing, preparing_method
from headrace.core.arguments import Unsupported, known_arguments
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
    """Values by name, for a predictor of one's own; ``TorchCheckpoint`` and its like hold a model of one library.

    ``preprocessor=`` is what prepares the data for the model: a fitted transformer of scikit-learn, a preprocessor of
    Ray's (anything with ``transform_batch`` or ``transform``), or a function of a DataFrame. ``BatchPredictor`` lets
    the data pass through it. Raises ``ArgumentError`` for a model of another library.

    >>> Checkpoint.from_dict({"factor": 2}).to_dict()
    {'factor': 2}
    >>> from sklearn.linear_model import LinearRegression
    >>> from headrace.compat.ray.train.sklearn import SklearnCheckpoint
    >>> checkpoint = SklearnCheckpoint.from_model(LinearRegression().fit([[1.0], [2.0]], [2.0, 4.0]))
    >>> checkpoint.get_model().predict([[3.0]]).round(6).tolist()
    [6.0]
    """

    library: ClassVar[str] = ""
    predictor: ClassVar[str] = ""
    _model: Any
    _preprocessor: Any = None

    def __init__(self, model: Any = None) -> None:
        raise ArgumentError(f"{type(self).__name__}() makes nothing: from_model(model) takes a model.")

    @classmethod
    def from_dict(cls: type[C], data: Mapping[str, Any]) -> C:
        """Hold values by name. Raises ``ArgumentError`` for anything but a dict."""
        if not isinstance(data, Mapping):
            raise ArgumentError(
                f"Checkpoint.from_dict takes a dict of values by name, not {type(data).__name__}."
            )
        values = dict(data)
        return cls._made(values, values.pop("_preprocessor", None))

    def to_dict(self) -> dict[str, Any]:
        """Return the values by name; of a model, ``model``."""
        return dict(self._model) if isinstance(self._model, dict) else {"model": self._model}

    @classmethod
    @known_arguments(also=_OF_RAY)
    def from_model(cls: type[C], model: Any, *, preprocessor: Any = None) -> C:
        """Hold a model object; nothing is copied. Raises ``ArgumentError`` for another library's.

        ``preprocessor``: what prepares the data for the model.
        """
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
                f"A {type(self).__name__} is for {self.predictor or 'classes of your own'}, and {predictor} was "
                f"given. {predictor} takes a checkpoint of its own library."
            )
        return self._model, dict(options)

    def __repr__(self) -> str:
        held = ", ".join(self._model) if isinstance(self._model, dict) else f"a {type(self._model).__name__}"
        return f"{type(self).__name__}({held} in memory)"

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

        if not cls.library:
            raise ArgumentError(
                "Checkpoint.from_model cannot know the library: take TorchCheckpoint.from_model or one of its like."
            )
        if isinstance(model, type) or library_of(type(model)) != cls.library:
            raise ArgumentError(
                f"{cls.__name__}.from_model takes a model of {cls.library}, not {type(model).__name__}."
            )


class SklearnCheckpoint(Checkpoint):
    """A fitted estimator or pipeline of scikit-learn; see ``Checkpoint``."""

    library, predictor = "sklearn", "SklearnPredictor"

    @classmethod
    def _check(cls, model: Any) -> None:
        if not callable(getattr(model, "fit", None)) or isinstance(model, type):
            raise ArgumentError(
                f"SklearnCheckpoint.from_model takes an estimator, not {type(model).__name__}."
            )


class XGBoostCheckpoint(Checkpoint):
    """A booster of XGBoost, or an estimator of it such as ``XGBClassifier``; see ``Checkpoint``."""

    library, predictor = "xgboost", "XGBoostPredictor"


class LightGBMCheckpoint(Checkpoint):
    """A booster of LightGBM; of an estimator, give ``estimator.booster_``. See ``Checkpoint``."""

    library, predictor = "lightgbm", "LightGBMPredictor"

    @classmethod
    def _check(cls, model: Any) -> None:
        super()._check(model)
        if hasattr(model, "booster_"):
            raise ArgumentError("LightGBMCheckpoint.from_model takes a booster: give model.booster_.")


class KerasCheckpoint(Checkpoint):
    """A Keras model; see ``Checkpoint``."""

    library, predictor = "keras", "KerasPredictor"

    def given_to(self, predictor: str, options: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """See ``Checkpoint.given_to``; Ray AIR's ``model_definition`` is passed over, as the model is at hand."""
        return super().given_to(predictor, {k: v for k, v in options.items() if k != "model_definition"})


class TorchCheckpoint(Checkpoint):
    """A module of PyTorch, or the weights of one; see ``Checkpoint``.

    ``get_model(model=…)``, and ``model=`` where a predictor is made, say what weights belong to: a module, or a class
    or function that makes one.
    """

    library, predictor = "torch", "TorchPredictor"

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
        return cls._made(dict(state_dict) if model is None else _filled(model, state_dict), preprocessor)

    @known_arguments
    def get_model(self, model: Any = None) -> Any:
        """Return the module, with its weights. ``model``: what they belong to, where the checkpoint cannot know.

        Raises ``ModelError`` where ``model=`` is needed, ``ModelUnreadable`` if the weights do not fit.
        """
        if model is not None:
            held = self._model
            return _filled(model, held if isinstance(held, dict) else held.state_dict())
        if isinstance(self._model, dict):
            raise ModelError(
                "The checkpoint holds weights without a module: give the module, get_model(model=Net()), "
                "or model=Net() where the predictor is made."
            )
        return self._model

    def given_to(self, predictor: str, options: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """See ``Checkpoint.given_to``; ``model`` and ``use_gpu`` may be among the options."""
        given = dict(options)
        if given.pop("use_gpu", False):
            given.setdefault("device", "cuda")
        model = given.pop("model", None)
        _, more = super().given_to(predictor, given)
        return self.get_model(model), more


def _filled(model: Any, state: Mapping[str, Any]) -> Any:
    from headrace.predictors.torch.files import filled

    return filled(model, dict(state), "the checkpoint")


_OF_PREDICTOR = ("task", "batch_size", "call_kwargs", "trust_remote_code", "trust_pickle")


class TransformersCheckpoint(Checkpoint):
    """A model of Hugging Face's transformers with its tokenizer; see ``Checkpoint``.

    ``TransformersPredictor`` makes a pipeline of both. In ``BatchPredictor.from_checkpoint(checkpoint,
    TransformersPredictor, …)`` and in ``predict`` what is no option of the predictor is one of the pipeline's call,
    as in Ray AIR: ``top_k=3``, ``max_new_tokens=20``.
    """

    predictor = "TransformersPredictor"
    _tokenizer: Any = None

    @classmethod
    @known_arguments(also=_OF_RAY)
    def from_model(
        cls, model: Any, tokenizer: Any = None, *, preprocessor: Any = None
    ) -> TransformersCheckpoint:
        """Hold a model, and the tokenizer that its pipeline needs. ``preprocessor``: what prepares the data."""
        names = {(each.__module__.partition(".")[0], each.__name__) for each in type(model).__mro__}
        if ("transformers", "PreTrainedModel") not in names:
            raise ArgumentError(
                f"{cls.__name__}.from_model takes a transformers.PreTrainedModel, not {type(model).__name__}."
            )
        made = cls._made(model, preprocessor)
        made._tokenizer = tokenizer
        return made

    def given_to(self, predictor: str, options: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """See ``Checkpoint.given_to``; ``use_gpu``, ``device``, ``pipeline_cls`` and ``tokenizer`` are as in AIR."""
        given = {name: value for name, value in options.items() if name in _OF_PREDICTOR}
        more = {name: value for name, value in options.items() if name not in _OF_PREDICTOR}
        device = more.pop("device", "cuda" if more.pop("use_gpu", False) else None)
        kind, tokenizer = more.pop("pipeline_cls", None), more.pop("tokenizer", None)
        for name in ("model_cls", "pretrained_model_kwargs", "dtype"):  # for a folder; the model is at hand
            more.pop(name, None)
        if device is not None:
            number = isinstance(device, int)  # as AIR's pipelines took them; -1 is the CPU
            given["device"] = f"cuda:{device}" if number and device >= 0 else "cpu" if number else str(device)
        if more:
            given["call_kwargs"] = {**(given.get("call_kwargs") or {}), **more}
        super().given_to(predictor, {})
        return self._pipeline(given.pop("task", None), kind, tokenizer or self._tokenizer), given

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
        known = transformers.pipelines.PIPELINE_REGISTRY.get_supported_tasks()
        if task is None:
            raise ArgumentError(
                f"A {type(model).__name__} does not tell its task: give task='text-classification', or another, "
                "where the predictor is made."
            )
        try:
            return transformers.pipeline(task, model=model, tokenizer=tokenizer, device=model.device)
        except KeyError:
            raise ArgumentError(
                f"task={task!r} is none that transformers {transformers.__version__} has."
                f"{nearest(str(task), known) or ' It has: ' + ', '.join(known) + '.'}"
            ) from None
