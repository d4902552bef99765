"""A plan laid out for a machine or cluster: its stages, how its input is partitioned, what is copied."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.core import failpoints
from headrace.core.engine_ports import Capacity
from headrace.core.target_ports import NOT_COPIED
from headrace.core.work import Shard
from headrace.options import RunOptions
from headrace.plan import compile as compiler
from headrace.plan.logical import Plan
from headrace.plan.physical import ErrorPolicy, Program, Stage, stages_of
from headrace.plan.steps.base import Step, innermost, is_of_headrace
from headrace.session.engines import block_budget, capacity_for, missing_gpus

if TYPE_CHECKING:
    from headrace.plan.partitioning import Partitioning


# ---------------------------------------------------------------- columns that are copied as they are stored

_FILES = 32  # that are looked at to describe a plan
_NAMES = 8


def why_nothing_copied(plan: Plan) -> str:
    """Say why no column is copied, as far as plan and sink tell; "" if some may be."""
    from headrace.core.failures import is_foreign

    sink = plan.sink
    if sink is None or is_foreign(sink.format) or is_foreign(plan.source):
        return NOT_COPIED
    return compiler.why_rows_change(plan.steps) or sink.why_not_joined()


def columns_to_copy(
    plan: Plan, steps: Sequence[Step], shards: Sequence[Shard], stages: int
) -> Mapping[str, str]:
    """Return the columns of the output that workers may copy, with their names in the source.

    Of a plan of several stages, those that can be copied of the first shard: the first stage does not read them, so
    that a shard of which one cannot be copied after all is begun again.
    """
    carried = {} if why_nothing_copied(plan) else compiler.carried_columns(steps, plan.source.schema())
    if stages == 1 or not carried or not shards:
        return carried
    from headrace.worker.copy_choice import choose_copied

    assert plan.sink is not None
    values = compiler.values_looked_at(steps, plan.source.schema(), carried)
    found = choose_copied(plan.source, plan.sink.format, carried, shards[0].splits, looked_at=values)
    plan.source.close()
    return found.copied


def copies_described(plan: Plan, shards: Sequence[Shard], *, looks: bool) -> Iterator[str]:
    """Say which columns are copied where the plan is written as Parquet, and why others are not.

    Nothing is said of a plan that reads no Parquet files, or carries no column through. Without a sink, it is that of
    ``write_parquet`` with its defaults. ``looks``: files are opened, for what the plan alone does not tell.
    """
    from headrace.sinks.files import FileSink
    from headrace.sinks.parquet import Parquet
    from headrace.worker.copy_choice import choose_copied

    if not plan.source.has_chunks:
        return
    if plan.sink is None:
        plan = replace(plan, sink=FileSink(".", Parquet()))
    assert plan.sink is not None
    if plan.sink.why_not_joined() == NOT_COPIED:
        return
    carried = compiler.carried_columns(plan.steps, plan.source.schema())
    if not carried:
        return
    why = why_nothing_copied(plan)
    if why:
        yield f"copied   nothing: {why}"
        return
    if not looks:
        yield f"copied   where files allow: {_listed(list(carried))}"
        return
    values = compiler.values_looked_at(plan.steps, plan.source.schema(), carried)
    looked_at: set[int] = set()
    reasons: dict[str, str] = {}
    for shard in shards:
        numbers = {split.file for split in shard.splits}
        if numbers <= looked_at:
            continue
        if looked_at and len(looked_at | numbers) > _FILES:
            break
        looked_at |= numbers
        found = choose_copied(plan.source, plan.sink.format, carried, shard.splits, looked_at=values)
        for name, reason in found.decoded.items():
            reasons.setdefault(name, reason)
    plan.source.close()
    copied = [name for name in carried if name not in reasons]
    files = len(plan.source.files())
    part = f" (by {len(looked_at)} of {files:,} files)" if len(looked_at) < files else ""
    yield f"copied   as they are stored: {_listed(copied) or 'no columns'}{part}"
    for reason, names in groupby(sorted(reasons, key=lambda name: reasons[name]), key=reasons.__getitem__):
        yield f"         not {_listed(list(names))}: {reason}"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
    return ", ".join(names[:_NAMES]) + more


class ExecutionPlan:
    """A plan, its options, and what follows from both and from the capacity. No worker exists yet.

    ``stages`` may have more workers than there is work for, until ``fit``. ``most``: how many workers the last stage
    may have later.
    """

    __slots__ = ("_begins_here", "_partitioning", "_writes", "capacity", "most", "options", "plan", "stages")

    def __init__(
        self, plan: Plan, options: RunOptions, *, supposes_gpus: bool = False, writes: bool = True
    ) -> None:
        """Connects to the cluster, if there is one; raises ``PlanError`` for a plan that cannot run there.

        ``supposes_gpus``: as if there were as many GPUs as the plan asks for, to show what would run. ``writes``: the
        rows are written, not read, so that the run may divide shards.
        """
        self.plan = plan
        self.options = options
        self.capacity: Capacity = capacity_for(options)
        self.stages = _stages(plan, options, self.capacity, supposes_gpus=supposes_gpus)
        self._writes = writes
        self._begins_here: bool | None = None
        self.most = self.stages[-1].workers
        self._partitioning: Partitioning | None = None

    @property
    def partitioning(self) -> Partitioning:
        """How the input is partitioned; reads the input's metadata, so workers are started before."""
        if self._partitioning is None:
            from headrace.plan.partitioning import partitioning_of

            self._partitioning = partitioning_of(
                self.stages,
                self.plan.source,
                self.options.shard_rows,
                divides=self._writes and not self.options.traits.is_cluster,
                begun=self._writes and self.begins_here,
                writes=self._writes,
                copies=self._writes
                and self.plan.source.has_chunks  # others may be made to say their schema
                and bool(columns_to_copy(self.plan, self.plan.steps, (), 1)),
            )
        return self._partitioning

    @property
    def shards(self) -> list[Shard]:
        """The shards of the input."""
        return self.partitioning.shards(self.plan.source)

    @property
    def inline(self) -> bool:
        """True if this process does the work."""
        return self.options.traits.in_process

    @property
    def begins_here(self) -> bool:
        """True if this process begins a job that writes, before any worker is started."""
        if self._begins_here is None:
            from headrace.session.engines import begins_here

            self._begins_here = begins_here(self.plan, self.options, self.stages)
        return self._begins_here

    @property
    def missing_gpus(self) -> str:
        """Which GPUs this process does without, in a sentence; "" if it need not, or is not what does the work."""
        return missing_gpus(self.plan.steps, self.capacity) if self.inline else ""

    @property
    def memory_limit(self) -> int:
        """Bytes that the run may use; on a cluster, on each node, and 0 without a limit."""
        return self.options.memory_limit or (0 if self.options.traits.is_cluster else self.capacity.memory)

    @property
    def block_budget(self) -> int:
        """Bytes for blocks between stages."""
        return block_budget(self.options, self.capacity.memory)

    @property
    def workers(self) -> int:
        """The highest number of workers, of all stages."""
        return sum(stage.workers for stage in self.stages)

    @property
    def bounds(self) -> list[tuple[int, int]]:
        """The lowest and the highest number of workers of each stage."""
        *earlier, last = self.stages
        return [*((stage.least, stage.workers) for stage in earlier), (last.least, self.most)]

    @property
    def sized(self) -> list[int]:
        """The stages that have as many workers as the option ``workers`` says, and may get others."""
        if self.inline or self.begins_here:
            return []
        return [
            i
            for i, stage in enumerate(self.stages)
            if not stage.num_gpus and not any(each.workers for step in stage.steps for each in step.needs())
        ]

    def fitted(self, shards: Sequence[Shard]) -> tuple[Stage, ...]:
        """Return the stages with no more workers than ``shards`` are work for."""
        from headrace.plan.partitioning import stages_with_work

        return stages_with_work(self.stages, self.partitioning, shards)

    def fit(self, shards: Sequence[Shard], *, shared: bool = False) -> None:
        """Leave out the workers that ``shards`` are no work for; let the last stage overlap where cores are idle.

        ``shared``: as shards may be divided, there may be work for them later.
        """
        *earlier, last = self.fitted(shards)
        self.most = self.stages[-1].workers if shared else last.workers
        busy = sum(stage.workers for stage in (*earlier, last))
        overlapped = last.overlapped or (busy < self.capacity.cpus and not self.options.traits.is_cluster)
        self.stages = (*earlier, msgspec.structs.replace(last, overlapped=overlapped))

    def attempts_ahead(self, shards: Sequence[Shard]) -> int:
        """Return how many attempts each worker of the last stage is given, so that earlier stages are busy."""
        *earlier, last = self.stages
        if not earlier or not shards:
            return 2
        pieces = sum(len(self.partitioning.row_ranges(shard)) for shard in shards) / len(shards)
        wanted = 2 * max(stage.workers for stage in earlier) / (pieces * last.workers)
        return min(64, max(2, 1 + math.ceil(wanted)))

    def programs(
        self,
        plan: Plan,
        kind: str,
        shards: Sequence[Shard],
        *,
        overlap: bool,
        states: str = "",
        folder: str = "",
    ) -> list[Program]:
        """Return what the workers of each stage run.

        Parameters
        ----------
        plan
            The plan with its sink.
        kind
            The ``kind`` of the last stage's program.
        shards
            Those that are not done.
        overlap
            Whether workers of this engine can read and write beside their computing.
        states
            The folder for big states of metrics, or "".
        folder
            The folder for what models keep until the run has ended, or "".
        """
        from headrace.plan.partitioning import block_rows_for, dividable_unit

        schema = plan.source.schema()
        steps = [step for stage in self.stages for step in stage.steps]
        carried = columns_to_copy(plan, steps, shards, len(self.stages)) if kind == "write" else {}
        reads = compiler.columns_read(steps, schema, output=kind != "count")
        begun = 0
        made = []
        for i, stage in enumerate(self.stages):
            last = i + 1 == len(self.stages)
            block_rows = 0
            if i + 2 < len(self.stages):
                block_rows = block_rows_for(shards, self.stages[i + 1].workers)
            program = Program(
                source=plan.source,
                steps=stage.steps,
                reads=tuple(
                    msgspec.structs.replace(each, unread=each.unread[begun : begun + len(stage.steps)])
                    for each in reads
                ),
                sink=plan.sink if last else None,
                kind=kind if last else "make",
                overlapped=last and overlap and stage.overlapped,
                durability=self.options.durability,
                failpoints=failpoints.active(),
                stage=i,
                policy=_policy(self.options),
                unit=0 if last else self.partitioning.units[i + 1],
                block_rows=block_rows,
                metrics=plan.accumulates if last else (),
                states=states if last else "",
                parted=dividable_unit(plan.steps) if last else 0,
                folder=folder,
                own_running=_own_running([innermost(step) for step in stage.steps]),
                carried=carried,
                looked_at=compiler.values_looked_at(steps, schema, carried),
            )
            begun += len(stage.steps)
            made.append(program)
        return made


