"""The options that steps share: written once for all verbs that take them, by ``**options: Unpack[StepOptions]``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from headrace.plan.strategies import ActorPoolStrategy, TaskPoolStrategy

Compute = ActorPoolStrategy | TaskPoolStrategy
Concurrency = int | tuple[int, int]


class WorkerOptions(TypedDict, total=False):
    """What the workers of a step need, and how many there may be. None is as if it were not given."""

    compute: Compute | None
    concurrency: Concurrency | None
    num_cpus: float | None
    num_gpus: float | None
    memory: float | str | None
    ray_remote_args: Mapping[str, Any] | None
    version: str | None


class StepOptions(WorkerOptions, total=False):
    """Further arguments of the user's function as well, and of its class."""

    fn_args: Sequence[Any] | None
    fn_kwargs: Mapping[str, Any] | None
    fn_constructor_args: Sequence[Any] | None
    fn_constructor_kwargs: Mapping[str, Any] | None
