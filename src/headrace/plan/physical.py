"""What workers run and what is kept on disk: which steps share a pool, how big pools are, and the saved plan."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from headrace.core.engine_ports import Capacity, Devices
from headrace.core.files.input_files import Mark
from headrace.core.files.staged import Uploads
from headrace.core.human import size
from headrace.core.source_ports import Source
from headrace.core.target_ports import Sink
from headrace.core.work import Durability, OnError, Shard, Split
from headrace.errors import ResourcesUnavailable
from headrace.plan.logical import Plan
from headrace.plan.steps.base import UNDECLARED, Resources, Step
from headrace.plan.steps.functions import Accumulate


class Stage(msgspec.Struct, frozen=True):
    """Steps that share a pool of workers."""

    steps: tuple[Step, ...]
    workers: int  # the most
    threads: int  # of each worker
    overlapped: bool  # each worker reads, computes, and encodes its output at the same time, in threads
    num_gpus: float = 0.0  # of each worker
    memory: int | None = None  # of each worker, in bytes, where it is declared
    least: int = 1  # so many workers at the start, if not all
    origins: tuple[int, ...] = ()  # which step of the plan each is, or is a part of
    num_cpus: float = 1.0  # the cores that each worker needs, where they are counted
    # What a cluster is told about each worker besides.
    remote: Mapping[str, Any] = msgspec.field(default_factory=dict)


class ErrorPolicy(msgspec.Struct, frozen=True):
    """What becomes of rows that fail. ``show_data``: their values may be shown in messages.

    A call that raises one of ``retry_on`` is tried again, ``max_retries`` times.
    """

    on_error: OnError = "raise"
    show_data: bool = True
    retry_on: tuple[type[BaseException], ...] = ()
    max_retries: int = 3


class ColumnsRead(msgspec.Struct, frozen=True):
    """The ``columns`` that are read of one dataset of the source; None: all of them.

    ``unread``: for each step, columns that are there by the plan, but not read.
    """

    columns: tuple[str, ...] | None = None
    unread: tuple[frozenset[str], ...] = ()


class Program(msgspec.Struct, frozen=True):
    """All that a worker needs for any shard of the plan. Travels once per worker."""

    source: Source
    steps: tuple[Step, ...]
    reads: tuple[ColumnsRead, ...]  # of each dataset of a union whose datasets have steps; else of all rows
    sink: Sink | None
    kind: str  # what becomes of rows: "write", "blocks" for a reader, "look", "count", "make" for the next stage
    overlapped: bool  # the worker reads, computes, and encodes its output at the same time, in threads
    durability: Durability
    failpoints: dict[str, str] = msgspec.field(default_factory=dict)  # what a test has happen, and where
    stage: int = 0  # which of the plan's stages this is
    policy: ErrorPolicy = ErrorPolicy()
    unit: int = 0  # blocks for the next stage have a multiple of so many rows, as far as memory allows,
    block_rows: int = 0  # and no more than these, if a multiple is less; 0: any
    metrics: tuple[Accumulate, ...] = ()  # counted by whoever writes the rows
    states: str = ""  # the folder for big states of metrics, if there is one
    # An attempt may leave the rest of its shard to another at multiples of so many rows; 0: anywhere.
    parted: int = 0
    folder: str = ""  # where models may keep what shall be there when the run goes on, if there is one
    # What runs steps not of Headrace.
    own_running: Mapping[type[Step], type[Any]] = msgspec.field(default_factory=dict)
    # Output columns that may be copied: names in the source.
    carried: Mapping[str, str] = msgspec.field(default_factory=dict)
    # Source columns whose values are needed even if all these are copied.
    looked_at: frozenset[str] = frozenset()
    # For workers that may not see where the output is staged: how they upload what they write.
    uploads: Uploads | None = None

    @property
    def reads_blocks(self) -> bool:
        """True if rows come as blocks from the stage before, not from the source."""
        return self.stage > 0

    def dataset_of(self, splits: Sequence[Split]) -> int:
        """Return the number of the dataset of a union that some splits are of; 0 where steps are those of all."""
        return self.source.dataset_of(splits[0]) if splits else 0


class InputVersion(msgspec.Struct, frozen=True, array_like=True):
    """Up to where an input that has versions was read: its ``position``, and the columns and forms that it had."""

    position: dict[str, Any] = {}
    columns: dict[str, str] = {}
    forms: dict[str, str] = {}


class SavedPlan(msgspec.Struct, frozen=True):
    """The plan as it is persisted before the first attempt; resuming starts from it and from nothing else.

    ``shape`` is what must match, as JSON text. ``files`` are ``(path, size, mtime_ns)`` in the numbering that
    the shards' splits use, and ``marks`` those of the first of them; empty where an earlier version has planned.
    ``input``: what was read of one that has versions.
    ``table``: what tells the table that was there, to which the rows are to be added, from others.
    """

    run: str
    shape: str
    code: dict[str, str]
    files: list[tuple[str, int, int]]
    shards: list[Shard]
    created: float
    headrace: str
    input: InputVersion | None = None
    table: str = ""
    marks: Sequence[Mark] = ()

    @property
    def described(self) -> dict[str, Any]:
        """What the plan said of its ``source``, its ``steps`` and its ``sink``."""
        found: dict[str, Any] = msgspec.json.decode(self.shape)
        return found

    @property
    def sink(self) -> dict[str, Any]:
        """What the plan said of its sink; nothing where it has none."""
        return self.described.get("sink") or {}

    def digits(self) -> int:
        """How many digits a shard's number has in file names."""
        planned = sum(shard.place[0] == shard.index for shard in self.shards)
        return max(5, len(str(planned)))

    def encode(self) -> bytes:
        """Encode for the run folder."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> SavedPlan:
        """Read what ``encode`` wrote."""
        return msgspec.msgpack.decode(data, type=cls)


# ---------------------------------------------------------------- stages and pools

_ENDLESS = 1 << 62


class _StageDraft(msgspec.Struct):
    """Neighbouring steps that need the same workers."""

    needs: tuple[Resources, ...]
    steps: list[Step] = msgspec.field(default_factory=list)
    # Which step of the plan each is, or is a part of.
    origins: list[int] = msgspec.field(default_factory=list)

    def add(self, origin: int, step: Step) -> None:
        """Append a step; a part of the step before it becomes one step with that again."""
        if self.origins[-1:] == [origin]:
            self.steps[-1] = self.steps[-1].rejoined(step)
        else:
            self.steps.append(step)
            self.origins.append(origin)

    def add_all(self, other: _StageDraft) -> None:
        """Append all steps of another draft."""
        for origin, step in zip(other.origins, other.steps, strict=True):
            self.add(origin, step)

    @property
    def num_gpus(self) -> float:
        return max((each.num_gpus or 0.0 for each in self.needs), default=0.0)

    @property
    def num_cpus(self) -> float:
        return max((each.num_cpus or 0.0 for each in self.needs), default=0.0) or 1.0

    @property
    def cores(self) -> float:
        """What a worker asks of a place that counts cores: one, unless a step says otherwise, be it none."""
        return max((each.num_cpus for each in self.needs if each.num_cpus is not None), default=1.0)

    @property
    def memory(self) -> int:
        return sum(resources.memory or 0 for step in self.steps for resources in step.needs())

    @property
    def remote(self) -> dict[str, Any]:
        """What a cluster is told besides; of several steps, all that they say."""
        return {name: value for each in self.needs if each.remote for name, value in each.remote.args.items()}

    @property
    def workers(self) -> tuple[int, int] | None:
        declared = [each.workers for each in self.needs if each.workers is not None]
        return (max(low for low, _ in declared), max(high for _, high in declared)) if declared else None


def stages_of(
    plan: Plan,
    capacity: Capacity,
    *,
    workers: int | None,
    memory_limit: int | None,
    fused: bool = False,
    grows: bool = False,
    supposes_gpus: bool = False,
) -> tuple[Stage, ...]:
    """Cut the plan into stages and size their pools; refuse what can never run, with the numbers.

    Neighbouring steps that need the same share a stage. Steps that say nothing go with those behind them, except
    with those that hold a GPU; after the last that says something, with it. ``fused``: all in one stage. CPUs are
    advice, memory and GPUs are hard; unless the place ``grows``: then what there is says only how much is asked for,
    where the plan does not. What only a cluster is told counts there alone. A ``fused`` stage is this process, which
    makes do without GPUs if there are too few; ``supposes_gpus``: the stages are those of a machine with enough.
    """
    steps = plan.steps if grows else tuple(step.without_remote() for step in plan.steps)
    drafts = [_fused(steps, capacity)] if fused else _drafts(steps, decodes=plan.source.decodes)
    if grows:
        asked = sum((draft.workers or (1, 1))[0] * draft.num_gpus for draft in drafts)
        capacity = msgspec.structs.replace(
            capacity, memory=_ENDLESS, gpus=max(capacity.gpus, math.ceil(asked))
        )
    if supposes_gpus:
        enough = sum((draft.workers or (1, 1))[0] * math.ceil(draft.num_gpus) for draft in drafts)
        capacity = msgspec.structs.replace(capacity, gpus=max(capacity.gpus, enough))
    limit = memory_limit or capacity.memory
    for draft in drafts:
        _check(draft, capacity, limit)
    devices = {} if fused else _devices(drafts, capacity.gpus)
    sizes = [devices.get(i) or _size(draft, capacity, workers) for i, draft in enumerate(drafts)]
    if not grows:  # there the cluster places workers by what they declare
        sizes = _within_memory(drafts, sizes, limit)
    total = sum(high for _, high in sizes)
    threads = max(1, capacity.cpus // total)
    return tuple(
        Stage(
            tuple(draft.steps),
            high,
            threads,
            total < capacity.cpus,
            draft.num_gpus,
            draft.memory or None,
            low,
            tuple(draft.origins),
            draft.cores,
            draft.remote,
        )
        for draft, (low, high) in zip(drafts, sizes, strict=True)
    )


def _fused(steps: Sequence[Step], capacity: Capacity) -> _StageDraft:
    needs = tuple(resources for step in steps for resources in step.needs())
    if any((each.num_gpus or 0) > capacity.gpus for each in needs):
        needs = tuple(msgspec.structs.replace(each, num_gpus=None) for each in needs)
    return _StageDraft(needs, list(steps), list(range(len(steps))))


def _drafts(steps: Sequence[Step], *, decodes: bool) -> list[_StageDraft]:
    drafts: list[_StageDraft] = []
    pending = _StageDraft(())
    for origin, step in ((i, part) for i, each in enumerate(steps) for part in each.separated()):
        needs = _needs(step)
        if needs is None:
            pending.add(origin, step)
            continue
        if drafts and drafts[-1].needs == (needs,):
            drafts[-1].add_all(pending)
        elif needs.num_gpus and (any(step.functions() for step in pending.steps) or (not drafts and decodes)):
            drafts += [pending, _StageDraft((needs,))]
        else:
            drafts.append(_StageDraft((needs,)))
            drafts[-1].add_all(pending)
        drafts[-1].add(origin, step)
        pending = _StageDraft(())
    if not drafts:
        return [pending]
    drafts[-1].add_all(pending)
    return drafts


def _needs(step: Step) -> Resources | None:
    """Return what a step says that it needs, if it says anything."""
    declared = step.needs()
    return declared[0] if declared and declared[0] != UNDECLARED else None


# ---------------------------------------------------------------- sizes


def _check(draft: _StageDraft, capacity: Capacity, limit: int) -> None:
    if draft.num_gpus > capacity.gpus:
        raise ResourcesUnavailable(
            f"A worker of this plan needs {draft.num_gpus:g} GPU{'' if draft.num_gpus == 1 else 's'}, and this "
            f"machine has {capacity.gpus}. Nothing was started: lower num_gpus, or run on a machine with enough. "
            "take(), show() and with_options(engine='inline') run without GPUs."
        )
    if draft.memory > limit:
        raise ResourcesUnavailable(
            f"A worker of this plan needs {size(draft.memory, digits=2)} of memory, and the limit is "
            f"{size(limit, digits=2)}. Nothing "
            "was started: lower memory=, raise memory_limit=, or run on a larger machine."
        )


def _devices(drafts: Sequence[_StageDraft], gpus: int) -> dict[int, tuple[int, int]]:
    """Share the GPUs out; return how few and how many workers each draft that holds any may have.

    Each gets its least; then whoever has the fewest GPUs, and may have more, gets one worker more, until they are
    used up.
    """
    bounds = {i: draft.workers or (1, None) for i, draft in enumerate(drafts) if draft.num_gpus}
    counts = {i: low for i, (low, _) in bounds.items()}
    if not _fit(drafts, counts, gpus):
        raise ResourcesUnavailable(_too_many(drafts, counts, gpus))
    growing = set(counts)
    while growing:
        i = min(growing, key=lambda i: (counts[i] * drafts[i].num_gpus, i))
        more = counts | {i: counts[i] + 1}
        if counts[i] != bounds[i][1] and _fit(drafts, more, gpus):
            counts = more
        else:
            growing.discard(i)
    return {i: (low if high else counts[i], counts[i]) for i, (low, high) in bounds.items()}


def _fit(drafts: Sequence[_StageDraft], counts: Mapping[int, int], gpus: int) -> bool:
    devices = Devices(gpus)
    return all(devices.take(drafts[i].num_gpus, count) is not None for i, count in counts.items())


def _too_many(drafts: Sequence[_StageDraft], counts: Mapping[int, int], gpus: int) -> str:
    asked = " + ".join(f"{count} × {drafts[i].num_gpus:g}" for i, count in counts.items())
    enough = sum(count * drafts[i].num_gpus for i, count in counts.items()) <= gpus
    why = "; the part that a worker needs must be free on a single GPU" if enough else ""
    return (
        f"The workers of this plan need {asked} GPUs at the same time, and this machine has {gpus}{why}. Nothing was "
        "started: lower num_gpus or concurrency, or run on a machine with enough."
    )


def _size(draft: _StageDraft, capacity: Capacity, workers: int | None) -> tuple[int, int]:
    if draft.workers is not None:
        return draft.workers
    wanted = workers or max(1, int(capacity.cpus / draft.num_cpus))
    return wanted, wanted


def _within_memory(
    drafts: Sequence[_StageDraft], sizes: Sequence[tuple[int, int]], limit: int
) -> list[tuple[int, int]]:
    """Let no more workers be than their declared memory allows; one of each stage is the least."""
    fitted = list(sizes)
    least = sum(draft.memory for draft in drafts)
    if least > limit:
        raise ResourcesUnavailable(
            f"One worker of each of the {len(drafts)} stages of this plan needs {size(least, digits=2)} of memory "
            f"together, and the limit is {size(limit, digits=2)}. Nothing was started: lower memory=, raise "
            "memory_limit=, or run on a "
            "larger machine."
        )
    left = limit - least
    for i, (draft, (low, high)) in enumerate(zip(drafts, sizes, strict=True)):
        if draft.memory:
            more = min(high - 1, left // draft.memory)
            left -= more * draft.memory
            fitted[i] = min(low, 1 + more), 1 + more
    return fitted
