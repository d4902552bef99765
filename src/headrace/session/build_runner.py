"""Composes a runner: its scheduler, the policies in their order, and the stages before the last."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from headrace.core.arrow.output_schema import merge
from headrace.core.source_ports import Location
from headrace.core.work import Faults, Ledger, Shard, Split
from headrace.driver.block_tasks import BlockTasks
from headrace.driver.loop import Runner
from headrace.driver.policies.memory import MemoryGuard, MemoryPolicy
from headrace.driver.policies.poison_rows import PoisonRowDetector
from headrace.driver.policies.shards import EarlyCommit, ErrorBudget, Growth, LedgerCheck, WorkSharing
from headrace.driver.policies.workers import (
    BatchCeilings,
    Interruption,
    PickleWarnings,
    PoolScaling,
    StallDetector,
)
from headrace.driver.policy import Policy
from headrace.driver.ports import Committer, RunPorts
from headrace.driver.scheduler import Scheduler
from headrace.driver.shards import Merge
from headrace.plan.accounts import Accounts

if TYPE_CHECKING:
    from headrace.output.journal_state import JournalState


class Resumed(msgspec.Struct, frozen=True):
    """What earlier drivers of a run left, from its journal; the defaults: nothing.

    ``done`` has a 1 for each committed shard; ``passed``: how many rows each ``limit`` has let through;
    ``shard_too_big``: a shard did not fit into memory.
    """

    done: bytes | bytearray = b""
    schema: bytes | None = None
    revision: int = 0
    passed: Sequence[int] = ()
    ledger: Ledger = msgspec.field(default_factory=Ledger)
    faults: Faults = msgspec.field(default_factory=Faults)
    shard_too_big: bool = False

    @classmethod
    def of(cls, state: JournalState, schema: bytes | None) -> Resumed:
        """Return what a journal says of a run with this output schema."""
        return cls(
            state.done,
            schema,
            state.revision,
            state.passed,
            state.ledger,
            state.faults,
            shard_too_big=state.shard_too_big,
        )


class RunSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a run is to do, and within which bounds. All but the shards have defaults.

    ``limits`` are the rows that the plan's ``limit`` steps let pass. ``reading``: batches go to a reader, in
    order. ``ahead``: attempts that each worker of the last stage is given at a time. ``memory_limit`` is in bytes,
    None where nobody watches memory; ``driver_memory`` measures that of this process. ``machine`` says which one a
    worker is on. ``bounds`` has the least and most workers of each stage, ``sized`` the stages of which the option
    ``workers`` says how many. ``raises``: a poison row ends the run; ``locate`` says where a row stands.
    ``commit_every`` is in seconds, 0 for never. ``shared``: workers may get a part of what others have left.
    ``blocks`` decides on tasks of earlier stages. ``union``: the number of the dataset of each planned shard, where
    only running tells their schemas. ``want`` asks for further shards; None: all are known.
    """

    shards: Sequence[Shard]
    merge: Merge = merge
    limits: Sequence[int] = ()
    reading: bool = False
    max_attempts: int = 3
    ahead: int = 2
    accounts: Accounts | None = None
    max_errors: float | None = None
    raises: bool = True
    locate: Callable[[Split, int], Location] = lambda split, row: Location("the input", row)
    batch_timeout: float | None = None
    stall_timeout: float = 300.0
    commit_every: float = 0.0
    shared: bool = False
    memory_limit: int | None = None
    driver_memory: Callable[[], int] = lambda: 0
    machine: Callable[[int], str] = lambda worker: ""
    bounds: Sequence[tuple[int, int]] = ()
    sized: Sequence[int] = ()
    blocks: BlockTasks | None = None
    resumed: Resumed = msgspec.field(default_factory=Resumed)
    union: Sequence[int] = ()
    want: Callable[[], None] | None = None


def build_runner(spec: RunSpec, committer: Committer, ports: RunPorts | None = None) -> Runner:
    """Return a runner for ``spec`` that commits to ``committer``.

    >>> from headrace.driver.ports import InMemoryCommitter
    >>> build_runner(RunSpec(shards=[Shard(0, ())]), InMemoryCommitter()).scheduler.finished
    False
    """
    resumed = spec.resumed
    passed = resumed.passed or [0] * len(spec.limits)
    scheduler = Scheduler(
        spec.shards,
        merge=spec.merge,
        done=bytearray(resumed.done) or None,
        schema=resumed.schema,
        revision=resumed.revision,
        limits=[limit - rows for limit, rows in zip(spec.limits, passed, strict=True)],
        reading=spec.reading,
        max_attempts=spec.max_attempts,
        ahead=spec.ahead,
        blocks=spec.blocks,
        union=(spec.union, _one_schema) if spec.union else None,
        expects=spec.want is not None,
    )
    policies = policies_of(spec, committer, dividable=scheduler.dividable)
    return Runner(scheduler, committer, policies=policies, ports=ports)


def _one_schema(schemas: Sequence[bytes]) -> bytes:
    """Return one schema for several datasets, as a union has it."""
    from headrace.core.arrow.batch import schema_bytes, schema_from
    from headrace.sources.union import unified

    return schema_bytes(unified(list(map(schema_from, schemas))))


def policies_of(spec: RunSpec, committer: Committer, *, dividable: bool) -> list[Policy]:
    """Return the policies of a run, in the order in which they are asked.

    Outcomes are checked before they count against the error budget; of a death, the memory
    guard knows first whether it caused that itself.
    """
    poison_rows = PoisonRowDetector(spec.batch_timeout, raises=spec.raises, locate=spec.locate)
    policies: list[Policy] = []
    if spec.accounts is not None:
        policies.append(LedgerCheck(spec.accounts))
    policies.append(ErrorBudget(spec.max_errors, spec.resumed.ledger, spec.resumed.faults))
    if spec.memory_limit is not None:
        memory = MemoryPolicy(spec.memory_limit, shard_too_big=spec.resumed.shard_too_big)
        policies.append(MemoryGuard(memory, spec.driver_memory, poison_rows, spec.machine))
    policies += [poison_rows, BatchCeilings(committer), PickleWarnings()]
    if dividable and (spec.commit_every or spec.shared):
        policies.append(EarlyCommit(spec.commit_every))
    if dividable and spec.shared:
        policies.append(WorkSharing(spec.bounds[-1][1]))
    if spec.want is not None:
        policies.append(Growth(spec.want))
    policies.append(Interruption(waits=bool(spec.commit_every) and dividable))
    policies.append(PoolScaling(spec.bounds, spec.sized))
    policies.append(StallDetector(spec.stall_timeout))
    return policies
