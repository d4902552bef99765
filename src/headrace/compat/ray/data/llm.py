"""Ray's ``ray.data.llm``: requests to a web server, and vLLM in the workers as ``Dataset.prompt`` runs it."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.error import HTTPError, URLError

from headrace.compat.ray.data.block import BlockAccessor
from headrace.compat.ray.offered import Kept, missing, not_offered
from headrace.core.terminal import say
from headrace.errors import ArgumentError

__all__ = [
    "HttpRequestProcessorConfig", "Processor", "ProcessorConfig", "SGLangEngineProcessorConfig",
    "build_llm_processor", "build_processor", "vLLMEngineProcessorConfig",
]  # fmt: skip


class ProcessorConfig(Kept, batch_size=32, concurrency=1):
    """Base of the configurations."""


class HttpRequestProcessorConfig(
    ProcessorConfig, headers=None, qps=None, max_retries=3, base_retry_wait_time_in_s=1.0, timeout=600.0
):
    """Where requests go: ``url``, ``headers``, and ``qps``, how many a worker sends in a second at most.

    What rows have in ``payload`` is sent as JSON, and ``http_response`` is the answer. A request that the server
    is too busy for, or that finds no server, is sent again, ``max_retries`` times.
    """

    def __init__(self, *, url: str, **given: Any) -> None:
        super().__init__(url=url, **given)


class vLLMEngineProcessorConfig(
    ProcessorConfig, engine_kwargs=None, runtime_env=None, task_type="generate", accelerator_type=None
):
    """What ``hr.llm.VLLM`` is made with: ``model_source``, a folder, and ``engine_kwargs``.

    ``concurrency`` is how many workers have it. ``runtime_env`` has variables of the environment.
    """

    engine = "VLLM"

    def __init__(self, *, model_source: str, **given: Any) -> None:
        super().__init__(model_source=model_source, **given)
        self.engine_kwargs = dict(given.get("engine_kwargs") or {})


class SGLangEngineProcessorConfig(vLLMEngineProcessorConfig):
    """What ``hr.llm.SGLang`` is made with: as ``vLLMEngineProcessorConfig``."""

    engine = "SGLang"


Row = dict[str, Any]
RowFunction = Callable[[Row], Row]


class Processor:
    """Asks for each row of a dataset; made by ``build_processor``."""

    def __init__(self, config: ProcessorConfig, preprocess: RowFunction, postprocess: RowFunction) -> None:
        self._config, self._preprocess, self._postprocess = config, preprocess, postprocess

    def __call__(self, dataset: Any) -> Any:
        if isinstance(self._config, HttpRequestProcessorConfig):
            asking = _Asking(self._config, self._preprocess, self._postprocess)
            size, most = self._config.batch_size, self._config.concurrency
            return dataset.map_batches(asking, batch_format="pyarrow", batch_size=size, concurrency=most)
        return self._prompted(dataset)

    def log_input_column_names(self) -> None:
        """Print what ``preprocess`` has to return for each row."""
        http = isinstance(self._config, HttpRequestProcessorConfig)
        say("payload" if http else "messages or prompt; sampling_params may be there", sys.stdout)

    def _prompted(self, dataset: Any) -> Any:
        from headrace import llm
        from headrace.compat.ray.around import environment

        config: Any = self._config
        os.environ.update(environment(config.runtime_env).get("env_vars") or {})
        given = dict(config.engine_kwargs)
        named = {
            name: given.pop(name) for name in ("dtype", "max_model_len", "max_num_seqs") if name in given
        }
        if named.get("dtype") == "half":
            named["dtype"] = "float16"
        gpus = int(given.pop("tensor_parallel_size", 1)) * int(given.pop("pipeline_parallel_size", 1))
        model = getattr(llm, config.engine)(config.model_source, options=given, **named)
        rows = dataset.map(_Prepared(self._preprocess))
        first = (rows.take(1) or [{}])[0]
        sampling = {name[len(_SAMPLING) :]: name for name in first if name.startswith(_SAMPLING)}
        template = "{messages}" if "messages" in first else "{prompt}"
        asked = rows.prompt(
            template, model.with_options(overrides=sampling), output="generated_text", num_gpus=gpus,
            concurrency=config.concurrency,
        )  # fmt: skip
        return asked.map(self._postprocess)


_SAMPLING = "sampling_params."


class _Prepared:
    """Calls ``preprocess``, and gives each parameter of ``sampling_params`` a column of its own."""

    def __init__(self, function: RowFunction) -> None:
        self._function = function

    def __call__(self, row: Row) -> Row:
        made = {**row, **self._function(row)}
        return {
            **made,
            **{f"{_SAMPLING}{name}": value for name, value in made.pop("sampling_params", {}).items()},
        }


class _Asking:
    """Sends what ``preprocess`` makes of a row, and gives the answer to ``postprocess``."""

    def __init__(self, config: Any, preprocess: RowFunction, postprocess: RowFunction) -> None:
        self._config, self._preprocess, self._postprocess = config, preprocess, postprocess
        self.__name__ = "http_request"

    def __call__(self, batch: Any) -> dict[str, list[Any]]:
        rows = [{**row, **self._preprocess(row)} for row in BlockAccessor.for_block(batch).iter_rows()]
        if any("payload" not in row for row in rows):
            raise ArgumentError("preprocess has to return a dict with 'payload', which is sent as JSON.")
        with ThreadPoolExecutor(max(1, len(rows))) as threads:
            answers = [*threads.map(self._sent, [row.pop("payload") for row in rows])]
        made = [
            self._postprocess({**row, "http_response": answer})
            for row, answer in zip(rows, answers, strict=True)
        ]
        return {name: [row.get(name) for row in made] for name in made[0]} if made else {}

    def _sent(self, payload: Any) -> Any:
        config = self._config
        headers = {"Content-Type": "application/json", **(config.headers or {})}
        for attempt in range(config.max_retries + 1):
            _wait_for_turn(config.url, config.qps)
            request = urllib.request.Request(config.url, json.dumps(payload).encode(), headers, method="POST")
            try:
                with urllib.request.urlopen(request, timeout=config.timeout) as answer:
                    return json.load(answer)
            except (URLError, TimeoutError) as error:
                passes = not isinstance(error, HTTPError) or error.code == 429 or error.code >= 500
                if not passes or attempt == config.max_retries:
                    raise
                time.sleep(config.base_retry_wait_time_in_s * 2**attempt)
        raise AssertionError


_turns: dict[str, float] = {}  # when the next request may be sent from this process, by address
_taking = threading.Lock()


def _wait_for_turn(url: str, qps: float | None) -> None:
    if not qps:
        return
    with _taking:
        turn = max(time.monotonic(), _turns.get(url, 0.0))
        _turns[url] = turn + 1 / qps
    time.sleep(max(0.0, turn - time.monotonic()))


def build_processor(
    config: ProcessorConfig,
    preprocess: RowFunction | None = None,
    postprocess: RowFunction | None = None,
    **others: Any,
) -> Processor:
    """Return what asks for each row: ``processor(dataset)`` is the dataset with the answers.

    ``preprocess(row)`` adds ``payload``, or ``messages`` or ``prompt`` and ``sampling_params``; ``postprocess(row)``
    returns the row that stays.
    """
    if not isinstance(config, (HttpRequestProcessorConfig, vLLMEngineProcessorConfig)):
        raise ArgumentError(f"build_processor({config!r}): it takes a configuration of ray.data.llm.")
    if str(getattr(config, "task_type", "generate")) not in ("generate", "LLMTaskType.GENERATE"):
        raise not_offered("ray.data.llm: task_type", why="dataset.embed(column, model) makes embeddings")
    return Processor(config, preprocess or _as_it_is, postprocess or _as_it_is)


build_llm_processor = build_processor


def _as_it_is(row: Row) -> Row:
    return row


def __getattr__(name: str) -> Any:
    why = "hr.llm has what there is: dataset.prompt(template, hr.llm.VLLM(folder))"
    raise missing("ray.data.llm", name, __all__, why)
