"""How many workers a ``BatchPredictor`` has, and what each of them needs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from headrace.engines.local import machine
from headrace.errors import ArgumentError, UnknownArgument, nearest
from headrace.plan.strategies import worker_bounds

_WITHOUT_EFFECT = {  # entries of ray_remote_args that change nothing here
    *(
        "max_restarts",
        "max_task_retries",
        "max_retries",
        "retry_exceptions",
        "max_calls",
        "scheduling_strategy",
    ),
    *("num_returns", "name", "namespace", "lifetime", "object_store_memory", "max_pending_calls"),
}
_NOT_SUPPORTED = {
    "runtime_env": "workers have this process's environment, folder and sys.path: set them up before",
    "resources": "workers are given cores, GPUs and memory, and nothing by other names",
    "accelerator_type": "the GPUs of this machine are the ones that there are",
    "max_concurrency": "a worker predicts one batch after the other; Dataset.predict(max_in_flight=) is for models "
    "that wait",
}


def bounds(least: Any, most: Any) -> tuple[int, int] | None:
    """Return how many workers there may be; None if it was not given."""
    (least, _) = worker_bounds("min_scoring_workers", least)
    if most is None:
        return None if least == 1 else (least, max(least, os.cpu_count() or 1))
    worker_bounds("max_scoring_workers", most)
    if most < least:
        raise ArgumentError(f"max_scoring_workers={most} is less than min_scoring_workers={least}.")
    return least, most


def needs_of(num_cpus: float | None, num_gpus: float | None, remote: Any) -> dict[str, Any]:
    """Return what one worker needs, in the words of ``Dataset.predict``."""
    needs: dict[str, Any] = {"num_cpus": num_cpus, "num_gpus": num_gpus, "memory": None}
    if remote is not None and not isinstance(remote, Mapping):
        raise ArgumentError(f"ray_remote_args={remote!r}: it takes a dict of arguments by name.")
    for name, value in (remote or {}).items():
        if name in _NOT_SUPPORTED:
            raise ArgumentError(f"ray_remote_args: {name!r} is not supported: {_NOT_SUPPORTED[name]}.")
        if name in needs:
            needs[name] = value if needs[name] is None else needs[name]
        elif name not in _WITHOUT_EFFECT:
            raise UnknownArgument(
                f"ray_remote_args has an unknown entry {name!r}.{nearest(str(name), (*needs, *_WITHOUT_EFFECT))}"
            )
    return needs


def fits_one_process(needs: dict[str, Any]) -> bool:
    """Say whether one worker is asked for, and this process can be it: a GPU that is not there is refused."""
    return needs.get("concurrency") == (1, 1) and (needs.get("num_gpus") or 0) <= len(machine.devices())


def checked_only(needs: dict[str, Any]) -> dict[str, Any]:
    """Return what one worker needs, without how many: this process does the work, and there must be as much here."""
    return {name: value for name, value in needs.items() if name != "concurrency"}
