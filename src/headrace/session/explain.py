"""The plan in words: what would run, where, on what."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from headrace.core import human
from headrace.core.door import completed
from headrace.core.model_ports import PredictorParts
from headrace.core.source_ports import Source
from headrace.core.terminal import visible
from headrace.core.work import Shard
from headrace.engines.inline import PATIENCE
from headrace.errors import ResourcesUnavailable
from headrace.options import RunOptions
from headrace.plan import compile as compiler
from headrace.plan import partitioning
from headrace.plan.functions import Function, is_predictor
from headrace.plan.logical import Plan
from headrace.plan.physical import Stage
from headrace.plan.steps.base import OnBranch, Step, StepFunction, goes_through
from headrace.session.combined import branch_plans
from headrace.session.execution_plan import ExecutionPlan, copies_described


class Explanation(str):
    """A text that a prompt shows as it is, in lines."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def explain(plan: Plan, options: RunOptions) -> str:
    """Describe source, columns, shards, pools and each step; raises what the plan would raise.

    Only of GPUs that are not there it says in the last line that a run is refused.
    """
    execution = ExecutionPlan(plan, options, supposes_gpus=True)
    lines = [described(plan, execution, execution.shards, looks=True)]
    try:
        ExecutionPlan(plan, options)
    except ResourcesUnavailable as error:  # GPUs are all that was supposed
        lines.append(f"refused  {error}")
    return visible("\n".join(lines))


def described(plan: Plan, execution: ExecutionPlan, shards: Sequence[Shard], *, looks: bool = False) -> str:
    """Describe a plan that is divided into ``shards``; ``looks``: open files for what else there is to say."""
    options, capacity, stages = execution.options, execution.capacity, execution.stages
    schema = plan.source.known_schema()
    columns = None if schema is None else compiler.columns_read(plan.steps, schema)[0].columns
    tasks = sum(len(execution.partitioning.row_ranges(shard)) for shard in shards) if len(stages) > 1 else 0
    work = [_count(tasks, "task")] * (len(stages) - 1) + [_count(len(shards), "shard")]
    fit = execution.fitted(shards)
    known = not plan.source.unprepared
    idle = [_at_work(*each) if known else "" for each in zip(stages, fit, work, strict=True)]
    rows = [shard.rows for shard in shards]
    coarse = partitioning.oversized_shards(shards, execution.partitioning.shard_rows)
    alone = idle[0] if len(stages) == 1 else ""
    every = [] if schema is None else schema.names
    read = every if columns is None else columns
    reads = f"reads {len(read)} of {len(every)}: {_listed(read)}" if every else "known when the input is made"
    lines = [
        f"source   {_source(plan.source, rows)}",
        *plan.source.explained(),
        *(_datasets(plan, shards) or [f"columns  {reads}"]),
        "shards   known when the input is made"
        if plan.source.unprepared
        else f"shards   {len(shards):,}{f' ({coarse})' if coarse else ''}",
        f"engine   {options.engine_name}: {_pools(stages)}{alone}, on {_count(capacity.cpus, 'core')}"
        + (f" and {_count(capacity.gpus, 'GPU')}" if any(each.num_gpus for each in stages) else "")
        + (" (more workers than cores)" if sum(each.workers for each in stages) > capacity.cpus else ""),
    ]
    if execution.begins_here:
        lines.append(
            f"begins   a new write starts in this process, as the input is small and the models are scikit-learn's; "
            f"workers start if it computes for more than {PATIENCE:g} s"
        )
    if plan.requirements:
        asked = ", ".join(map(str, plan.requirements))
        lines.append(f"requires {asked}; nothing is published before, or if one is not met")
    lines += [f"gpus     {execution.missing_gpus}"] * bool(execution.missing_gpus) + _limits(execution)
    if not options.traits.is_cluster and any(needs.remote for step in plan.steps for needs in step.needs()):
        lines.append("ray      ray_remote_args= has no effect here")
    lines += copies_described(plan, shards, looks=looks)
    for i, stage in enumerate(stages):
        path = ["read" if i == 0 else "blocks", *(step.label() for step in stage.steps)]
        path.append("write" if i + 1 == len(stages) else "blocks")
        lines.append(f"stage {i + 1}  {' → '.join(path)}")
        if len(stages) > 1:
            lines.append(f"         {_pool(stage)}{idle[i]}")
        lines += [f"         {line}" for step in stage.steps for line in _step(step)]
    return "\n".join(lines)


def _source(source: Source, rows: Sequence[int]) -> str:
    """Describe a source with shards of so many rows."""
    kind = type(source).__name__.removesuffix("Source")
    number = "unknown number of" if -1 in rows else f"{sum(rows):,}"
    return f"{kind}, {_count(len(source.files()), 'file')}, {number} {'row' if number == '1' else 'rows'}"


