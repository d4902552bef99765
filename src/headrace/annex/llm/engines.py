"""Language models that vLLM or SGLang runs in the worker."""

from __future__ import annotations

import copy
import hashlib
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from headrace.annex.llm.refusals import ContextTooLong
from headrace.annex.llm.settings import LanguageModel, given_positive, optional
from headrace.core.arguments import known_arguments
from headrace.core.files.artifacts import Artifact
from headrace.errors import ArgumentError
from headrace.predictors.huggingface import checked_folder, json_in

DTYPES = ("auto", "float32", "float16", "bfloat16")
READ_AHEAD = 256
"""As for an endpoint of so many requests at a time are rows read ahead, where nothing is said."""


class EngineModel(LanguageModel):
    """A language model that an engine runs in each worker, fed as a stream. ``library`` is imported for that."""

    library = ""
    engine = ""
    sampling_names: ClassVar[tuple[str, ...]] = ()
    refuses: ClassVar[Mapping[str, str]] = {
        "tools": "is for endpoints: the server finds a model's tool calls in its text",
        "fallback": "is for endpoints",
        "deadline": "is for endpoints",
    }

    @known_arguments
    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        dtype: str = "auto",
        max_model_len: int | None = None,
        max_num_seqs: int | None = None,
        prefix_caching: bool = True,
        loras: Mapping[str, str | os.PathLike[str]] | None = None,
        options: Mapping[str, Any] | None = None,
        trust_pickle: bool = False,
        sha256: str | None = None,
    ) -> None:
        if not isinstance(path, (str, os.PathLike)):
            raise ArgumentError(
                f"{self.noun}: it takes the path of a folder, as text, not {type(path).__name__}."
            )
        if dtype not in DTYPES:
            raise ArgumentError(f"dtype= takes one of {DTYPES}, not {dtype!r}.")
        if not isinstance(prefix_caching, bool):
            raise ArgumentError(f"prefix_caching={prefix_caching!r}: it takes True or False.")
        self.artifact = checked_folder(
            os.fspath(path), sha256, marker="config.json", trust_pickle=trust_pickle
        )
        names = (json_in(self.artifact.path, "config.json") or {}).get("architectures") or ["?"]
        if re.search(r"For(Sequence|Token|MaskedLM|Question|Image|MultipleChoice)", str(names[0])):
            raise ArgumentError(
                f"The model {self.artifact.name} is a {names[0]}, which goes on with no text. It takes one for "
                "causal language modelling; predict with hr.TransformersPredictor is for others."
            )
        self.dtype = dtype
        self.max_model_len = optional(given_positive, "max_model_len", max_model_len)
        self.max_num_seqs = optional(given_positive, "max_num_seqs", max_num_seqs)
        self.prefix_caching = prefix_caching
        self.loras = _given_loras(loras)
        self.options = self._given_options(options)
        self.gpus = 1
        self._name = ""

    def _given_options(self, value: Any) -> dict[str, Any]:
        if value is None:
            return {}
        if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
            raise ArgumentError(
                f"options={value!r:.80}: it takes arguments of the engine by name, such as those in the docstring of "
                f"{self.noun}."
            )
        for name in value:
            if name in _OWN_OPTIONS:
                raise ArgumentError(
                    f"options= has {name!r}, and that is not for there: {_OWN_OPTIONS[name]}."
                )
        return dict(value)

    def __repr__(self) -> str:
        return f"{self.noun}({self.artifact.path!r})"

    @property
    def label(self) -> str:
        """The name that messages use."""
        return self.artifact.name

    @property
    def max_in_flight(self) -> int:
        """How many requests at a time rows are read ahead for."""
        return self.max_num_seqs or READ_AHEAD

    @property
    def model(self) -> str:
        """The name by which answers are kept: that of the folder, with a digest of its content."""
        if not self._name:
            identity = self._identity(_known_digest)  # reading all weights again would take a while
            digest = hashlib.blake2b(repr(identity).encode(), digest_size=12).hexdigest()
            self._name = f"{self.label}@{digest}"
        return self._name

    def identity(self) -> tuple[Any, ...]:
        """Return what decides about the answers: weights, adapters, and the options that change them."""
        return self._identity(Artifact.digest)

    def _identity(self, digest: Callable[[Artifact], str]) -> tuple[Any, ...]:
        loras = tuple((name, digest(adapter)) for name, adapter in sorted(self.loras.items()))
        options = tuple((name, repr(value)) for name, value in sorted(self.options.items()))
        return self.library, digest(self.artifact), self.dtype, self.max_model_len, loras, options

    def weights(self) -> str:
        """Describe where the weights are."""
        return f"each worker has an engine of its own for {self.label}"

    def cost(self, prompt_tokens: int, completion_tokens: int, *, batch: bool = False) -> float:
        """Return 0: what computes here has no price."""
        return 0.0

    @property
    def order(self) -> str:
        """The order in which waiting requests go in."""
        return self.settings.order or ("prefix" if self.prefix_caching else "arrival")

    def on_gpus(self, count: float | None) -> Self:
        """Return the model with an engine for each group of so many GPUs."""
        made = copy.copy(self)
        made.gpus = max(1, math.ceil(count or 1))
        return made

    def check_value(self, name: str, value: Any) -> None:
        """Refuse a value that makes no sense, for all rows or for one."""
        super().check_value(name, value)
        if name == "lora" and (not isinstance(value, str) or value not in self.loras):
            known = ", ".join(self.loras) or f"none: give them by {self.noun}(…, loras={{'name': 'folder'}})"
            raise ArgumentError(f"sampling={{'lora': {value!r}}}: the adapters here are {known}.")

    def check_together(self, schema: Any) -> None:
        """Refuse settings that do not go with one another, or that only a server can see to."""
        super().check_together(schema)
        settings = self.settings
        served = [name for name in settings.columns if name != "logprobs"]
        if served:
            raise ArgumentError(
                f"columns={served!r}: these are for endpoints; a {self.noun} model in the worker has 'logprobs'."
            )
        drawn = settings.sampling.get("temperature") or "temperature" in settings.overrides
        if settings.n > 1 and not drawn:
            raise ArgumentError(
                f"n={settings.n}: without a temperature, a {self.noun} model takes the likeliest token, and all "
                "answers were the same. Say sampling={'temperature': 1.0}."
            )


