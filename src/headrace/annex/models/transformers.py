"""Pipelines of Hugging Face's transformers, for texts."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from headrace.core.arguments import Unsupported, known_arguments
from headrace.core.arrow.model_columns import shapes, texts
from headrace.core.files.artifacts import Artifact, loading_call
from headrace.errors import ArgumentError, BadInput, BadReturn, nearest
from headrace.predictors import Direct, directly
from headrace.predictors.huggingface import TextPredictor, from_library, json_in, tokenizer_content

Array = np.ndarray[Any, Any]

_TASKS = {  # by how the names of architectures end
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
    "ForMaskedLM": "fill-mask",
    "ForCausalLM": "text-generation",
    "LMHeadModel": "text-generation",
    "ForConditionalGeneration": "text2text-generation",
    "Model": "feature-extraction",
}
_GENERATING = ("text-generation", "text2text-generation", "summarization", "translation")


def kind_of(path: str) -> str | None:
    """Return ``"transformers"`` if a folder of ``save_pretrained`` is at ``path``; None if not."""
    config = json_in(path, "config.json") if os.path.isdir(path) else None
    known = isinstance(config, dict) and bool({"architectures", "model_type"} & config.keys())
    return "transformers" if known else None


class TransformersPredictor(Direct, TextPredictor):
    """Runs a pipeline on a column (n,) of texts; results are those of ``pipeline(texts, **call_kwargs)``, as columns.

    A dict per row becomes a column per key (``label``, ``score``), a list of dicts (``top_k``) columns of lists,
    generated texts one column ``generated_text``. Entities of a token classification stay a list of dicts per row,
    and features of a feature extraction a list of a list of floats per token, not pooled. Several columns are given
    to the pipeline as dicts with their names (``question`` and ``context``, ``text`` and ``text_pair``).

    Texts are sorted by length before they are put into batches, so that less is computed on padding: three times as
    fast where lengths vary, and as exact as another ``batch_size`` is: scores differ by some 1e-7 at most.

    Parameters
    ----------
    model
        A ``transformers.Pipeline``, or a folder saved by ``save_pretrained``, with its tokenizer. A name of the hub
        is refused: nothing is downloaded.
    task
        The pipeline's task, such as ``"zero-shot-classification"``. Default: by the folder's architecture.
    device
        ``"cuda"``, ``"cuda:1"``, ``"cpu"``, …. Default: the pipeline's, or for a folder CUDA if there is a GPU.
    dtype
        ``"float32"``, ``"float16"``, ``"bfloat16"`` or ``"auto"``; for folders. Default: the library's.
    batch_size
        How many texts the model sees at a time; always one for feature extraction.
    call_kwargs
        What else the pipeline is called with: ``{"top_k": 3}``, ``{"max_new_tokens": 20}``.
    trust_remote_code
        Allows a folder with Python code of its own, which is run.
    trust_pickle
        Allows weights in ``pytorch_model.bin``, a pickle. Without it only safetensors are loaded.
    sha256
        Pins the content of the folder.

    Raises ``ModelUnreadable``, ``ModelChanged`` and ``UntrustedPickle`` for the folder (also if it lacks the task's
    weights), ``BadInput`` for columns that are not texts.

    >>> TransformersPredictor("bert-base-uncased")
    Traceback (most recent call last):
        ...
    headrace.errors.ArgumentError: 'bert-base-uncased' is not a folder here. If it is a model of the Hugging Face...
    """

    classes = ("Pipeline",)
    kind_of = staticmethod(kind_of)
    library = "transformers"
    extra = "transformers"
    model_class = "Pipeline"
    marker = "config.json"
    dtypes = ("auto", *TextPredictor.dtypes)

    @known_arguments(also={"pipeline": Unsupported("the pipeline is the first argument, model=.", ())})
    def __init__(
        self,
        model: Any,
        *,
        task: str | None = None,
        device: str | None = None,
        dtype: str | None = None,
        batch_size: int = 32,
        call_kwargs: Mapping[str, Any] | None = None,
        trust_remote_code: bool = False,
        trust_pickle: bool = False,
        sha256: str | None = None,
    ) -> None:
        if task is not None and not isinstance(task, str):
            raise ArgumentError(f"task= takes the name of a pipeline's task, not {task!r}.")
        if call_kwargs is not None and not isinstance(call_kwargs, Mapping):
            raise ArgumentError(f"call_kwargs= takes a dict such as {{'top_k': 3}}, not {call_kwargs!r}.")
        self._call_kwargs = dict(call_kwargs or {})
        self._trust_remote_code = trust_remote_code
        self._open(
            model, device=device, dtype=dtype, batch_size=batch_size, trust_pickle=trust_pickle, sha256=sha256
        )
        if self._artifact is not None:
            self._task = task or _task_of(self._artifact)
        else:
            self._only_for_folders(task=task)
            self._task = model.task
            self.label = f"{type(model).__name__}({type(model.model).__name__})"

    def predict(self, batch: Mapping[str, Array]) -> Any:
        """Return the result's columns by name; one list per row for token classification and features."""
        if self._loaded is None:
            return directly(self, batch)
        rows = _rows_of(batch)
        order = sorted(range(len(rows)), key=lambda row: -_length(rows[row]))
        results = self._run_pipeline([rows[row] for row in order])
        if len(results) != len(rows):
            raise BadReturn(f"its pipeline gave {len(results)} results for {len(rows)} texts")
        restored: list[Any] = [None] * len(rows)
        for row, result in zip(order, results, strict=True):
            restored[row] = result
        return _columns(self._task, restored)

    def _load_folder(self, artifact: Artifact) -> Any:
        import torch
        import transformers

        self._check_task(transformers)
        return transformers.pipeline(
            self._task,
            model=artifact.path,
            device=self._device or ("cuda" if torch.cuda.is_available() else "cpu"),
            trust_remote_code=self._trust_remote_code,
            model_kwargs=self._weight_files(),
            **self._precision(),
        )

    def _copy_to(self, device: str) -> Any:
        import torch

        moved = copy.copy(self._model)
        moved.model = copy.deepcopy(self._model.model).to(device)
        moved.device = torch.device(device)
        return moved

    def _content(self, model: Any) -> tuple[Any, ...]:
        steps = ("preprocess", "forward", "postprocess")
        parameters = tuple(str(getattr(model, f"_{name}_params", None)) for name in steps)
        network = model.model
        weights = (type(network).__name__, network.config.to_json_string(), dict(network.state_dict()))
        return (*weights, tokenizer_content(model.tokenizer), parameters)

    def _options(self) -> tuple[Any, ...]:
        return (self._task, self._dtype, tuple(sorted(self._call_kwargs.items())))

    def _hint(self, model: Any) -> str:
        if not from_library(model, "transformers"):
            return ""
        return " Make one of it: transformers.pipeline(task, model=model, tokenizer=tokenizer)."

    def _check_task(self, transformers: Any) -> None:
        """Raise for a task that this version does not have; others than its own can be registered there."""
        registry = transformers.pipelines.PIPELINE_REGISTRY
        try:
            registry.check_task(self._task)
        except KeyError:
            known = registry.get_supported_tasks()
            hint = nearest(self._task, known) or f" It has: {', '.join(known)}."
            raise ArgumentError(
                f"task={self._task!r} is none that transformers {transformers.__version__} has, for the model "
                f"{self.label}.{hint}"
            ) from None

    def _run_pipeline(self, rows: list[Any]) -> list[Any]:
        if not rows:
            return []
        # Some tasks give the bare result for a list of one; two are a list for sure.
        inputs = rows * 2 if len(rows) == 1 and self._task == "fill-mask" else rows
        # In a batch, the features of a text have those of its padding after them.
        size = 1 if self._task == "feature-extraction" else min(self._batch_size, len(inputs))
        results = self._loaded(inputs, batch_size=size, **self._call_kwargs)
        return [results] if isinstance(results, dict) else list(results)[: len(rows)]


