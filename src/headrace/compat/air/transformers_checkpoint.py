"""Checkpoints of Hugging Face's transformers: a model with its tokenizer, as ``save_pretrained`` writes them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.compat.air.checkpoint import FROM_MODEL, Checkpoint
from headrace.core.arguments import known_arguments
from headrace.core.files.artifacts import Artifact, require
from headrace.errors import ArgumentError, ModelUnreadable, nearest

_OF_PREDICTOR = ("task", "dtype", "batch_size", "call_kwargs", "trust_remote_code", "trust_pickle")


class TransformersCheckpoint(Checkpoint):
    """A model of transformers with its tokenizer; in a folder, the files of ``save_pretrained``: safetensors, JSON.

    ``from_model(model, tokenizer)`` raises ``ArgumentError`` for any other model, ``get_model`` raises
    ``ModelChanged`` for files that are not what was written; see ``Checkpoint``. ``TransformersPredictor`` makes a
    pipeline of both. In ``BatchPredictor.from_checkpoint(checkpoint, TransformersPredictor, …)`` and in ``predict``
    what is no option of the predictor is one of the pipeline's call, as in Ray AIR: ``top_k=3``,
    ``max_new_tokens=20``.

    >>> TransformersCheckpoint.from_model(3)
    Traceback (most recent call last):
    ...
    headrace.errors.ArgumentError: TransformersCheckpoint.from_model takes a transformers.PreTrainedModel, not int.
    """

    kind, file, libraries = "transformers", "config.json", ("transformers", "torch", "safetensors")
    predictor = "TransformersPredictor"
    _tokenizer: Any = None

    @classmethod
    @known_arguments(also=FROM_MODEL)
    def from_model(
        cls, model: Any, tokenizer: Any = None, *, preprocessor: Any = None
    ) -> TransformersCheckpoint:
        """Hold a model, and the tokenizer that its pipeline needs. ``preprocessor``: what prepares the data."""
        cls._check(model)
        made = cls._made(model)._with(preprocessor)
        made._tokenizer = tokenizer
        return made

    def get_model(self, model: Any = None, **options: Any) -> Any:
        """Return the model. ``model``: the class to read it with, such as ``AutoModelForSequenceClassification``;
        default: the one that the folder's configuration names. ``options``: those of ``from_pretrained``.
        """
        if self._path is None:
            return self._model
        require("transformers", "transformers", f"The checkpoint {self._path}")
        artifact = self.artifact()
        from headrace.predictors.huggingface import loading

        with loading(artifact):
            kind = self._class() if model is None else model
            return kind.from_pretrained(artifact.path, **{"use_safetensors": True, **options})

    def get_tokenizer(self, tokenizer: Any = None, **options: Any) -> Any:
        """Return the tokenizer, read by the class ``tokenizer`` (default: ``AutoTokenizer``); None without one."""
        if self._path is None:
            return self._tokenizer
        if not any(name.startswith("tokenizer") for name in self._manifest["files"]):
            return None
        artifact = self.artifact()
        import transformers

        from headrace.predictors.huggingface import loading

        with loading(artifact):
            return (tokenizer or transformers.AutoTokenizer).from_pretrained(artifact.path, **options)

    def artifact(self) -> Artifact:
        """Return the folder, when every file of it is known to be what it was."""
        super().artifact()
        folder = Artifact(str(self._path))
        return Artifact(folder.path, folder.digest())

    def given_to(self, predictor: str, options: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """See ``Checkpoint.given_to``; ``use_gpu``, ``pipeline_cls``, ``model_cls``, ``tokenizer`` are as in AIR."""
        given = {name: value for name, value in options.items() if name in _OF_PREDICTOR}
        more = {name: value for name, value in options.items() if name not in _OF_PREDICTOR}
        use_gpu = more.pop("use_gpu", False)
        device = more.pop("device", "cuda" if use_gpu else None)
        making = {
            name: more.pop(name, None)
            for name in ("pipeline_cls", "model_cls", "tokenizer", "pretrained_model_kwargs")
        }
        if device is not None:
            given["device"] = _device(device)
        if more:
            given["call_kwargs"] = {**(given.get("call_kwargs") or {}), **more}
        made, more = super().given_to(predictor, given)
        if self._path is not None and not any(making.values()):
            return made, more
        pipeline = self._pipeline(more.pop("task", None), making)
        return pipeline, {name: value for name, value in more.items() if name not in ("sha256", "dtype")}

    # ------------------------------------------------------------ how

    @classmethod
    def _check(cls, model: Any) -> None:
        names = {(each.__module__.partition(".")[0], each.__name__) for each in type(model).__mro__}
        if ("transformers", "PreTrainedModel") not in names:
            raise ArgumentError(
                f"{cls.__name__}.from_model takes a transformers.PreTrainedModel, not {type(model).__name__}."
            )

    def _class(self) -> Any:
        import transformers

        config = json.loads(Path(str(self._path), "config.json").read_text())
        name = str((config.get("architectures") or ["?"])[0])
        found = getattr(transformers, name, None)
        if not isinstance(found, type) or not issubclass(found, transformers.PreTrainedModel):
            raise ModelUnreadable(
                f"{self._path} names the class {name!r}, which is not a model of this version of transformers. Say "
                "which one reads it: get_model(AutoModelForSequenceClassification)."
            )
        return found

    def _pipeline(self, task: str | None, making: Mapping[str, Any]) -> Any:
        """Return the model and its tokenizer as a pipeline."""
        import transformers

        from headrace.predictors.transformers import task_of_class

        model = (
            self._model
            if self._path is None
            else self.get_model(making["model_cls"], **(making["pretrained_model_kwargs"] or {}))
        )
        tokenizer = making["tokenizer"] or self.get_tokenizer()
        if isinstance(tokenizer, (str, os.PathLike)):
            tokenizer = transformers.AutoTokenizer.from_pretrained(tokenizer, local_files_only=True)
        kind = making["pipeline_cls"]
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

    def _write(self, folder: str) -> dict[str, Any]:
        require("transformers", "transformers", "A checkpoint of transformers")
        self._model.save_pretrained(folder)
        if self._tokenizer is not None:
            self._tokenizer.save_pretrained(folder)
        return {}


def _device(device: Any) -> Any:
    """Return a device by its name; AIR's pipelines took numbers, too.

    >>> _device(0), _device(-1), _device("cuda:1")
    ('cuda:0', 'cpu', 'cuda:1')
    """
    if isinstance(device, int) and not isinstance(device, bool):
        return f"cuda:{device}" if device >= 0 else "cpu"
    return str(device)
