"""Beginning a run, and resuming one, whose rows may be in a table that others have changed meanwhile.

Shards whose files are there are done; those whose files are gone are revoked and run again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from headrace.core import failpoints
from headrace.core.files import safe_files
from headrace.core.human import sentence
from headrace.core.metric_states import STATES, are_there, side_files
from headrace.core.target_ports import Sink
from headrace.core.terminal import warn
from headrace.core.work import CommitRecord, Durability, StagedFile
from headrace.errors import OutputWriteFailed, SinkError
from headrace.output import journal as journals
from headrace.output.commit import LAKES, ShardCommitter, bind_sink, has_all_or_none, moment_of, parts_of
from headrace.output.journal import Contents
from headrace.output.journal_state import JournalState, Opened, Record, Revision, RunEntry
from headrace.output.layout import Output, write_plan
from headrace.output.names import check_names, is_of
from headrace.output.publishing import remove_any, remove_unlisted, sync_folder
from headrace.plan.physical import SavedPlan
from headrace.version import __version__

# ------------------------------------------------------------ what is in a table


def check_in_table(committer: ShardCommitter, *, incremental: bool) -> None:
    """Look whether the table has the rows of a run that has finished: refuse if it has none, warn if not all.

    ``incremental``: only a table that is gone, or is another one, is refused. Runs that follow one another go on
    where others take out rows that they do not need any more.
    """
    table = committer.sink.target
    if table is None or not has_all_or_none(table):
        return
    parts = parts_of(committer.of_last_run(), committer.state.runs[-1].name(committer.plan.run))
    found = table.rows_lost(
        parts, [file for file in parts if committer.revealing.publisher.state(file) == "missing"]
    )
    if found is None or (incremental and found.left != "no table"):
        return
    if found.left in ("none", "no table"):
        raise SinkError(
            f"{sentence(found.why)}. Nothing was touched: restore the table to get these rows back, or write with "
            "another output= to add all rows of this run again."
        )
    warn(
        f"{sentence(found.why)}. The run in {committer.output} had finished before, and does not add them again. If "
        "rows are missing: restore the table, or write with another output= to add all rows of this run again."
    )


def check_inserted(
    sink: Sink, output: Output, records: Iterable[CommitRecord], *, finished: bool, go_on: bool
) -> bool:
    """Look whether the table of a database has the rows that drivers of a run have inserted, one part after another.

    Refuse if it has none of them, warn if not all. ``go_on``, as the user asked: a table that is gone is made anew
    from the parts that the output keeps, and one that is there is taken as it is. Return False if the run must be
    finished once more for that.
    """
    table = sink.target
    if table is None or not table.by_part:
        return True
    parts = parts_of(records)
    inserted = parts if finished else table.has_parts(parts)
    found = table.rows_lost(inserted, ())
    if found is not None and found.left == "no table" and go_on:
        warn(
            f"{sentence(found.why)}. The rows that {output} keeps are inserted again, into a table that is made anew."
        )
        return table.insert_again(inserted)
    if found is not None and found.left in ("none", "no table") and not go_on:
        what = (
            f"makes it anew, inserts again the rows that {output} keeps,"
            if found.left == "no table"
            else "leaves these rows out"
        )
        raise SinkError(
            f"{sentence(found.why)}. Nothing was touched: on_change='continue' {what} and goes on; another output= "
            "makes all rows again, and inserts them."
        )
    table.mend_records(parts, finished=finished)
    if found is not None:
        now = "had finished before, and does not add them again" if finished else "goes on without them"
        warn(
            f"{sentence(found.why)}. The run in {output} {now}. If rows are missing: write with another output= to "
            "insert all rows of this run again."
        )
    return True


def peek(output: Output, run: str, plan: SavedPlan) -> tuple[SavedPlan, JournalState, Contents]:
    """Read a run's journal except for the commits, and its plan as that has changed it; change nothing."""
    contents = journals.read(output.folder(run) / "journal")
    return *replay(plan, contents.notes()), contents


def begin(
    output: Output, plan: SavedPlan, sink: Sink, *, durability: Durability, pointer: str
) -> ShardCommitter:
    """Start a new run: its plan and an empty journal are on disk before the first attempt."""
    journal = None
    try:
        folder = output.make(plan.run)
        write_plan(output, plan, named=False)
        journal = output.place.create_journal(plan.run, durability)
        journal.append(Opened(plan.run, plan.headrace))
        journal.append(Revision(0, plan.code))
        journal.sync()
        sync_folder(folder)
        sync_folder(output.home)  # the run is durable before a pointer names it
        output.point(pointer, plan.run)
        if durability == "power":
            output.place.sync_made()
        failpoints.hit("run.opened")
    except BaseException:
        if journal is not None:
            journal.close()
        with contextlib.suppress(OSError, OutputWriteFailed):  # the first error is the one to report
            output.forget(plan.run)
        raise
    plan, state = replay(plan, ())
    sink = bind_sink(sink, output, plan, durability)
    moment = moment_of(sink, aside=pointer == "next")
    return ShardCommitter(output, plan, sink, journal, state, moment=moment)


