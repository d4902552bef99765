"""What the machines of a fleet have made becomes one output: their shards in order, none missing, none twice."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

import msgspec

from headrace.annex.fleet.machine import Fleet
from headrace.core.files import safe_files
from headrace.core.metric_states import STATES, side_files
from headrace.core.work import CommitRecord, Shard, Split
from headrace.errors import LedgerMismatch
from headrace.output.job import Job
from headrace.output.places.place import looked_at
from headrace.output.runs import SavedRun, current_run
from headrace.plan.accounts import mismatch

_LABEL = re.compile(r"(?<=part-)\d+(?:\.\d+)*")


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
        _check_whole(fleet.fleet.plan.shards, [each.shard for each in found])
        yield found


def shards_of(found: Sequence[Gathered]) -> list[Shard]:
    """Return the shards as the output has them: numbered in their order."""
    return [Shard(i, each.shard.splits) for i, each in enumerate(found)]


def adopt(job: Job, found: Sequence[Gathered]) -> None:
    """Commit what machines have made, as far as the output does not have it."""
    committer, digits = job.committer, job.committer.plan.digits()
    if committer.state.schema is None and found:
        committer.settle(next(each.run.state.schema for each in found if each.run.state.schema is not None))
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


def _check_whole(planned: Sequence[Shard], found: Sequence[Shard]) -> None:
    """Compare what was committed with what was planned, row by row of the input."""
    made = {
        number: list(_windows(split for shard in shards for split in shard.splits))
        for number, shards in groupby(found, key=lambda shard: shard.place[0])
    }
    for shard in planned:
        if list(_windows(shard.splits)) != made.pop(shard.index, []):
            raise LedgerMismatch(mismatch(f"part {shard.index} of the input is not done once by one machine"))
    if made:
        raise LedgerMismatch(mismatch(f"part {min(made)} of the input was not planned"))


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
