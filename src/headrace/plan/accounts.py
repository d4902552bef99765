"""Whether all rows are accounted for: what was counted in one place, compared with what was counted in another. Pure.

Rows are counted by whoever has them: the source says how many a shard holds, each step counts those that enter and
those that leave it, what takes rows away or adds some counts these by itself, and the writer counts what it wrote.
Nothing is a remainder, with one exception: once a limit needs no more rows, those that were on their way to it are
counted as unused. So rows that get lost, or come twice, show before their shard is committed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from headrace.core.work import CommitRecord, Done, ErrorReport, Ledger, Shard, StagedFile
from headrace.plan.steps.base import Step, innermost, is_of_headrace


def cut_short(ledger: Ledger, last: int) -> Ledger:
    """Count the rows that had entered a step up to number ``last``, or were on their way to it, as unused.

    >>> cut_short(Ledger(100, 5, 0, ((100, 60), (60, 5)), (0, 0), 0, (0, 55), (0, 0), (0, 0)), 1).unused
    (40, 0)
    """
    if last < 0:
        return ledger
    unused = list(ledger.unused)
    for i, (arrived, left) in enumerate(_balances(ledger)):
        if i <= last:
            unused[i] = max(0, arrived - left + unused[i])
    return msgspec.structs.replace(ledger, unused=tuple(unused))


def unreadable(ledger: Ledger) -> int:
    """Return how many rows the source could not make sense of."""
    return ledger.rejected - sum(ledger.rejects)


def _balances(ledger: Ledger) -> Iterator[tuple[int, int]]:
    """Yield, for each step, the rows that came or were added, and those that went on or stayed."""
    arrived = ledger.read - unreadable(ledger)
    for (_, given), aside, dropped, added, unused, past in zip(
        ledger.steps, ledger.rejects, ledger.dropped, ledger.added, ledger.unused, _past(ledger), strict=True
    ):
        yield arrived + added, given + past + aside + dropped + unused
        arrived = given + past


def _past(ledger: Ledger) -> tuple[int, ...]:
    return ledger.past or (0,) * len(ledger.steps)


def is_counted(ledger: Ledger) -> bool:
    """Say whether all fates were counted: earlier versions did not."""
    return len(ledger.dropped) == len(ledger.steps)


def wrong_in(ledger: Ledger, steps: Sequence[str]) -> str:
    """Say which rows of a ledger are not accounted for; an empty string if all are. ``steps`` are labels.

    >>> wrong_in(Ledger(9, 6, 0, ((9, 6),), (0,), 0, (0,), (0,), (0,)), ["map(f)"])
    '9 rows came to map(f) and 6 left it, 0 were rejected, 0 dropped, 0 added'
    >>> wrong_in(Ledger(9, 9, 0, ((11, 9),), (2,), 0, (0,), (0,), (0,)), ["map(f)"])
    '2 rows were rejected by steps, and 0 in all'
    """
    return _wrong_step(ledger, steps)[0]


def _wrong_step(ledger: Ledger, steps: Sequence[str], bare: Sequence[bool] = ()) -> tuple[str, int | None]:
    """Return what ``wrong_in`` says, and the number of the step that did not count its rows, if it was a step.

    ``bare``: which steps give one row for each that they get, by what they are.
    """
    if unreadable(ledger) < 0:
        return f"{sum(ledger.rejects):,} rows were rejected by steps, and {ledger.rejected:,} in all", None
    before, came = "the source", ledger.read - unreadable(ledger)
    for i, (label, (taken, given), past) in enumerate(zip(steps, ledger.steps, _past(ledger), strict=False)):
        came -= past
        aside, dropped, added, unused = (
            each[i] for each in (ledger.rejects, ledger.dropped, ledger.added, ledger.unused)
        )
        if taken > came or (taken < came and not unused):
            return f"{came:,} rows left {before} and {taken:,} came to {label}", None
        if came + added != given + aside + dropped + unused or min(aside, dropped, added, unused, past) < 0:
            late = f", {unused:,} not needed any more" if unused else ""
            return (
                f"{taken:,} rows came to {label} and {given:,} left it, {aside:,} were rejected, "
                f"{dropped:,} dropped, {added:,} added{late}"
            ), i
        if bare and bare[i] and (dropped or added):
            return f"{label} keeps every row, and dropped {dropped:,} and added {added:,}", i
        before, came = label, given + past
    if came != ledger.written:
        return f"{came:,} rows left {before} and {ledger.written:,} came to the writer", None
    return "", None


def wrong_in_files(ledger: Ledger, files: Sequence[StagedFile]) -> str:
    """Say whether the rows that writers wrote are others than those that came to them."""
    parts = sum(file.rows for file in files if file.is_part)
    if parts != ledger.written:
        return f"{ledger.written:,} rows came to the writer and its files have {parts:,}"
    aside = sum(file.rows for file in files if not file.is_part)
    if aside != ledger.rejected:
        return f"{ledger.rejected:,} rows were rejected and the files of rejected rows have {aside:,}"
    return ""


def wrong_in_record(record: CommitRecord, steps: Sequence[str]) -> str:
    """Say whether a commit record contradicts itself."""
    wrong = wrong_in(record.ledger, steps) if is_counted(record.ledger) else ""
    return wrong or wrong_in_files(record.ledger, record.files)


def mismatch(wrong: str) -> str:
    """Return the message for rows that are not accounted for."""
    return (
        f"Rows are not accounted for: {wrong}. This is a bug in Headrace: please report it. Work that was finished "
        "before is kept, and is right."
    )


def uncounted(wrong: str, kind: type[Step]) -> str:
    """Return the message for rows of which a step that is not of Headrace does not say what became of them."""
    return (
        f"Rows are not accounted for: {wrong}. {kind.__name__} must count the rows that it drops with "
        "context.count_dropped(rows), and the rows that it adds with context.count_added(rows). If it does either, "
        "it must not set one_to_one = True. Work that was finished before is kept, and is right."
    )


class Accounts:
    """Checks every attempt that is done, before it is committed.

    ``writes``: its rows go to files, rather than to a reader.
    """

    def __init__(self, steps: Sequence[Step], *, writes: bool) -> None:
        self._steps = steps
        self._labels = [step.label() for step in steps]
        self._bare = [step.one_to_one for step in steps]
        self._limited = any(step.row_limit is not None for step in steps)
        self._writes = writes

    def check(self, shard: Shard, done: Done) -> ErrorReport | None:
        """Return what ends the run, if rows are missing or too many."""
        wrong, number = self._wrong(shard, done)
        if not wrong:
            return None
        wrong = f"in part {shard.label()} of the input, {wrong}"
        if number is None or is_of_headrace(kind := type(innermost(self._steps[number]))):
            return ErrorReport("LedgerMismatch", mismatch(wrong))
        return ErrorReport("LedgerMismatch", uncounted(wrong, kind))

    def _wrong(self, shard: Shard, done: Done) -> tuple[str, int | None]:
        ledger = done.ledger
        counted = shard.rows >= 0 and all(split.rows >= 0 for split in shard.splits)
        if ledger.read > shard.rows >= 0 or (counted and ledger.read < shard.rows and not self._limited):
            return f"the source has {shard.rows:,} rows and {ledger.read:,} were read", None
        failed = ledger.rejected + ledger.nulled
        if done.faults.total != failed:
            return f"{failed:,} rows failed, and {done.faults.total:,} errors are known", None
        wrong, step = _wrong_step(ledger, self._labels, self._bare)
        return wrong or (wrong_in_files(ledger, done.files) if self._writes else ""), step
