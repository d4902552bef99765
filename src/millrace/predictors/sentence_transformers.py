"""Embeddings of sentences, by sentence-transformers."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from millrace.core.arguments import known_arguments
from millrace.core.artifacts import Artifact, require
from millrace.core.inputs import texts
from millrace.errors import ArgumentError
from millrace.predictors.huggingface import (
    check_modules,
    checked_folder,
    json_in,
    loading,
    prepare,
    rest,
    restore,
    words_of,
)

Array = np.ndarray[Any, Any]

_DTYPES = ("float32", "float16", "bfloat16")


def kind_of(path: str) -> str | None:
    """Return ``"sentence-transformers"`` if a folder of ``SentenceTransformer.save`` is at ``path``; None if not."""
    modules = json_in(path, "modules.json") if os.path.isdir(path) else None
    return "sentence-transformers" if isinstance(modules, list) else None


class SentenceTransformersPredictor:
    """Embeds a column of texts: the float32 vectors (n, d) of ``SentenceTransformer.encode``.

    Parameters
    ----------
    model
        A ``SentenceTransformer``, or a folder saved by its ``save``. A name of the hub is refused: nothing is
        downloaded.
    device
        ``"cuda"``, ``"cuda:1"``, ``"cpu"``, …. Default: the model's, or for a folder CUDA if there is a GPU.
    dtype
        In which floats a folder's model computes: ``"float32"``, ``"float16"`` or ``"bfloat16"``. Default: those of
        the folder. Vectors are float32 in any case.
    batch_size
        How many texts the model sees at a time; they are sorted by length for that.
    normalize_embeddings
        Whether to give vectors of length 1.
    prompt_name
        Which of the model's prompts to put before each text.
    trust_pickle
        Allows weights in ``pytorch_model.bin``, a pickle.
    sha256
        Pins the content of the folder.

    Raises ``ModelUnreadable``, ``ModelChanged`` and ``UntrustedPickle`` for the folder, ``BadInput`` for a column
    that holds no texts.

    >>> SentenceTransformersPredictor("all-MiniLM-L6-v2")
    Traceback (most recent call last):
        ...
    millrace.errors.ArgumentError: 'all-MiniLM-L6-v2' is not a folder here. If it is a model of the Hugging Face...
    """

    batch_format = "numpy"

    @known_arguments
    def __init__(
        self,
        model: Any,
        *,
        device: str | None = None,
        dtype: str | None = None,
        batch_size: int = 32,
        normalize_embeddings: bool = False,
        prompt_name: str | None = None,
        trust_pickle: bool = False,
        sha256: str | None = None,
    ) -> None:
        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
            raise ArgumentError(f"batch_size= takes a whole number of at least 1, not {batch_size!r}.")
        if dtype is not None and dtype not in _DTYPES:
            raise ArgumentError(f"dtype= takes one of {_DTYPES}, not {dtype!r}.")
        self._artifact: Artifact | None = None
        self._model: Any = None
        self._loaded: Any = None
        self._modes: list[tuple[Any, bool]] = []
        self._device, self._dtype, self._batch_size = device, dtype, batch_size
        self._normalize, self._prompt_name = normalize_embeddings, prompt_name
        self._trust_pickle = trust_pickle
        if isinstance(model, str | os.PathLike):
            self._artifact = checked_folder(
                os.fspath(model), sha256, marker="modules.json", trust_pickle=trust_pickle
            )
            check_modules(self._artifact)
            self._check_prompt(json_in(self._artifact.path, "config_sentence_transformers.json") or {})
            self.label = self._artifact.name
            for module in ("sentence_transformers", "torch"):
                require(module, "sentence-transformers", f"The model {self.label}")
        else:
            _check_model(model, {"dtype": dtype, "sha256": sha256})
            self._check_prompt({"prompts": model.prompts})
            self._model = model
            self.label = type(model).__name__

    def load(self) -> None:
        """Load the folder, or take the object that was given."""
        prepare()
        if self._artifact is None:
            # On another device goes a copy: the object may be the user's own.
            self._loaded = (
                self._model if self._device is None else copy.deepcopy(self._model).to(self._device)
            )
            self._modes = rest(self._loaded)
            return
        import sentence_transformers

        self._artifact.verify()
        options = {} if self._dtype is None else {"dtype": self._dtype}
        with loading(self._artifact):
            self._loaded = sentence_transformers.SentenceTransformer(
                self._artifact.path,
                device=self._device,
                local_files_only=True,
                trust_remote_code=False,
                model_kwargs=options if self._trust_pickle else {**options, "use_safetensors": True},
            )

    def predict(self, batch: Mapping[str, Array]) -> Array:
        """Return the vectors, float32 (n, d)."""
        sentences = texts(batch)
        vectors = self._loaded.encode(
            sentences,
            batch_size=self._batch_size,
            convert_to_numpy=True,
            show_progress_bar=False,
            normalize_embeddings=self._normalize,
            prompt_name=self._prompt_name,
        )
        return np.asarray(vectors, np.float32)

    def close(self) -> None:
        """Let go of the model, which is again as it was given."""
        self._loaded = None
        restore(self._modes)
        self._modes = []

    def identity(self) -> Any:
        """Return the digest of the folder, or the modules, weights and tokenizer of a model; and the options."""
        options = (self._dtype, self._normalize, self._prompt_name)
        if self._artifact is not None:
            return ("sentence-transformers", self._artifact.digest(), *options)
        return ("sentence-transformers", *_parts(self._model), *options)

    def weights(self) -> str:
        """Say where the weights are."""
        if self._artifact is not None:
            return f"each worker loads its own copy of {self.label}"
        return (
            "weights are shared between workers" if self._device is None else "each worker moves its own copy"
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_loaded": None, "_modes": []}

    def _check_prompt(self, config: Mapping[str, Any]) -> None:
        known = dict(config.get("prompts") or {})
        if self._prompt_name is not None and self._prompt_name not in known:
            raise ArgumentError(
                f"prompt_name= asks for {self._prompt_name!r}, which the model does not have; it has {list(known)}."
            )


def _check_model(model: Any, given: Mapping[str, Any]) -> None:
    bases = [(each.__module__.partition(".")[0], each.__name__) for each in type(model).__mro__]
    if ("sentence_transformers", "SentenceTransformer") not in bases:
        raise ArgumentError(
            f"A sentence-transformers model is a SentenceTransformer or a folder, not {type(model).__name__}."
        )
    for name, value in given.items():
        if value is not None:
            raise ArgumentError(f"{name}= is for folders; a SentenceTransformer has its own.")


def _parts(model: Any) -> tuple[Any, ...]:
    """Return what makes a model's vectors, as values that are the same in every process."""
    modules = tuple(f"{type(each).__name__} {getattr(each, 'get_config_dict', dict)()}" for each in model)
    words = words_of(model.tokenizer)
    limit = getattr(model, "max_seq_length", None)
    return (modules, dict(model.state_dict()), words, limit, dict(model.prompts), model.default_prompt_name)
