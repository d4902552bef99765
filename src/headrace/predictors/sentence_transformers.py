"""Embeddings of sentences, by sentence-transformers."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from headrace.core.arguments import known_arguments
from headrace.core.arrow.model_columns import texts
from headrace.core.files.artifacts import Artifact
from headrace.errors import ArgumentError
from headrace.predictors.huggingface import TextPredictor, check_modules, json_in, tokenizer_content

Array = np.ndarray[Any, Any]


def kind_of(path: str) -> str | None:
    """Return ``"sentence-transformers"`` if a folder of ``SentenceTransformer.save`` is at ``path``; None if not."""
    modules = json_in(path, "modules.json") if os.path.isdir(path) else None
    return "sentence-transformers" if isinstance(modules, list) else None


class SentenceTransformersPredictor(TextPredictor):
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
    headrace.errors.ArgumentError: 'all-MiniLM-L6-v2' is not a folder here. If it is a model of the Hugging Face...
    """

    classes = ("SentenceTransformer",)
    kind_of = staticmethod(kind_of)
    library = "sentence_transformers"
    extra = "sentence-transformers"
    model_class = "SentenceTransformer"
    marker = "modules.json"

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
        self._normalize, self._prompt_name = normalize_embeddings, prompt_name
        self._open(
            model, device=device, dtype=dtype, batch_size=batch_size, trust_pickle=trust_pickle, sha256=sha256
        )
        if self._artifact is not None:
            check_modules(self._artifact)
            config = json_in(self._artifact.path, "config_sentence_transformers.json") or {}
        else:
            config = {"prompts": self._model.prompts}
        prompts = dict(config.get("prompts") or {})
        if prompt_name is not None and prompt_name not in prompts:
            raise ArgumentError(
                f"prompt_name= asks for {prompt_name!r}, which the model does not have; it has {list(prompts)}."
            )

    def predict(self, batch: Mapping[str, Array]) -> Array:
        """Return the vectors, float32 (n, d)."""
        vectors = self._loaded.encode(
            texts(batch),
            batch_size=self._batch_size,
            convert_to_numpy=True,
            show_progress_bar=False,
            normalize_embeddings=self._normalize,
            prompt_name=self._prompt_name,
        )
        return np.asarray(vectors, np.float32)

    def _load_folder(self, artifact: Artifact) -> Any:
        import sentence_transformers

        return sentence_transformers.SentenceTransformer(
            artifact.path,
            device=self._device,
            local_files_only=True,
            trust_remote_code=False,
            model_kwargs={**self._precision(), **self._weight_files()},
        )

    def _copy_to(self, device: str) -> Any:
        return copy.deepcopy(self._model).to(device)

    def _content(self, model: Any) -> tuple[Any, ...]:
        modules = tuple(f"{type(each).__name__} {getattr(each, 'get_config_dict', dict)()}" for each in model)
        tokenizer = tokenizer_content(model.tokenizer)
        limit = getattr(model, "max_seq_length", None)
        prompts = dict(model.prompts)
        return (modules, dict(model.state_dict()), tokenizer, limit, prompts, model.default_prompt_name)

    def _options(self) -> tuple[Any, ...]:
        return (self._dtype, self._normalize, self._prompt_name)
