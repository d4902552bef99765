"""What a driver is about to do, for the record of its run."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from millrace.core.events import RunDescribed, StageDescribed
from millrace.core.ports import Capacity
from millrace.explain import described
from millrace.options import RunOptions
from millrace.plan.logical import Accumulate, Plan, step_label
from millrace.plan.physical import Stage
from millrace.version import __version__

if TYPE_CHECKING:
    from millrace.core.work import Shard
    from millrace.workplace import Workplace

_WHERE_IT_GOES = ("progress", "observers", "log", "metrics_port", "price_per_hour", "report_values")


def describe(
    run: str,
    plan: Plan,
    options: RunOptions,
    workplace: Workplace,
    shards: Sequence[Shard],
    *,
    elapsed: float = 0.0,
) -> RunDescribed:
    """Return what there is to say of a run before it begins; no value of any row is in it."""
    system = os.uname()
    gpus = sum(stage.num_gpus > 0 for stage in workplace.stages)
    capacity = Capacity(workplace.cpus, workplace.limit, int(gpus))
    return RunDescribed(
        run,
        __version__,
        platform.python_version(),
        f"{system.sysname} {system.release} {system.machine}",
        system.nodename,
        os.getpid(),
        workplace.cpus,
        workplace.limit,
        options.engine,
        {name: _told(value) for name, value in changed(options)},
        described(plan, options, capacity, workplace.stages, workplace.cuts, shards),
        tuple(step_label(step) for step in plan.steps),
        tuple(StageDescribed(stage_name(stage), stage.workers) for stage in workplace.stages),
        round(elapsed, 3),
        options.price,
    )


def stage_name(stage: Stage) -> str:
    """Return a stage's steps in words."""
    steps = [step for step in stage.steps if not isinstance(step, Accumulate)]
    return " → ".join(map(step_label, steps)) or "read"


def changed(options: RunOptions) -> list[tuple[str, Any]]:
    """Return the options that differ from the defaults, without those that only say who is told.

    >>> changed(RunOptions(workers=2, progress=False))
    [('workers', 2)]
    """
    usual = RunOptions()
    return [
        (field.name, getattr(options, field.name))
        for field in fields(options)
        if field.name not in _WHERE_IT_GOES and getattr(options, field.name) != getattr(usual, field.name)
    ]


def _told(value: Any) -> str:
    if isinstance(value, type):
        return value.__name__
    if isinstance(value, tuple):
        return ", ".join(map(_told, value))
    return str(value)
