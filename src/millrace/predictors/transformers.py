"""Pipelines of Hugging Face's transformers, for texts."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from millrace.core.arguments import known_arguments
from millrace.core.artifacts import Artifact, loading_call, require
from millrace.core.inputs import shapes, texts
from millrace.errors import ArgumentError, BadInput, BadReturn, nearest
from millrace.predictors.huggingface import (
    checked_folder,
    json_in,
    loading,
    prepare,
    rest,
    restore,
    words_of,
)

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
_DTYPES = ("auto", "float32", "float16", "bfloat16")


def kind_of(path: str) -> str | None:
    """Return ``"transformers"`` if a folder of ``save_pretrained`` is at ``path``; None if not."""
    config = json_in(path, "config.json") if os.path.isdir(path) else None
    known = isinstance(config, dict) and bool({"architectures", "model_type"} & config.keys())
    return "transformers" if known else None


class TransformersPredictor:
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
    weights), ``BadInput`` for columns that are no texts.

    >>> TransformersPredictor("bert-base-uncased")
    Traceback (most recent call last):
        ...
    millrace.errors.ArgumentError: 'bert-base-uncased' is not a folder here. If it is a model of the Hugging Face...
    """

    batch_format = "numpy"

    @known_arguments
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
        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
            raise ArgumentError(f"batch_size= takes a whole number of at least 1, not {batch_size!r}.")
        if dtype is not None and dtype not in _DTYPES:
            raise ArgumentError(f"dtype= takes one of {_DTYPES}, not {dtype!r}.")
        if task is not None and not isinstance(task, str):
            raise ArgumentError(f"task= takes the name of a pipeline's task, not {task!r}.")
        if call_kwargs is not None and not isinstance(call_kwargs, Mapping):
            raise ArgumentError(f"call_kwargs= takes a dict such as {{'top_k': 3}}, not {call_kwargs!r}.")
        self._artifact: Artifact | None = None
        self._pipeline: Any = None
        self._loaded: Any = None
        self._modes: list[tuple[Any, bool]] = []
        self._device, self._dtype, self._batch_size = device, dtype, batch_size
        self._call_kwargs = dict(call_kwargs or {})
        self._trust_remote_code, self._trust_pickle = trust_remote_code, trust_pickle
        if isinstance(model, str | os.PathLike):
            self._artifact = checked_folder(
                os.fspath(model), sha256, marker="config.json", trust_pickle=trust_pickle
            )
            self._task = task or _task_of(self._artifact)
            self.label = self._artifact.name
            for module in ("transformers", "torch"):
                require(module, "transformers", f"The model {self.label}")
        else:
            _check_pipeline(model, {"task": task, "dtype": dtype, "sha256": sha256})
            self._pipeline = model
            self._task = model.task
            self.label = f"{type(model).__name__}({type(model.model).__name__})"

    def load(self) -> None:
        """Load the folder as a pipeline, or take the object that was given; without dropout, whatever its mode."""
        prepare()
        if self._artifact is None:
            self._loaded = self._pipeline if self._device is None else _moved(self._pipeline, self._device)
            self._modes = rest(self._loaded)
            return
        import torch
        import transformers

        self._artifact.verify()
        self._check_task(transformers)
        device = self._device or ("cuda" if torch.cuda.is_available() else "cpu")
        with loading(self._artifact):
            self._loaded = transformers.pipeline(
                self._task,
                model=self._artifact.path,
                device=device,
                trust_remote_code=self._trust_remote_code,
                model_kwargs={} if self._trust_pickle else {"use_safetensors": True},
                **({} if self._dtype is None else {"dtype": self._dtype}),
            )
        rest(self._loaded)

    def predict(self, batch: Mapping[str, Array]) -> Any:
        """Return the result's columns by name; one list per row for token classification and features."""
        rows = _rows_of(batch)
        order = sorted(range(len(rows)), key=lambda row: -_length(rows[row]))
        results = self._call([rows[row] for row in order])
        if len(results) != len(rows):
            raise BadReturn(f"its pipeline gave {len(results)} results for {len(rows)} texts")
        restored: list[Any] = [None] * len(rows)
        for row, result in zip(order, results, strict=True):
            restored[row] = result
        return _columns(self._task, restored)

    def close(self) -> None:
        """Let go of the pipeline, which is again as it was given."""
        self._loaded = None
        restore(self._modes)
        self._modes = []

    def identity(self) -> Any:
        """Return the digest of the folder, or the config, weights and tokenizer of a pipeline; and the options."""
        options = (self._task, self._dtype, tuple(sorted(self._call_kwargs.items())))
        if self._artifact is not None:
            return ("transformers", self._artifact.digest(), *options)
        return ("transformers", *_parts(self._pipeline), *options)

    def weights(self) -> str:
        """Say where the weights are."""
        if self._artifact is not None:
            return f"each worker loads its own copy of {self.label}"
        return (
            "weights are shared between workers" if self._device is None else "each worker moves its own copy"
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_loaded": None, "_modes": []}

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

    def _call(self, rows: list[Any]) -> list[Any]:
        if not rows:
            return []
        # Some tasks give the bare result for a list of one; two are a list for sure.
        asked = rows * 2 if len(rows) == 1 and self._task == "fill-mask" else rows
        # In a batch, the features of a text have those of its padding after them.
        size = 1 if self._task == "feature-extraction" else min(self._batch_size, len(asked))
        results = self._loaded(asked, batch_size=size, **self._call_kwargs)
        return [results] if isinstance(results, dict) else list(results)[: len(rows)]


def _task_of(artifact: Artifact) -> str:
    names = json_in(artifact.path, "config.json").get("architectures") or ["?"]
    for ending, task in _TASKS.items():
        if str(names[0]).endswith(ending):
            return task
    raise ArgumentError(
        f"The model {artifact.name} is a {names[0]}, which does not say what it is for; say it with task=: "
        + loading_call(artifact.path, "task='text-classification'")
        + "."
    )


def _check_pipeline(model: Any, given: Mapping[str, Any]) -> None:
    bases = [(each.__module__.partition(".")[0], each.__name__) for each in type(model).__mro__]
    if ("transformers", "Pipeline") not in bases:
        way_out = ""
        if any(package == "transformers" for package, _ in bases):
            way_out = " Make one of it: transformers.pipeline(task, model=model, tokenizer=tokenizer)."
        raise ArgumentError(
            f"A transformers model is a Pipeline or a folder, not {type(model).__name__}.{way_out}"
        )
    for name, value in given.items():
        if value is not None:
            raise ArgumentError(f"{name}= is for folders; a Pipeline has its own.")


def _moved(pipeline: Any, device: str) -> Any:
    """Return the pipeline on another device; the user's own, which may be this one, stays where it is."""
    import torch

    moved = copy.copy(pipeline)
    moved.model = copy.deepcopy(pipeline.model).to(device)
    moved.device = torch.device(device)
    return moved


def _parts(pipeline: Any) -> tuple[Any, ...]:
    """Return what makes a pipeline's results, as values that are the same in every process."""
    words = words_of(pipeline.tokenizer)
    how = tuple(
        str(getattr(pipeline, f"_{name}_params", None)) for name in ("preprocess", "forward", "postprocess")
    )
    config = pipeline.model.config.to_json_string()
    return (type(pipeline.model).__name__, config, dict(pipeline.model.state_dict()), words, how)


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
    made = np.empty(len(values), object)
    for row, value in enumerate(values):
        made[row] = value
    return made
