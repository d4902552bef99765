"""What the machines of a fleet have made becomes one output: gathered, compared with the plan, and committed."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

import msgspec

from headrace.annex.fleet.machine import Fleet
from headrace.core.events import MachinesWorked, MachineWork
from headrace.core.files import safe_files
from headrace.core.metric_states import STATES, side_files
from headrace.core.work import CommitRecord, Faults, Ledger, Shard, Split
from headrace.driver.policies.shards import ErrorBudget
from headrace.errors import LedgerMismatch, PlanError
from headrace.observers.record import EVENTS
from headrace.output.job import Job
from headrace.output.places.place import looked_at
from headrace.output.runs import SavedRun, current_run
from headrace.plan.accounts import mismatch

_LABEL = re.compile(r"(?<=part-)\d+(?:\.\d+)*")
ROWS_FIRST = "Write the rows up to the limit with one machine first, and read that with all"


class Gathered(msgspec.Struct, frozen=True):
    """A shard that a machine has committed, in the place that it has among all."""

    machine: str
    run: SavedRun
    shard: Shard
    record: CommitRecord


@contextlib.contextmanager
def gathered(fleet: Fleet) -> Iterator[list[Gathered]]:
    """Return what counts of all that machines have committed, in the order of the input.

    Their outputs are open meanwhile. Raises ``LedgerMismatch`` if that is not what was planned.
    """
    with contextlib.ExitStack() as opened:
        found: list[Gathered] = []
        for machine, ended in fleet.board.ended.items():
            if ended.counted == ():
                continue
            sink = fleet.sink_of(machine)
            there = opened.enter_context(looked_at(sink.root, sink.storage.options))
            run, counted = current_run(there.root), None if ended.counted is None else {*ended.counted}
            if run is not None:
                shards = run.plan.shards
                records = [each for each in run.records if counted is None or each.shard in counted]
                found += [Gathered(machine, run, shards[each.shard], each) for each in records]
        found.sort(key=lambda each: each.shard.place)
        _check_whole(fleet, found)
        yield found


def shards_of(found: Sequence[Gathered]) -> list[Shard]:
    """Return the shards as the output has them: numbered in their order."""
    return [Shard(i, each.shard.splits) for i, each in enumerate(found)]


def worked(fleet: Fleet, found: Sequence[Gathered]) -> MachinesWorked:
    """Return what each machine has done of it, those that did most first."""
    by_machine = dict[str, list[Gathered]]()
    for each in found:
        by_machine.setdefault(each.machine, []).append(each)
    made = [
        MachineWork(
            machine,
            _host_of(theirs[0].run),
            len(theirs),
            ledger.read,
            ledger.written,
            ledger.rejected,
            round(fleet.board.ended[machine].pace.seconds, 3),
        )
        for machine, theirs in by_machine.items()
        for ledger in [sum((each.record.ledger for each in theirs), Ledger())]
    ]
    return MachinesWorked(tuple(sorted(made, key=lambda each: -each.rows)))


def _host_of(run: SavedRun) -> str:
    """Return the host of a machine, from the first line of its record; "" if that says nothing."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = safe_files.content(run.folder / EVENTS).split(b"\n")
        return str(msgspec.json.decode(lines[0], type=dict[str, Any]).get("host", ""))
    return ""


def check_errors(fleet: Fleet, found: Sequence[Gathered]) -> None:
    """Raise ``TooManyErrors`` if more rows have failed on all machines than may; nothing is published then."""
    records = [each.record for each in found]
    ledger = sum((record.ledger for record in records), Ledger())
    ErrorBudget(fleet.max_errors, ledger, sum((record.faults for record in records), Faults())).check()


def adopt(job: Job, found: Sequence[Gathered]) -> None:
    """Commit what machines have made, as far as the output does not have it."""
    committer, digits = job.committer, job.committer.plan.digits()
    schemas = (each.run.state.schema for each in found if each.run.state.schema is not None)
    schema = next(schemas, None)  # none, if no machine has written a row
    if committer.state.schema is None and schema is not None:
        committer.settle(schema)
    for i, each in enumerate(found):
        if committer.state.done[i]:
            continue
        label = Shard(i, ()).label(digits)
        place, run = job.output.place, committer.plan.run
        files = tuple(
            place.adopted(run, each.machine, file, _LABEL.sub(label, file.name)) for file in each.record.files
        )
        _copy_states(job, each)
        committer.accept(msgspec.structs.replace(each.record, shard=i, files=files))
    committer.commit_accepted()


def _copy_states(job: Job, each: Gathered) -> None:
    """Bring big states of metrics, which are named by what is in them."""
    folder = job.committer.folder / STATES
    for name in side_files(each.record):
        if not (folder / name).exists():
            safe_files.make_folder(folder, 0o700)
            safe_files.write(folder / name, safe_files.content(each.run.folder / STATES / name))


def _check_whole(fleet: Fleet, found: Sequence[Gathered]) -> None:
    """Compare what was committed with what was planned, row by row of the input."""
    made = {number: list(shards) for number, shards in groupby(found, key=lambda each: each.shard.place[0])}
    for shard in fleet.fleet.plan.shards:
        theirs = made.pop(shard.index, [])
        whole = list(_windows(split for each in theirs for split in each.shard.splits))
        if whole != list(_windows(shard.splits)):
            who = [f"{each.machine} has {each.shard.name or each.shard.index}" for each in theirs]
            raise LedgerMismatch(
                mismatch(
                    f"part {shard.index} of the input is not done once by one machine: "
                    f"{', '.join(who) or 'none has it'}; {fleet.board.told(shard.index)}"
                )
            )
    if made:
        raise LedgerMismatch(mismatch(f"part {min(made)} of the input was not planned"))
    _check_limits(fleet, sum((each.record.ledger for each in found), Ledger()))


def _check_limits(fleet: Fleet, ledger: Ledger) -> None:
    """Raise ``PlanError`` if rows before a limit have failed: no machine has made those that take their place."""
    rows = sum(shard.rows for shard in fleet.fleet.plan.shards)
    for step, (came, passed) in zip(fleet.plan.steps, ledger.steps, strict=False):
        if step.row_limit is not None and min(came, passed) < min(rows, step.row_limit):
            raise PlanError(
                f"{rows - came:,} rows have failed before {step.label()}, and further rows would take their place, "
                f"which no machine has made. Nothing was published. {ROWS_FIRST}."
            )


def _windows(splits: Iterable[Split]) -> Iterator[Split]:
    """Yield splits in whose place neighbouring windows of one are again what they were cut from.

    >>> whole = Split(0, 0, 1, 9)
    >>> list(_windows([Split(0, 0, 1, 9, high=4), Split(0, 0, 1, 9, low=4)])) == [whole]
    True
    """
    last: Split | None = None
    for split in splits:
        if split.length == 0:
            continue
        ends = split.high < 0 or 0 <= split.rows <= split.high
        split = msgspec.structs.replace(split, high=-1) if ends else split
        if last is not None and last.high == split.low > 0 and _source(last) == _source(split):
            last = msgspec.structs.replace(last, high=split.high)
            continue
        if last is not None:
            yield last
        last = split
    if last is not None:
        yield last


def _source(split: Split) -> tuple[int, int, int]:
    return split.file, split.start, split.stop
