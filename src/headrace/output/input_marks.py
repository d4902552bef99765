"""Input files that have the size and the time that they were planned with: whether they are what they were, too.

A file may be written to, or replaced, and get its old time again. The time at which the system last changed anything
about it (``ctime``) cannot be set, and another file has another inode; but both change when a file is copied back,
moved to another disk or touched. So the plan has a mark of each file: both numbers, and a digest.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.core.files.input_files import UNMARKED, Mark, is_same_content, mark_of
from headrace.core.human import plural
from headrace.core.ports import Source
from headrace.core.warn import warn
from headrace.output.commit import ShardCommitter
from headrace.output.input_changes import InputFile, files_to_read
from headrace.plan.physical import SavedPlan

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
