"""What a driver finds that takes up a run: done where its files are, redone where they are not."""

from __future__ import annotations

from collections.abc import Iterable

from millrace.core import failpoints, regular
from millrace.core.ports import Sink
from millrace.core.work import CommitRecord, Durability
from millrace.plan.physical import SavedPlan
from millrace.run import journal as journals
from millrace.run.commit import ShardCommitter, State, bound, divided, grown, read_plan
from millrace.run.counting import are_there, side_files, sweep
from millrace.run.journal import (
    Contents,
    Divided,
    Finished,
    Grown,
    Journal,
    Lowered,
    Opened,
    Record,
    Revision,
    Revoked,
    Settled,
    Swapping,
)
from millrace.run.names import checked
from millrace.run.output import TEMPORARY, OutputFolder, remove_any
from millrace.version import __version__


def peek(output: OutputFolder, run: str) -> tuple[SavedPlan, State, Contents]:
    """Read a run's plan and what its journal says, except for its commits; change nothing."""
    plan = read_plan(output, run)
    contents = journals.read(output.folder(run) / "journal")
    return *replayed(plan, contents.notes()), contents


def recover(
    output: OutputFolder, run: str, sink: Sink, *, durability: Durability, hidden: bool
) -> ShardCommitter:
    """Take a run up again: committed shards whose files are gone are revoked, unlisted files are dropped."""
    output.check_folders(run)
    plan = read_plan(output, run)
    folder = output.folder(run)
    journal, contents = Journal.open(folder / "journal", durability)
    try:
        failpoints.hit("recover.opened")
        opened = [record for record in contents.notes() if isinstance(record, Opened)]
        if not opened:
            journal.append(
                Opened(run, __version__)
            )  # the tail was torn before the first record: start the list anew
            journal.append(Revision(0, plan.code))
            journal.sync()
        plan, state = replayed(plan, contents.notes())
        sink = bound(sink, output, plan, durability)
        committer = ShardCommitter(output, plan, sink, journal, state, hidden=hidden, empty=True)
        lost, staged, published, states = _take_stock(committer, checked(contents.in_force(), run, folder))
        if lost:
            committer.revoke(lost)
        failpoints.hit("recover.revoked")
        state.finished = state.finished and output.is_marked(run)
        if not state.finished:
            output.make(run)
            if opened and opened[-1].millrace != __version__:
                journal.append(Opened(run, __version__))
        _drop_unlisted(committer, staged, published, states)
        failpoints.hit("recover.swept")
    except BaseException:
        journal.close()
        raise
    return committer


def replayed(plan: SavedPlan, notes: Iterable[Record]) -> tuple[SavedPlan, State]:
    """Read everything but the commits, which are counted in one by one when their files are looked at."""
    state = State(bytearray(), code=plan.code, codes={0: plan.code})
    for record in notes:
        if isinstance(record, Settled):
            state.schema = record.schema
        elif isinstance(record, Lowered):
            state.ceilings[record.step] = record.rows
        elif isinstance(record, Revision):
            state.revision, state.code = record.number, record.code
            state.codes[record.number] = record.code
        elif isinstance(record, Finished):
            state.finished = True
            state.seconds += record.seconds
        elif isinstance(record, Revoked):
            state.finished, state.swapping = False, None
        elif isinstance(record, Swapping):
            state.swapping = record
        elif isinstance(record, Divided):
            plan = divided(plan, record)
            state.tight = state.tight or not record.early
        elif isinstance(record, Grown):
            plan = grown(plan, record)
            state.finished, state.swapping = False, None
    state.done.extend(bytes(len(plan.shards)))
    return plan, state


def _take_stock(
    committer: ShardCommitter, records: Iterable[CommitRecord]
) -> tuple[list[CommitRecord], set[str], set[str], set[str]]:
    """Count in what is there, and publish it; return the lost records, and all names that are listed:
    of staged files, published ones, and states of metrics."""
    sink, hidden = committer.sink, committer.hidden
    lost: list[CommitRecord] = []
    staged: set[str] = set()
    published: set[str] = set()
    states: set[str] = set()
    for record in records:
        places = [sink.state(file) for file in record.files]
        if "missing" in places or not are_there(record, committer.folder):
            lost.append(record)
            continue
        states |= side_files(record)
        committer.state.add(record)
        committer.empty = False
        for file, place in zip(record.files, places, strict=True):
            if place == "staged" and not hidden:
                sink.publish(file)
            if place == "staged" and hidden:
                staged.add(file.staged)
            else:
                published.add(file.name)
    return lost, staged, published, states


def _drop_unlisted(
    committer: ShardCommitter, staged: set[str], published: set[str], states: set[str]
) -> None:
    """Remove files of this run that no record names: their attempt was never committed."""
    output, folder = committer.output, committer.folder
    staging = folder / "staging"
    if regular.is_folder(staging):
        for path in staging.iterdir():
            if path.name not in staged:
                remove_any(path)
    sweep(folder, states)
    for path in folder.glob(f"*{TEMPORARY}"):
        remove_any(path)
    if not committer.state.finished and not committer.hidden:
        output.remove_success()
    output.remove_parts(committer.plan.run, but=published)