def recover(
    output: Output,
    run: str,
    plan: SavedPlan,
    sink: Sink,
    *,
    durability: Durability,
    hidden: bool,
    go_on: bool = False,
    seen: Contents | None = None,
) -> ShardCommitter:
    """Resume a run: committed shards whose files are gone are revoked, files that no record names are removed.

    ``plan``: as it was saved. ``go_on``: also where the table of a database has none of the rows any more. ``seen``:
    the journal, as whoever holds the output has read it before.
    """
    output.check_folders(run)
    folder = output.folder(run)
    journal, contents = output.place.open_journal(run, durability)
    contents = seen if seen is not None and len(seen) == len(contents) else contents
    try:
        failpoints.hit("recover.opened")
        opened = [record for record in contents.notes() if isinstance(record, Opened)]
        if not opened:
            # Torn before the first record was written: begin the journal again.
            journal.append(Opened(run, __version__))
            journal.append(Revision(0, plan.code))
            journal.sync()
        plan, state = replay(plan, contents.notes())
        sink = bind_sink(sink, output, plan, durability, state.runs)
        if sink.target is not None and not state.finished:
            sink.target.check_same(plan.table, needed=len(state.runs) > 1 and state.schema is not None)
        ended = state.finished and output.is_marked(run)
        known = check_names(contents.in_force(), run, folder)
        if not check_inserted(sink, output, known, finished=ended, go_on=go_on):
            output.remove_success()
        moment = moment_of(sink, aside=hidden or state.hidden)
        committer = ShardCommitter(output, plan, sink, journal, state, moment=moment)
        lost, staged, published, states = _check_files(
            committer, check_names(contents.in_force(), run, folder)
        )
        committer.revealing.publisher.settle()
        for record in committer.revoke(lost) if lost else ():
            state.add(record)
            states.update(side_files(record))
            published |= {file.name for file in record.files}
        failpoints.hit("recover.revoked")
        state.finished = state.finished and output.is_marked(run)
        if not state.finished:
            output.make(run)
            if opened and opened[-1].headrace != __version__:
                journal.append(Opened(run, __version__))
        if state.hidden and state.replaced and contents.taking_over:
            output.remove_success()  # parts that it speaks of are about to go
        _drop_unlisted(committer, staged, published, states)
        failpoints.hit("recover.swept")
    except BaseException:
        journal.close()
        raise
    return committer


def replay(plan: SavedPlan, notes: Iterable[Record]) -> tuple[SavedPlan, JournalState]:
    """Read everything but the commits, which are added one by one when their files are checked."""
    state = JournalState(bytearray(len(plan.shards)), code=plan.code, codes={0: plan.code})
    state.runs = [RunEntry(1, 0, plan.created, 0)]
    if plan.input is not None:
        state.reach(plan.input)
    for record in notes:
        plan = state.take(record, plan)
    state.runs[0].files = len(plan.files) - sum(run.files for run in state.runs[1:])
    for shard in state.replaced:
        state.done[shard] = 1
    return plan, state


def _check_files(
    committer: ShardCommitter, records: Iterable[CommitRecord]
) -> tuple[list[CommitRecord], set[str], set[str], set[str]]:
    """Add the records whose files are there, and reveal them; return the lost records, and the names of all staged
    files, published files and metric states that records name."""
    publisher, target = committer.revealing.publisher, committer.sink.target
    lost: list[CommitRecord] = []
    gone: list[tuple[CommitRecord, list[StagedFile]]] = []
    staged: set[str] = set()
    published: set[str] = set()
    states: set[str] = set()
    kind = committer.plan.sink.get("kind")
    last = committer.state.runs[-1].name(committer.plan.run)
    name = last if has_all_or_none(target) or kind in LAKES else ""  # whose files have to be there

    def keep(record: CommitRecord) -> None:
        if record.states:
            states.update(side_files(record))
        committer.state.add(record)
        committer.empty = False

    for record in records:
        places = [(file, publisher.state(file)) for file in record.files]
        missing = [file for file, place in places if place == "missing"]
        needed = [file for file in missing if is_of(file.name, name) or not name]
        if not are_there(record, committer.folder) or (needed and target is None):
            lost.append(record)
            continue
        if needed:
            gone.append((record, needed))
            continue
        keep(record)
        hidden = committer.revealing.aside
        if any(place == "staged" for _, place in places):
            committer.revealing.reveal([record])
        for file, place in places:
            if place == "staged" and hidden:
                staged.add(file.staged)
            else:
                published.add(file.name)
    if gone:  # parts of a table may be compacted
        assert target is not None
        in_table = set(target.has_parts([file for _, missing in gone for file in missing]))
        for record, missing in gone:
            if in_table.issuperset(missing):
                keep(record)
                published |= {file.name for file in record.files}
            else:
                lost.append(record)
    return lost, staged, published, states


def _drop_unlisted(
    committer: ShardCommitter, staged: set[str], published: set[str], states: set[str]
) -> None:
    """Remove files of this run that no record names: their attempt was never committed."""
    output, folder = committer.output, committer.folder
    remove_unlisted(folder / "staging", staged)
    remove_unlisted(folder / STATES, states)
    for path in folder.glob(f"*{safe_files.TEMPORARY}"):
        remove_any(path)
    if not committer.state.finished and not committer.revealing.aside:
        output.remove_success()
    output.sweep_parts(committer.plan.run, published, finished=committer.state.finished)