def _known_digest(artifact: Artifact) -> str:
    """Return the digest that was taken last; takes it where there is none."""
    return artifact.seen[-1] if artifact.seen else artifact.planned or artifact.digest()


def _given_loras(value: Any) -> dict[str, Artifact]:
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(name, str) and name for name in value):
        raise ArgumentError(f"loras={value!r:.80}: it takes folders by name, {{'legal': 'adapters/legal/'}}.")
    return {
        name: checked_folder(os.fspath(path), None, marker="adapter_config.json", trust_pickle=False)
        for name, path in value.items()
    }


# ---------------------------------------------------------------- what all engines share


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """A prompt in tokens, and how to go on with it. ``structure``: what ``StructuredOutputsParams`` takes.

    ``n``: how many answers; ``logprobs``: with those of their tokens.
    ``messages``: a prompt with images, which the engine makes tokens of; then ``max_tokens`` may be missing.
    """

    tokens: list[int]
    sampling: Mapping[str, Any]
    structure: Mapping[str, Any] = field(default_factory=dict)
    lora: str = ""
    messages: Sequence[Mapping[str, Any]] = ()
    n: int = 1
    logprobs: bool = False


def response_of(prompt: int, cached: Any, choices: Iterable[tuple[str, Any, int, Any]]) -> dict[str, Any]:
    """Return what an engine made of a prompt, as servers say it; ``cached`` of its tokens were computed before.

    Each choice is a text, why it ended, how many tokens it has, and the logarithms of their probabilities, if asked.
    """
    listed: list[dict[str, Any]] = []
    written = 0
    for text, reason, tokens, logprobs in choices:
        written += tokens
        message = {"role": "assistant", "content": text}
        listed.append({"index": len(listed), "message": message, "finish_reason": str(reason)})
        if logprobs:
            listed[-1]["logprobs"] = {"content": [{"logprob": float(each)} for each in logprobs]}
    usage = {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written}
    details = {"prompt_tokens_details": {"cached_tokens": int(cached or 0)}}
    return {"object": "chat.completion", "choices": listed, "usage": usage | details}


def context_too_long(prompt: int, answer: int, room: int) -> ContextTooLong:
    """Return the error of a prompt for which the model has no room."""
    return ContextTooLong(
        f"the prompt has {prompt:,} tokens and the answer may have {answer:,}; the model takes {room:,}"
    )