def _stages(plan: Plan, options: RunOptions, capacity: Capacity, *, supposes_gpus: bool) -> tuple[Stage, ...]:
    """Return the stages of a plan: a single one, that overlaps nothing, where this process does all."""
    inline = options.traits.in_process
    stages = stages_of(
        plan,
        capacity,
        workers=options.workers,
        memory_limit=options.memory_limit,
        fused=inline,
        grows=options.traits.is_cluster,
        supposes_gpus=supposes_gpus,
    )
    if options.traits.is_cluster:
        return tuple(
            msgspec.structs.replace(stage, threads=max(1, int(stage.num_cpus)), overlapped=False)
            for stage in stages
        )
    return (msgspec.structs.replace(stages[0], workers=1, least=1, overlapped=False),) if inline else stages


def _own_running(steps: Sequence[Step]) -> dict[type[Step], type[Any]]:
    """Return what runs the steps that are not of Headrace; raises ``PlanError`` if one has nothing."""
    if all(is_of_headrace(type(step)) for step in steps):
        return {}
    from headrace.worker.steps.base import own_running

    return own_running(steps)


def _policy(options: RunOptions) -> ErrorPolicy:
    kinds = options.retry_on if isinstance(options.retry_on, tuple) else (options.retry_on,)
    return ErrorPolicy(options.on_error, options.show_data, kinds, options.max_retries)
