"""Models in whatever form a user has them → predictors: library objects, and files by what is in them."""

from __future__ import annotations

import dataclasses
import inspect
import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Unpack

import msgspec

from headrace.core.arguments import unframed
from headrace.core.door import completed
from headrace.core.files.storage import absolute
from headrace.core.human import short_repr
from headrace.core.model_ports import PredictorParts
from headrace.errors import ArgumentError, ModelUnreadable, UnknownArgument, nearest
from headrace.plan.functions import Function, callable_name, is_async_generator, is_predictor
from headrace.plan.parameters import (
    given_arguments,
    given_batch_bytes,
    given_batch_format,
    given_batch_size,
    given_function,
    given_in_flight,
    given_keywords,
    given_names,
    given_resources,
)
from headrace.plan.steps.predict import Model, Predict
from headrace.plan.verb_options import StepOptions
from headrace.predictors import MODELS, library_at, library_of

if TYPE_CHECKING:
    from headrace.core.model_ports import Predictor

_HUB_NAME = re.compile(r"([\w-]+/)?[\w-]+(\.\d[\w.-]*)?")


def predictor_of(model: Any) -> Predictor | None:
    """Return the predictor for a library's model object, or None if it has none."""
    library = library_of(type(model), brought=True)
    if (
        library is None
        and callable(getattr(model, "fit", None))
        and callable(getattr(model, "predict", None))
    ):
        library = "sklearn"  # the convention is scikit-learn's, whoever follows it
    adapter = None if library is None else MODELS.get(library)
    return None if adapter is None else adapter(model)


@unframed
def load_model(
    path: str | os.PathLike[str], *, sha256: str | None = None, trust_pickle: bool = False, **options: Any
) -> Predictor:
    """Make a predictor of a model on disk, by what the file or folder holds. It is read by the workers.

    Parameters
    ----------
    path
        A file (``.onnx``, ``.pt2``, TorchScript, ``.safetensors``, ``.skops``, ``.keras``, XGBoost's ``.json`` and
        ``.ubj``, LightGBM's ``.txt``), a folder (Hugging Face, sentence-transformers, MLflow), or an
        MLflow URI (``models:/fare/3``, ``runs:/…/model``).
    sha256
        What the content must be, in hex: of a folder, as ``Artifact.digest`` computes it.
    trust_pickle
        Trust the code that a file brings, and run it: pickles (``.pkl``, ``.joblib``, ``.pt``), Lambda layers of
        Keras, all models that MLflow logged. Only for files that you trust as you trust your own code.
    options
        What the library's predictor takes beside: ``device=``, ``method=``, ``architecture=``, …

    Raises
    ------
    ModelUnreadable
        Nothing is there, or nothing that any library here knows.
    UntrustedPickle, ModelChanged, MissingLibrary
        As their names say; before any work, except for MLflow's URIs and what only the library itself can check,
        which the first worker finds.

    Examples
    --------
    >>> import headrace as hr, tempfile, pathlib
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model = pathlib.Path(folder, "model.pkl")
    ...     _ = model.write_bytes(b"\\x80\\x05N.")
    ...     hr.load_model(model)
    Traceback (most recent call last):
    ...
    headrace.errors.UntrustedPickle: ...model.pkl is a pickle: ...
    """
    if not isinstance(trust_pickle, bool):
        raise ArgumentError(f"trust_pickle={trust_pickle!r}: it takes True or False.")
    return _loaded(_place(path), sha256, trust_pickle, options)


def _loaded(place: str, sha256: str | None, trust_pickle: bool, options: dict[str, Any]) -> Predictor:
    library = _library_at(place)
    adapter: Any = MODELS.get(library)
    known = inspect.signature(adapter).parameters
    if trust_pickle and "trust_pickle" in known:
        options["trust_pickle"] = True
    if sha256 is not None:
        options["sha256"] = sha256
    for name in options:
        if name not in known:
            listed = [each for each in known if each not in ("self", "model", "uri")]
            hint = nearest(name, listed) or f" It takes: {', '.join(listed)}."
            raise UnknownArgument(
                f"load_model({place!r}) has no option {name!r}, as this is a model for {library}.{hint}"
            )
    made: Predictor = adapter(place, **options)
    return made


def _place(path: Any) -> str:
    try:
        place = os.fspath(path)
    except TypeError:
        raise ArgumentError(f"load_model({path!r}): it takes the path of a file or folder.") from None
    if not isinstance(place, str) or not place:
        raise ArgumentError(f"load_model({path!r}): it takes the path of a file or folder.")
    return place


