"""SGLang's offline engine: made in this process, given requests, and waited for."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import os
import re
from collections.abc import Sequence
from typing import Any

from headrace.annex.llm.engine_model import (
    EngineModel,
    EngineRequest,
    Generated,
    cannot_run,
    check_options,
    has_stopped,
    not_importable,
    tokenizer_of,
)
from headrace.annex.llm.refusals import RequestRefused
from headrace.annex.llm.server import ChildGuard
from headrace.core.files.artifacts import shortened
from headrace.engines.local.descendants import descendants
from headrace.predictors.huggingface import set_library_defaults

RUNNING = 256
"""So many requests are worked on at a time, where nothing is said."""
STEP_SECONDS = 0.02
"""After which others may go in, if nothing has ended."""
_NAMES = {"max_tokens": "max_new_tokens", "min_tokens": "min_new_tokens", "seed": "sampling_seed"}


def start_engine(model: EngineModel) -> SGLangEngine:
    """Load a model into an engine of SGLang, for this thread."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    set_library_defaults()
    try:
        from sglang import Engine
        from sglang.srt.server_args import ServerArgs
    except ImportError as error:
        raise not_importable(model, error, "sglang") from error
    arguments = _arguments(model, set(inspect.signature(ServerArgs).parameters))
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)  # the engine takes that of its thread
    before = set(descendants(os.getpid()))
    try:
        engine = Engine(**arguments)
    except Exception as error:
        loop.close()
        if isinstance(error, MemoryError):
            raise
        raise cannot_run(model, "SGLang", error) from error
    return SGLangEngine(engine, model, loop, sorted(set(descendants(os.getpid())) - before))


class SGLangEngine:
    """SGLang's ``Engine`` as one that goes step by step. ``room``: how many tokens prompt and answer may have.

    Its processes end with this one, even where that is killed.
    """

    def __init__(
        self, engine: Any, model: EngineModel, loop: asyncio.AbstractEventLoop, processes: list[int]
    ) -> None:
        self._engine, self._loop = engine, loop
        self._most = model.max_num_seqs or RUNNING
        self.tokenizer = tokenizer_of(model)
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
        return generated(said)

    def step(self) -> Sequence[tuple[int, Any]]:
        """Wait until a request has ended, or others may go in; return what ended."""
        done, _ = self._loop.run_until_complete(
            asyncio.wait(self._tasks, timeout=STEP_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        )
        ended: list[tuple[int, Any]] = []
        for task in done:
            number, error = self._tasks.pop(task), task.exception()
            if error is not None and not isinstance(error, RequestRefused):
                raise has_stopped("SGLang", error) from error
            ended.append((number, error if error is not None else task.result()))
        return ended

    def load(self) -> tuple[int, int]:
        """Return how many requests are worked on, as far as the engine takes so many, and how many wait."""
        running = min(len(self._tasks), self._most)
        return running, len(self._tasks) - running

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

    >>> sampling_of(EngineRequest([1], {"max_tokens": 5, "seed": 3, "top_p": 0.5}, {"choice": ["a.", "b"]}))
    {'max_new_tokens': 5, 'sampling_seed': 3, 'top_p': 0.5, 'regex': '(a\\\\.|b)'}
    """
    found = {_NAMES.get(name, name): value for name, value in request.sampling.items()}
    for kind, value in request.structure.items():
        if kind == "choice":
            found["regex"] = f"({'|'.join(map(re.escape, value))})"
        elif kind == "regex":
            found["regex"] = value
        elif kind in ("json", "json_object"):
            found["json_schema"] = json.dumps(value if kind == "json" else {"type": "object"})
        else:
            raise RequestRefused(f"SGLang knows no {kind!r} of structured_outputs")
    return found


def generated(said: dict[str, Any]) -> Generated:
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


def _arguments(model: EngineModel, known: set[str]) -> dict[str, Any]:
    """Return what ``Engine`` is given; raises ``ArgumentError`` for an option that it does not have."""
    check_options(model, known, "ServerArgs of this SGLang")
    arguments: dict[str, Any] = {
        "model_path": model.artifact.path,
        "dtype": model.dtype,
        "context_length": model.max_model_len,
        "max_running_requests": model.max_num_seqs or RUNNING,
        "disable_radix_cache": not model.prefix_caching,
        "tp_size": model.gpus,
        "trust_remote_code": False,
        "log_level": "error",
    }
    if model.loras:
        arguments |= {
            "enable_lora": True,
            "lora_paths": {name: adapter.path for name, adapter in model.loras.items()},
            "max_loras_per_batch": min(len(model.loras) + 1, 8),
        }
    return {name: value for name, value in arguments.items() if value is not None} | model.options
