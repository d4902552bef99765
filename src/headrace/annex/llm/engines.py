"""Language models that vLLM or SGLang runs in the worker."""

from __future__ import annotations

from headrace.annex.llm.engine_model import EngineModel

SAMPLING = (
    "max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty",
    "presence_penalty", "frequency_penalty", "seed", "stop", "stop_token_ids", "min_tokens", "ignore_eos",
    "bad_words", "lora",
)  # fmt: skip
_VLLM_OPTIONS = {
    "model": "the path is given first",
    "tokenizer": "it is in the folder of the model",
    "dtype": "say dtype=",
    "max_model_len": "say max_model_len=",
    "max_num_seqs": "say max_num_seqs=",
    "enable_prefix_caching": "say prefix_caching=",
    "enable_lora": "say loras=",
    "trust_remote_code": "code that a model's folder brings is not run here",
    "seed": "sampling= has it",
}
_SGLANG_OPTIONS = {
    "model_path": "the path is given first",
    "tokenizer_path": "it is in the folder of the model",
    "dtype": "say dtype=",
    "context_length": "say max_model_len=",
    "max_running_requests": "say max_num_seqs=",
    "disable_radix_cache": "say prefix_caching=",
    "lora_paths": "say loras=",
    "enable_lora": "say loras=",
    "tp_size": "say num_gpus= of prompt",
    "skip_tokenizer_init": "the engine makes text of tokens",
    "trust_remote_code": "code that a model's folder brings is not run here",
    "random_seed": "sampling= has seed",
}


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
    takes_images = True
    sampling_names = SAMPLING
    own_options = _VLLM_OPTIONS


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
    sampling_names = tuple(name for name in SAMPLING if name != "bad_words")
    own_options = _SGLANG_OPTIONS
