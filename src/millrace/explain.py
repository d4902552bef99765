"""The plan in words: what would run, where, on what."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from millrace.core.ports import Capacity
from millrace.core.work import Shard
from millrace.observers import human
from millrace.options import RunOptions
from millrace.plan import compile as compiler
from millrace.plan import cuts as cutting
from millrace.plan.logical import (
    Function,
    MapBatches,
    Model,
    Plan,
    Predict,
    Step,
    functions_of,
    in_flight_of,
    is_predictor,
    model_label,
    resources_of,
    step_label,
)
from millrace.plan.physical import Stage
from millrace.screen import visible
from millrace.workplace import budget_on_ray, capacity_for, stages_for


def explain(plan: Plan, options: RunOptions) -> str:
    """Describe source, columns, shards, the pool and each step; raises what the plan would raise."""
    capacity = capacity_for(options)
    stages = stages_for(plan, options)
    cuts = cutting.cuts_of(stages, plan.source, options.shard_rows)
    return visible(described(plan, options, capacity, stages, cuts, cuts.shards(plan.source)))


def described(
    plan: Plan,
    options: RunOptions,
    capacity: Capacity,
    stages: Sequence[Stage],
    cuts: cutting.Cuts,
    shards: Sequence[Shard],
) -> str:
    """Describe a plan that is cut into ``shards`` for these stages of this machine."""
    schema = plan.source.schema()
    columns = compiler.columns_to_read(plan.steps, schema)
    pieces = sum(len(cuts.pieces(shard)) for shard in shards) if len(stages) > 1 else 0
    work = [_count(pieces, "piece")] * (len(stages) - 1) + [_count(len(shards), "shard")]
    fit = cutting.fitted(stages, cuts, shards)
    idle = [_at_work(*each) for each in zip(stages, fit, work, strict=True)]
    rows = [shard.rows for shard in shards]
    alone = idle[0] if len(stages) == 1 else ""
    read = schema.names if columns is None else columns
    kind = type(plan.source).__name__.removesuffix("Source")
    lines = [
        f"source   {kind}, {_count(len(plan.source.files()), 'file')}, "
        f"{'unknown number of' if -1 in rows else f'{sum(rows):,}'} rows",
        f"columns  reads {len(read)} of {len(schema.names)}: {_listed(read)}",
        f"shards   {len(shards):,}{f' ({coarse})' if (coarse := cutting.coarser(shards, cuts.shard_rows)) else ''}",
        f"engine   {options.engine}: {_pools(stages)}{alone}, on {_count(capacity.cpus, 'core')}"
        + (f" and {_count(capacity.gpus, 'GPU')}" if any(each.num_gpus for each in stages) else "")
        + (" (more workers than cores)" if sum(each.workers for each in stages) > capacity.cpus else ""),
    ]
    lines += _limits(options, capacity.memory)
    if not options.on_ray and any(needs.remote for step in plan.steps for needs in resources_of(step)):
        lines.append("ray      ray_remote_args= has no effect here")
    for i, stage in enumerate(stages):
        path = ["read" if i == 0 else "blocks", *map(step_label, stage.steps)]
        path.append("write" if i + 1 == len(stages) else "blocks")
        lines.append(f"stage {i + 1}  {' → '.join(path)}")
        if len(stages) > 1:
            lines.append(f"         {_pool(stage)}{idle[i]}")
        lines += [f"         {line}" for step in stage.steps for line in _step(step)]
    return "\n".join(lines)


def _limits(options: RunOptions, memory: int) -> list[str]:
    """Say what becomes of rows that fail, and how much memory there is."""
    most = options.max_errors
    limit = None if most is None else f"{most:g} of them" if most < 1 else f"{int(most):,} rows"
    what = {"raise": "end the run", "reject": "are set aside", "null": "are kept, with nulls"}[
        options.on_error
    ]
    fails = [f"rows that fail {what}"]
    fails += [f"at most {limit}"] if limit and options.on_error != "raise" else []
    fails += [f"a call may take {options.batch_timeout:g} s"] if options.batch_timeout else []
    if options.on_ray:
        blocks = human.size(budget_on_ray(options, memory))
        held = f"memory   {blocks} for blocks between stages; Ray watches that of its nodes"
    else:
        held = f"memory   {human.size(options.memory_limit or memory)} for the whole run"
    return [f"errors   {', '.join(fails)}", held]


def _at_work(stage: Stage, fit: Stage, work: str) -> str:
    """Say how many workers of a stage have work, if not all have: the others are not started."""
    if fit.workers == stage.workers:
        return ""
    return f", {fit.workers:,} of them {'has' if fit.workers == 1 else 'have'} work: {work}"


def _pools(stages: Sequence[Stage]) -> str:
    if len(stages) == 1:
        return _pool(stages[0])
    return f"{_count(sum(stage.workers for stage in stages), 'worker')} in {len(stages)} stages"


def _pool(stage: Stage) -> str:
    count = (
        f"{stage.least} to {stage.workers} workers"
        if stage.least < stage.workers
        else _count(stage.workers, "worker")
    )
    needs = [f"{stage.num_gpus:g} GPU"] if stage.num_gpus else []
    needs += [f"{human.size(stage.memory)} of memory"] if stage.memory else []
    needs += [f"{name}={value!r}" for name, value in stage.remote.items()]
    return f"{count} with {', '.join([_count(stage.threads, 'thread'), *needs])} each"


def _step(step: Step) -> list[str]:
    if isinstance(step, Predict):
        lines = []
        for model in step.models:
            reads = "all columns" if model.inputs is None else _listed(model.inputs)
            how = [f"reads {reads}", _batches(model)]
            how += _in_flight(model.function, model.max_in_flight)
            lines.append(f"{model_label(step, model)}: {', '.join(how)}; {_weights(model.function)}")
        return lines
    lines = []
    for function, most in zip(functions_of(step), in_flight_of(step), strict=True):
        how = ["constructed once per worker" if isinstance(function.call, type) else "called"]
        if isinstance(step, MapBatches):
            how.append(_batches(step))
        how += _in_flight(function, most)
        lines.append(f"{step_label(step)}: {', '.join(how)}")
    return lines


def _in_flight(function: Function, most: int | None) -> list[str]:
    """Say how many batches a function has at a time; nothing of what is called with one after the other."""
    from millrace.run.calls import IN_FLIGHT  # imports what only workers need

    if function.is_async:
        return [f"async with {_at_a_time(most or IN_FLIGHT)}"]
    call = function.call
    if function.model and is_predictor(call) and all(hasattr(call, it) for it in ("submit", "collect")):
        if most is None:
            return ["as many batches of a worker in flight as it asks for"]
        return [_at_a_time(most)]
    return [f"{_at_a_time(most)} in threads"] if most is not None and most > 1 else []


def _at_a_time(most: int) -> str:
    return f"{'up to ' if most > 1 else ''}{_count(most, 'batch', 'batches')} of a worker in flight"


def _batches(step: MapBatches | Model) -> str:
    if step.batch_size is not None:
        size = f"of {step.batch_size:,} rows"
    elif step.batch_bytes is not None:
        size = f"of about {human.size(step.batch_bytes)}"
    else:
        size = "that grow from 128 rows to about 16 MiB while that is faster,"
    return f"batches {size} as {step.batch_format}"


def _weights(function: Function) -> str:
    """Say which of a model's memory all workers share, and which each has of its own."""
    said = getattr(function.predictor, "weights", None)
    if callable(said):
        with contextlib.suppress(Exception):
            return str(said()) + _travels(function)
        words = "called"
    elif isinstance(function.call, type):
        words = "constructed once per worker, and what it loads there is private to each"
    else:
        words = "called"
    return words + _travels(function)


def _travels(function: Function) -> str:
    """Say how much of a function goes to workers as one copy, and how much to each; nothing if it is little."""
    from millrace.engines import parcel  # imports numpy and cloudpickle

    try:
        size = parcel.sizes(function)
    except Exception:  # what cannot travel is told when the plan runs
        return ""
    if size.shared + size.private < 1 << 20:
        return ""
    return f" ({human.size(size.shared)} in one copy for all, {human.size(size.private)} private to each)"


def _count(number: int, noun: str, plural: str = "") -> str:
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def _listed(names: list[str] | tuple[str, ...]) -> str:
    return ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