TASKS = (
    "audio-classification automatic-speech-recognition depth-estimation document-question-answering "
    "feature-extraction fill-mask image-classification image-feature-extraction image-segmentation image-to-text "
    "ner object-detection question-answering sentiment-analysis summarization table-question-answering "
    "text-classification text-generation text-to-audio text2text-generation token-classification translation "
    "visual-question-answering zero-shot-classification zero-shot-image-classification "
)
"""Names that transformers.pipeline() takes."""


def _library_at(place: str) -> str:
    scheme = place.partition(":/")[0]
    if scheme in ("models", "runs"):
        return "mlflow"
    if "://" in place:
        raise ModelUnreadable(
            f"{place} is not on this machine, and models are read from files: fetch it first."
        )
    path = absolute(place, "The path of the model")
    if not os.path.exists(path):
        hub = (
            f" Names of model hubs are not looked up: fetch it (hf download {place} --local-dir FOLDER), and give "
            "the folder."
            if _HUB_NAME.fullmatch(place)
            else ""
        )
        if f" {place} " in f" {TASKS}":
            raise ModelUnreadable(
                f"{place!r} is the name of a task, not of a model. Fetch a model for it (hf download NAME "
                f"--local-dir FOLDER), and give that: TransformersPredictor('FOLDER', task={place!r})."
            )
        raise ModelUnreadable(f"There is no model at {place!r} (looked for {path}).{hub}")
    if not os.path.isfile(path) and not os.path.isdir(path):
        raise ModelUnreadable(f"{place} is neither a file nor a folder.")
    library = library_at(path)
    if library is not None:
        return library
    raise ModelUnreadable(
        f"{place} is not a model of a known kind. The known kinds are ONNX, torch.export and TorchScript, "
        "safetensors, skops, XGBoost, LightGBM and Keras files, and folders of Hugging Face, "
        "sentence-transformers and MLflow. For any other model, write a class that loads it in its constructor."
        f"{MODELS.unusable()}"
    )


# ---------------------------------------------------------------- the arguments of predict


def given_predict(
    model: Any,
    *,
    output: Any,
    keep: Any,
    replace: Any,
    inputs: Any = None,
    batch_size: Any = "auto",
    batch_size_bytes: Any = None,
    batch_format: Any = "numpy",
    max_in_flight: Any = None,
    own_names: bool = False,
    **options: Unpack[StepOptions],
) -> Predict:
    """Read the arguments of ``Dataset.predict``; each of several models may have its own from ``inputs`` on.

    ``own_names``: named results keep their names, as they do where ``output`` is None.
    """
    if not isinstance(replace, bool):
        raise ArgumentError(f"replace={replace!r}: it takes True or False.")
    carried = given_keep(keep)
    shared: dict[str, Any] = {
        **dict.fromkeys(StepOptions.__annotations__),
        "inputs": inputs,
        "batch_size": batch_size,
        "batch_size_bytes": batch_size_bytes,
        "batch_format": batch_format,
        "max_in_flight": max_in_flight,
        **options,
    }
    if not isinstance(model, Mapping):
        name = given_output("prediction" if output is None else output)
        one = dataclasses.replace(
            _model(model, name, shared, keyed=False), own_names=own_names or output is None
        )
        return Predict((one,), carried, replace)
    if not model:
        raise ArgumentError("predict({}): there is no model in the dict.")
    if output is not None:
        raise ArgumentError(
            f"output={output!r}: where models come in a dict, its keys name the columns that they add."
        )
    together = given_resources({"memory": options.get("memory")}).memory
    if together is not None:
        shared["memory"] = together / len(model)
    models = []
    for name, value in model.items():
        own = dict(value) if isinstance(value, Mapping) else {"model": value}
        if "model" not in own:
            raise ArgumentError(
                f"predict: {name!r} has no model; give a model, or dict(model=…, batch_size=…)."
            )
        for key in own:
            if key not in ("model", *shared):
                raise UnknownArgument(
                    f"predict: {name!r} has an unknown entry {key!r}.{nearest(str(key), tuple(shared))}"
                )
        if own.keys() & {"compute", "concurrency"}:
            own = {"compute": None, "concurrency": None} | own  # its own workers, whatever the others have
        if own.keys() & {"batch_size", "batch_size_bytes"}:
            own = {"batch_size": None, "batch_size_bytes": None} | own
        models.append(_model(own["model"], given_output(name), shared | own, keyed=True))
    return Predict(tuple(models), carried, replace)