def _datasets(plan: Plan, shards: Sequence[Shard]) -> list[str]:
    """Describe the datasets of a union that have steps of their own; nothing in other plans."""
    branches = branch_plans(plan)
    columns = compiler.columns_read(plan.steps, plan.source.schema()) if branches else []
    rows: list[list[int]] = [[] for _ in branches]
    for shard in shards if branches else ():
        for split in shard.splits[:1]:
            rows[plan.source.dataset_of(split)].append(shard.rows)
    lines = []
    for number, (branch, each) in enumerate(zip(branches, columns, strict=True), 1):
        names = branch.source.schema().names
        read = names if each.columns is None else each.columns
        lines.append(f"dataset {number}  {_source(branch.source, rows[number - 1])}")
        lines.append(f"         reads {len(read)} of {len(names)} columns: {_listed(read)}")
        own = [
            step.step for step in plan.steps if isinstance(step, OnBranch) and goes_through(step, number - 1)
        ]
        lines.append(f"         {' → '.join(['read', *(step.label() for step in own), 'union'])}")
    return lines


def _limits(execution: ExecutionPlan) -> list[str]:
    """Describe what happens to rows that fail, and how much memory the run may use."""
    options = execution.options
    most = options.max_errors
    limit = None if most is None else f"{most:g} of them" if most < 1 else f"{int(most):,} rows"
    effect = {"raise": "end the run", "reject": "are set aside", "null": "are written, with nulls"}
    fails = [f"rows that fail {effect[options.on_error]}"]
    fails += [f"at most {limit}"] if limit and options.on_error != "raise" else []
    fails += [f"a call may take {options.batch_timeout:g} s"] if options.batch_timeout else []
    if options.traits.is_cluster:
        blocks = human.size(execution.block_budget)
        workers = options.memory_limit and f"{human.size(options.memory_limit)} for workers on each node"
        memory = f"memory   {blocks} for blocks between stages; {workers or 'Ray watches that of its nodes'}"
    else:
        memory = f"memory   {human.size(execution.memory_limit)} for the whole run"
    return [f"errors   {', '.join(fails)}", memory]


def _at_work(stage: Stage, fit: Stage, work: str) -> str:
    """Describe how many workers of a stage have work, if not all have: the others are not started."""
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
    lines = []
    of = f" of {step.of}" if isinstance(step, OnBranch) else ""
    for each in step.functions():
        if each.predicts:
            how = [f"reads {'all columns' if each.inputs is None else _listed(each.inputs)}"]
        else:
            how = ["one object per worker" if isinstance(each.function.call, type) else "a function"]
        how += [] if each.batch_format is None else [_batches(each)]
        how += _in_flight(each.function, each.max_in_flight)
        weights = f"; {_weights(each.function)}" if each.predicts else ""
        lines.append(f"{each.label}{of}: {', '.join(how)}{weights}")
    return lines


def _in_flight(function: Function, most: int | None) -> list[str]:
    """Describe how many batches a function works on at a time; nothing if it is one."""
    from headrace.worker.calls import IN_FLIGHT  # imports what only workers need

    if function.is_async:
        return [f"async with {_at_a_time(most or IN_FLIGHT)}"]
    parts = completed(function.call, PredictorParts)
    if (
        function.model
        and is_predictor(function.call)
        and parts.submit is not None
        and parts.collect is not None
    ):
        if most is None:
            return ["it decides how many batches are in flight"]
        return [_at_a_time(most)]
    return [f"{_at_a_time(most)} in threads"] if most is not None and most > 1 else []


def _at_a_time(most: int) -> str:
    return f"{'up to ' if most > 1 else ''}{_count(most, 'batch', 'batches')} in flight per worker"


def _batches(step: StepFunction) -> str:
    if step.batch_size is not None:
        size = f"of {step.batch_size:,} rows"
    elif step.batch_bytes is not None:
        size = f"of about {human.size(step.batch_bytes)}"
    else:
        size = "from 128 rows up to about 16 MiB, whatever is fastest,"
    return f"batches {size} as {step.batch_format}"


def _weights(function: Function) -> str:
    """Describe which part of a model's memory all workers share, and which each has of its own."""
    describe = function.parts.weights
    if callable(describe):
        with contextlib.suppress(Exception):
            return str(describe()) + _sizes(function)
        words = "a function"
    elif isinstance(function.call, type):
        words = "one object per worker, and what it loads is not shared"
    else:
        words = "a function"
    return words + _sizes(function)


def _sizes(function: Function) -> str:
    """Return how many bytes of a function workers share, and how many each gets; "" if they are few."""
    from headrace.engines import out_of_band_pickle as parcel

    try:
        size = parcel.sizes(function)
    except Exception:  # what cannot be pickled is an error when the plan runs
        return ""
    if size.shared + size.private < 1 << 20:
        return ""
    return f" ({human.size(size.shared)} shared by all, {human.size(size.private)} in each)"


def _count(number: int, noun: str, plural: str = "") -> str:
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def _listed(names: list[str] | tuple[str, ...]) -> str:
    return ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
