"""The event that describes a run before it begins."""

from __future__ import annotations

import os
import platform
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from headrace.core.events import RunDescribed, StageDescribed
from headrace.options import RunOptions
from headrace.plan.logical import Plan
from headrace.plan.physical import Stage
from headrace.session import invocation, provenance
from headrace.session.explain import described
from headrace.version import __version__

if TYPE_CHECKING:
    from headrace.core.work import Shard
    from headrace.session.execution_plan import ExecutionPlan

_ABOUT_REPORTING = ("progress", "observers", "report", "watch")


def describe(
    run: str,
    plan: Plan,
    execution: ExecutionPlan,
    shards: Sequence[Shard],
    *,
    elapsed: float = 0.0,
    code: Mapping[str, str] = MappingProxyType({}),
    output: str = "",
) -> RunDescribed:
    """Return the event that describes a run before it begins; it contains no value of any row.

    ``code`` has the fingerprints of ``plan.identity.code_of``.
    """
    system = os.uname()
    options = execution.options
    paths, files = provenance.inputs(plan)
    command = provenance.command_line()
    typed = invocation.current() is not None
    return RunDescribed(
        run,
        __version__,
        platform.python_version(),
        f"{system.sysname} {system.release} {system.machine}",
        system.nodename,
        os.getpid(),
        execution.capacity.cpus,
        execution.memory_limit,
        options.engine_name,
        {name: _text(value) for name, value in changed(options)},
        described(plan, execution, shards),
        tuple(step.label() for step in plan.steps),
        _stages(execution),
        round(elapsed, 3),
        provenance.source_name(plan),
        paths,
        files,
        command,
        f"headrace resume {shlex.quote(output)}" if typed and output else command,
        provenance.working_folder(),
        provenance.models(plan.steps, code),
        provenance.packages(),
        provenance.git_commit(),
        needs_every_row(plan),
    )


def needs_every_row(plan: Plan) -> bool:
    """Say whether no row may be set aside, as the table that is written to has each of them already."""
    return plan.sink is not None and plan.sink.target is not None and plan.sink.target.every_row


def describe_reading(plan: Plan, execution: ExecutionPlan, *, elapsed: float) -> RunDescribed:
    """Return the same for a run whose rows are read: only what its progress shows."""
    return RunDescribed(
        "",
        __version__,
        "",
        "",
        "",
        os.getpid(),
        execution.capacity.cpus,
        0,
        execution.options.engine_name,
        {"on_error": execution.options.on_error},
        "",
        tuple(step.label() for step in plan.steps),
        _stages(execution),
        round(elapsed, 3),
    )


def _stages(execution: ExecutionPlan) -> tuple[StageDescribed, ...]:
    return tuple(
        StageDescribed(
            stage_name(stage),
            stage.workers,
            tuple(step.label() for step in stage.steps),
            next((step.label() for step in stage.steps if any(each.workers for each in step.needs())), ""),
            stage.num_gpus,
            {
                each.label: each.batch_size
                for step in stage.steps
                for each in step.functions()
                if each.batch_size is not None
            },
        )
        for stage in execution.stages
    )


def stage_name(stage: Stage) -> str:
    """Return the labels of a stage's steps."""
    return " → ".join(step.label() for step in stage.steps if not step.metrics) or "read"


def changed(options: RunOptions) -> list[tuple[str, Any]]:
    """Return the options that differ from the defaults, without those about reporting.

    >>> changed(RunOptions(workers=2, progress=False))
    [('workers', 2)]
    """
    usual = RunOptions()
    return [
        (field.name, getattr(options, field.name))
        for field in fields(options)
        if field.name not in _ABOUT_REPORTING and getattr(options, field.name) != getattr(usual, field.name)
    ]


def _text(value: Any) -> str:
    if isinstance(value, type):
        return value.__name__
    if isinstance(value, tuple):
        return ", ".join(map(_text, value))
    return str(value)