def _check_format(function: Function, batch_format: Any) -> None:
    own = function.parts.batch_format
    if own is not None and batch_format not in ("numpy", "default", own):
        raise ArgumentError(
            f"batch_format={batch_format!r}: predict({function.name}) takes its batches in a form of its own."
        )


def _model(model: Any, output: str, options: Mapping[str, Any], *, keyed: bool) -> Model:
    resources = given_resources(options)
    function = given_model(model, options)
    batch_format, batch_size = options["batch_format"], options["batch_size"]
    _check_format(function, batch_format)
    return Model(
        function,
        output,
        given_names("inputs", options["inputs"]) if options["inputs"] is not None else None,
        keyed,
        given_batch_size(batch_size),
        given_batch_format(batch_format),
        resources,
        given_in_flight(options["max_in_flight"]),
        given_batch_bytes(options["batch_size_bytes"], batch_size),
    )


def given_model(model: Any, options: Mapping[str, Any]) -> Function:
    """Read a model: a predictor, a library's model, a class, a function, or a path or URI; in this order."""
    predictor: Any = None
    if isinstance(model, type) and library_of(model) is not None:
        name = model.__name__
        raise ArgumentError(f"predict({name}): it takes a model, not its class: {name}(…), with its weights.")
    if is_predictor(model):
        if completed(model, PredictorParts).preparing is not None:
            raise ArgumentError(
                f"predict({type(model).__name__}): its checkpoint has a preprocessor, which predict would leave out. "
                "headrace.compat.ray.train.batch_predictor.BatchPredictor applies it."
            )
        predictor = model
    elif isinstance(model, (str, os.PathLike)):
        predictor = load_model(model)
    elif not isinstance(model, type):
        predictor = predictor_of(model)
    if predictor is None:
        _refuse_no_model(model)
        function = given_function("predict", model, options)
        return msgspec.structs.replace(function, model=True)
    constructed = isinstance(predictor, type)
    label = f"predict({callable_name(predictor)})"
    if is_async_generator(predictor.predict):
        raise ArgumentError(f"{label}: async generators are not supported; return one result per row.")
    for option in ("fn_args", "fn_kwargs", "fn_constructor_args", "fn_constructor_kwargs"):
        if options.get(option) and not (constructed and "constructor" in option):
            raise ArgumentError(f"{label}: a predictor takes no {option}; give them when you make it.")
    version = options.get("version")
    if version is not None and not isinstance(version, str):
        raise ArgumentError(f"{label}: version={version!r} is not a string.")
    return Function(
        predictor,
        init_args=given_arguments(label, "fn_constructor_args", options.get("fn_constructor_args")),
        init_kwargs=given_keywords(label, "fn_constructor_kwargs", options.get("fn_constructor_kwargs")),
        version=version,
        model=True,
    )


def _refuse_no_model(model: Any) -> None:
    """Raise for an object that is no model; the message says what to give instead."""
    kind = type(model)
    owner = getattr(model, "__self__", None)
    if owner is not None and not inspect.isclass(owner) and library_of(type(owner)) is not None:
        name = f"{type(owner).__name__}.{model.__name__}"
        raise ArgumentError(
            f"predict({name}): give the model itself; method={model.__name__!r} is for load_model."
        )
    if callable(model):
        return
    if isinstance(model, (list, tuple)):
        hint = "several models come in a dict that names their outputs: {'small': a, 'large': b}."
    elif kind.__module__.partition(".")[0] in ("pandas", "pyarrow", "polars", "numpy"):
        hint = "this is data. Call predict on the data, and give it the model: data.predict(model)."
    else:
        hint = (
            "it takes a function, a class, a model object of one of the libraries in docs/models.md, the path of a "
            "model, or an object with load, predict and close. For others, write a class that makes the model in its "
            "constructor and calls it in __call__(self, batch)."
        )
    shown = (
        short_repr(model) if isinstance(model, (int, float, str, type(None))) else f"a {kind.__qualname__}"
    )
    raise ArgumentError(f"predict({shown}): {hint}")


def given_output(value: Any) -> str:
    """Read the name of a column that a model adds."""
    if not isinstance(value, str) or not value:
        raise ArgumentError(f"output={value!r}: it takes the name of the column that the model adds.")
    return value


def given_keep(value: Any) -> tuple[str, ...] | None:
    """Read which columns are carried: None for ``"all"``, () for ``"none"``, or names."""
    if value is None or (isinstance(value, str) and value == "none"):
        return ()
    return None if isinstance(value, str) and value == "all" else given_names("keep", value)
