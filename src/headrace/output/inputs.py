"""What runs have read: files, and inputs that have versions, such as tables; and what is new since.

The first version that an output was made of stands in its saved plan, later ones in records of its journal
(``Reached``), each written with the record of what was new in it, and behind that: if only the first of the two was
saved, the same files are found again, and are known by their names.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from headrace.core.files.input_files import UNMARKED, Mark, is_same_content, mark_of
from headrace.core.human import plural
from headrace.core.source_ports import Source
from headrace.core.table_changes import HELD, Seen
from headrace.core.terminal import warn
from headrace.core.work import Shard
from headrace.errors import ArgumentError, InputChanged, PlanChanged
from headrace.output.commit import ShardCommitter
from headrace.output.journal_state import Reached
from headrace.output.seen_keys import key_step
from headrace.plan.logical import Plan
from headrace.plan.partitioning import Partitioning
from headrace.plan.physical import InputVersion, SavedPlan

InputFile: TypeAlias = tuple[str, int, int]


def version_of(source: Source) -> InputVersion | None:
    """Return what a source reads, if it has versions."""
    position = source.position()
    if not position:
        return None
    return InputVersion(position, {f.name: str(f.type) for f in source.schema()}, dict(source.forms()))


def for_further_runs(plan: Plan) -> Plan:
    """Return the plan with its source as runs of one output read it; refuse an output that would feed itself."""
    source = plan.source.for_further_runs(keyed=key_step(plan) is not None)
    if source is plan.source:
        return plan
    described, sink = source.describe(), plan.sink
    table = described.get("table")
    if table is not None and sink is not None and sink.target is not None and sink.target.place == table:
        raise ArgumentError(
            f"incremental=True from the table {table} into itself: each run would read what the run before it "
            "has added, and it would never end. Write to another table."
        )
    return replace(plan, source=source)


def since(
    plan: Plan,
    committer: ShardCommitter,
    to_read: Collection[int],
    partitioning: Partitioning | None,
    *,
    incremental: bool,
    refresh: bool,
) -> Plan:
    """Return the plan with a source that lists what was taken in and, if ``incremental``, what is new.

    ``partitioning``: how the last run is planned anew if what it reads is there no more as it was.
    """
    state = committer.state
    if not state.versions:
        if plan.source.position():
            raise PlanChanged(
                f"The output {committer.output} does not say which version of the table its rows are from. Make it "
                "again with mode='overwrite', or write to another output."
            )
        return plan
    last, files = state.versions[-1], committer.plan.files
    keyed = key_step(plan) is not None
    anew = plan.source.one_state and {*to_read} == {len(files) - 1} and not state.runs[-1].ended
    waits = incremental and keyed and not state.finished and not anew  # keys of one run are not compared
    is_further = place_of(InputVersion(plan.source.position())) != place_of(last)
    if is_further and (waits or not incremental):
        committer.left_out = (f"what is new in {_name_of(plan.source)}",)
    if committer.left_out and not waits:
        warn(
            f"{_name_of(plan.source)} has a newer version than the one that {committer.output} was made from, and "
            "the new rows are left out: incremental=True adds them."
        )
    seen = Seen(
        files,
        [version.position for version in state.versions],
        frozenset(range(len(files))) if refresh else frozenset(to_read),
        last.forms,
        keyed,
        refresh,
        incremental and not waits,
    )
    source = plan.source.since(seen)
    changed = source.one_state and source.files() != files
    if len(source.files()) > len(files) or changed:
        _check_columns(last, source, committer)
    if changed and anew and incremental and partitioning is not None:
        _plan_anew(committer, source, partitioning)
    return replace(plan, source=source)


def _plan_anew(committer: ShardCommitter, source: Source, partitioning: Partitioning) -> None:
    """Plan the last run anew, of whose rows no reader knows yet: its shards read what is not there any more."""
    state, plan = committer.state, committer.plan
    first, last = state.runs[-1].shard, len(plan.files) - 1
    ready = list(committer.of_last_run())
    if ready:
        warn(
            f"{_name_of(source)} has other rows now than when run {len(state.runs)} of {committer.output} began, and "
            f"that run was not complete: {plural(len(ready), 'part')} of it will be made again."
        )
        committer.revoke_unread(ready)
    made = partitioning.shards_of(source.splits_from(last) or ())
    shards = [
        Shard(first + number, made[number].splits if number < len(made) else ())
        for number in range(max(len(made), len(plan.shards) - first))  # never fewer than the journal knows of
    ]
    shards = [*plan.shards[:first], *shards]
    committer.save_plan(files=[*plan.files[:last], source.files()[last]], shards=shards)
    state.done.extend(bytes(len(shards) - len(state.done)))


def _name_of(source: Source) -> str:
    described = source.describe()
    return str(described.get("table") or described.get("path") or "the input")


def place_of(version: InputVersion) -> dict[str, Any]:
    """Return up to where an input was read, without where some of its files are looked up."""
    return {name: value for name, value in version.position.items() if name != HELD}


def _check_columns(last: InputVersion, source: Source, committer: ShardCommitter) -> None:
    """Refuse new rows with other columns than those that were read before."""
    now = {field.name: str(field.type) for field in source.schema()}
    if [*now.items()] == [*last.columns.items()]:
        return
    added = [f"{name!r} ({kind}) came" for name, kind in now.items() if name not in last.columns]
    gone = [f"{name!r} is gone" for name in last.columns if name not in now]
    others = [
        f"{name!r} was {last.columns[name]}, and is {kind}"
        for name, kind in now.items()
        if last.columns.get(name, kind) != kind
    ]
    what = [*added, *gone, *others] or ["their order is another one"]
    raise InputChanged(
        f"The input has other columns than when the runs in {committer.output} read it: {', '.join(what[:3])}"
        f"{', …' if len(what) > 3 else ''}. Nothing was touched: name the columns that are to be read (columns=), if "
        "that is what the output was begun with; else write to another output, or make this one again with "
        "mode='overwrite' and without incremental."
    )


def further_version(committer: ShardCommitter, source: Source) -> InputVersion | None:
    """Return up to where a source reads its input; None if that is no further, or something is left out."""
    versions = committer.state.versions
    now = version_of(source) if versions and not committer.left_out else None
    if now is None or place_of(now) == place_of(versions[-1]):
        return None
    return InputVersion(now.position, now.columns, {**versions[-1].forms, **now.forms})


def reach(committer: ShardCommitter, plan: Plan) -> None:
    """Record up to where the input was read, if nothing of it was new, so that no older history is needed."""
    now = further_version(committer, plan.source)
    if now is not None and not plan.source.splits_from(len(committer.plan.files)):
        committer.note(Reached(now))


# ------------------------------------------------------------ files


def files_to_read(source: Source, committer: ShardCommitter) -> set[int]:
    """Return the numbers of the files that shards which are still to do read."""
    done = () if committer.state.finished else committer.plan.shards
    return files_in(source, (shard for shard in done if not committer.state.done[shard.index]))


def files_in(source: Source, shards: Iterable[Shard]) -> set[int]:
    """Return the numbers of the files that some shards read."""
    return {file for shard in shards for split in shard.splits for file in source.files_of(split)}


# Input files that have the size and the time that they were planned with: whether they are what they were, too. A
# file may be written to, or replaced, and get its old time again. The time at which the system last changed anything
# about it (``ctime``) cannot be set, and another file has another inode; but both change when a file is copied back,
# moved to another disk or touched. So the plan has a mark of each file: both numbers, and a digest.

MOST_DIGESTS = 256
"""Of so many files digests are taken when they are planned: that takes some ten milliseconds."""

_NO_TIME = -1


def marks_of(files: Sequence[InputFile]) -> list[Mark]:
    """Return the marks of files that were just listed."""
    digests = len(files) <= MOST_DIGESTS
    return [mark_of(*file, digests=digests) for file in files]


def as_they_are(saved: SavedPlan, files: Sequence[InputFile], *, warns: bool = False) -> list[InputFile]:
    """Return files as they were listed now; one whose content is not that of the plan gets a time that none has.

    ``warns``: of files that were touched or copied, and of whose content no digest was taken.
    """
    if not any(
        mark.inode for mark in saved.marks
    ):  # of objects there may be millions, and their versions say all
        return [*files]
    listed = {file[0]: i for i, file in enumerate(saved.files[: len(saved.marks)])}
    found: list[InputFile] = []
    unknown: list[str] = []
    for path, size, mtime_ns in files:
        i = listed.get(path)
        same: bool | None = True
        if i is not None and saved.files[i] == (path, size, mtime_ns):
            same = is_same_content(path, size, saved.marks[i])
        if same is None:
            unknown.append(path)
        found.append((path, size, _NO_TIME if same is False else mtime_ns))
    if unknown and warns:
        more = f", and so {plural(len(unknown) - 1, 'other file')}" if len(unknown) > 1 else ""
        warn(
            f"The input file {unknown[0]} was touched, copied or written again since it was planned{more}, with the "
            "same size and time of change. It is taken as unchanged. Contents are only compared where at most "
            f"{MOST_DIGESTS} files are planned at once."
        )
    return found


def mark(source: Source, committer: ShardCommitter, planned: SavedPlan, files: Sequence[InputFile]) -> None:
    """Save the marks of files that are new to the plan, or are others than they were ``planned``; see
    ``as_they_are`` for ``files``."""
    plan = committer.plan
    if plan is planned and (committer.state.finished or len(plan.marks) == len(plan.files)):
        return
    others = {file[0] for file in files if file[2] == _NO_TIME}
    again = files_to_read(source, committer) if others else set()
    marks = [*planned.marks, *[UNMARKED] * (len(plan.files) - len(planned.marks))][: len(plan.files)]
    before = planned.files[: len(planned.marks)]
    to_do = [
        i
        for i, file in enumerate(plan.files)
        if i >= len(before) or file != before[i] or (file[0] in others and i in again)
    ]
    for i, made in zip(to_do, marks_of([plan.files[i] for i in to_do]), strict=True):
        marks[i] = made
    committer.save_plan(marks=marks)


def note(source: Source, plan: SavedPlan) -> None:
    """Give a source the marks by which workers tell changed files."""
    if any(mark.digest for mark in plan.marks) and len(plan.marks) == len(source.files()):
        source.note_marks(plan.marks)