SAMPLING = (
    "max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty",
    "presence_penalty", "frequency_penalty", "seed", "stop", "stop_token_ids", "min_tokens", "ignore_eos",
    "bad_words", "lora",
)  # fmt: skip
_OWN_OPTIONS = {
    **dict.fromkeys(("model", "model_path"), "the path is given first"),
    **dict.fromkeys(("tokenizer", "tokenizer_path"), "it is in the folder of the model"),
    "dtype": "say dtype=",
    **dict.fromkeys(("max_model_len", "context_length"), "say max_model_len="),
    **dict.fromkeys(("max_num_seqs", "max_running_requests"), "say max_num_seqs="),
    **dict.fromkeys(("enable_prefix_caching", "disable_radix_cache"), "say prefix_caching="),
    **dict.fromkeys(("enable_lora", "lora_paths"), "say loras="),
    **dict.fromkeys(("seed", "random_seed"), "sampling= has seed"),
    "tp_size": "say num_gpus= of prompt",
    "skip_tokenizer_init": "the engine makes text of tokens",
    "trust_remote_code": "code that a model's folder brings is not run here",
}
"""Arguments of vLLM and SGLang that are not given as ``options``."""


class VLLM(EngineModel):
    """A language model that vLLM runs in each worker, fed as a stream: a request goes in as another comes out.

    Parameters
    ----------
    path
        A folder saved by ``save_pretrained``, with its tokenizer. A name of the hub is refused: nothing is
        downloaded.
    dtype
        ``"auto"`` (as the folder says, the default), ``"float32"``, ``"float16"`` or ``"bfloat16"``.
    max_model_len
        How many tokens prompt and answer may have together. Default: what the model was made for.
    max_num_seqs
        How many requests vLLM works on at a time, at most. Default: vLLM's for the machine. How many are given to
        it is found from what it says: those, and a reserve.
    prefix_caching
        Keep what was computed for the beginnings of prompts, for others that begin alike.
    loras
        Adapters by name, ``{"legal": "adapters/legal/"}``; ``sampling={"lora": "legal"}`` says which one answers.
    options
        Other arguments of vLLM's ``EngineArgs`` by their names: ``{"gpu_memory_utilization": 0.8}``.
    trust_pickle
        Allows weights in ``pytorch_model.bin``, a pickle.
    sha256
        Pins the content of the folder.

    ``num_gpus=2`` of ``prompt`` has each worker run one engine on two GPUs, by tensor parallelism. ``sampling=``
    takes ``max_tokens`` (default: what the model has room for), ``temperature`` (0, the default, takes the likeliest
    token), ``top_p``, ``top_k``, ``min_p``, ``repetition_penalty``, ``presence_penalty``, ``frequency_penalty``,
    ``seed``, ``stop``, ``stop_token_ids``, ``min_tokens``, ``ignore_eos``, ``bad_words`` and ``lora``.

    Messages may have images (``{"type": "image_url", …}``) where the model sees; others end the run and say so.

    Raises ``ModelUnreadable``, ``ModelChanged`` and ``UntrustedPickle`` for the folder; ``MissingLibrary`` in a
    worker without vLLM.

    Examples
    --------
    >>> import headrace as hr
    >>> hr.llm.VLLM("qwen3-8b", max_model_len=4096)
    Traceback (most recent call last):
        ...
    headrace.errors.ArgumentError: 'qwen3-8b' is not a folder here. If it is a model of the Hugging Face...
    """

    library = "vllm"
    engine = "vLLM"
    takes_images = True
    sampling_names = SAMPLING


class SGLang(EngineModel):
    """A language model that SGLang runs in each worker, fed as a stream: a request goes in as another comes out.

    It is driven by SGLang's offline ``Engine``, and has been tried with a stand-in for that, not with a GPU.

    It takes what ``VLLM`` takes. ``options`` are other arguments of SGLang's ``ServerArgs`` by their names:
    ``{"mem_fraction_static": 0.8}``; ``max_num_seqs`` is 256 by default, and ``sampling=`` knows no ``bad_words``.

    Raises ``ModelUnreadable``, ``ModelChanged`` and ``UntrustedPickle`` for the folder; ``MissingLibrary`` in a
    worker without SGLang.

    Examples
    --------
    >>> import headrace as hr
    >>> hr.llm.SGLang("qwen3-8b", max_model_len=4096)
    Traceback (most recent call last):
        ...
    headrace.errors.ArgumentError: 'qwen3-8b' is not a folder here. If it is a model of the Hugging Face...
    """

    library = "sglang"
    engine = "SGLang"
    sampling_names = tuple(name for name in SAMPLING if name != "bad_words")