def task_of_class(name: str) -> str | None:
    """Return the task of an architecture, by how its name ends; None if that does not tell it.

    >>> task_of_class("BertForSequenceClassification")
    'text-classification'
    """
    return next((task for ending, task in _TASKS.items() if name.endswith(ending)), None)


def _task_of(artifact: Artifact) -> str:
    names = json_in(artifact.path, "config.json").get("architectures") or ["?"]
    task = task_of_class(str(names[0]))
    if task is not None:
        return task
    raise ArgumentError(
        f"The model {artifact.name} is a {names[0]}, which does not tell its task; set task=: "
        + loading_call(artifact.path, "task='text-classification'")
        + "."
    )


# ---------------------------------------------------------------- rows in, columns out


def _rows_of(batch: Mapping[str, Array]) -> list[Any]:
    if len(batch) == 1:
        return list(texts(batch))
    try:
        columns = {name: texts({name: array}) for name, array in batch.items()}
    except BadInput as error:
        raise BadInput(f"{error}; it was given {shapes(batch)}") from error
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _length(row: Any) -> int:
    return len(row) if isinstance(row, str) else sum(map(len, row.values()))


def _columns(task: str, rows: list[Any]) -> Any:
    """Turn a result per row into columns; the form depends on the task and its options, never on the values."""
    if task == "feature-extraction":
        return _objects([row[0] for row in rows])
    if task in ("token-classification", "ner"):
        return _objects([_plain(row) for row in rows])
    if task.startswith(_GENERATING) and all(isinstance(row, list) and len(row) == 1 for row in rows):
        rows = [row[0] for row in rows]
    first = rows[0] if rows else None
    if isinstance(first, dict):
        names = [name for name in first if not (task == "zero-shot-classification" and name == "sequence")]
        return {name: _values([row[name] for row in rows]) for name in names}
    if isinstance(first, list) and first and isinstance(first[0], dict):
        return {name: _objects([[_plain(each[name]) for each in row] for row in rows]) for name in first[0]}
    return _objects([_plain(row) for row in rows])


def _values(values: list[Any]) -> Array:
    if all(isinstance(value, float | np.floating) for value in values):
        return np.array(values, np.float64)
    if all(isinstance(value, int | np.integer) and not isinstance(value, bool) for value in values):
        return np.array(values, np.int64)
    return _objects([_plain(value) for value in values])


def _plain(value: Any) -> Any:
    """Return numbers of numpy as those of Python, at any depth."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value.item() if isinstance(value, np.generic) else value


def _objects(values: list[Any]) -> Array:
    array = np.empty(len(values), object)
    for row, value in enumerate(values):
        array[row] = value
    return array
