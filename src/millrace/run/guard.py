"""The user's code at work: timed, and with an error that says where it failed."""

from __future__ import annotations

import itertools
import os
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from millrace.core.process import is_worker
from millrace.core.values import ConversionError
from millrace.core.work import Block, Fault, Faults, Ledger, Reject
from millrace.errors import BadInput, BadReturn, MillraceError, StepError
from millrace.plan.physical import Policy
from millrace.run.accounts import cut_short
from millrace.run.failures import is_interrupt, name_of, words
from millrace.run.memory import is_lasting
from millrace.run.preview import hidden, preview
from millrace.run.rows import Rows
from millrace.screen import say

if TYPE_CHECKING:
    from millrace.run.watching import Watch

Where = Callable[[Rows], str]

PAUSE = 0.5  # seconds before a call that failed is tried again, doubled each time
LONGEST = 30.0


class Meter:
    """Counts rows and seconds of one attempt.

    ``steps`` has, for each step, rows in, rows out, rows set aside, rows that it took away as it should, and rows
    that it gave beyond those that it got; ``cut`` is the last step that is a limit and needs no more rows.
    ``rejects`` are the rows that were set aside; with ``travels`` also those that failed and were kept, so that
    whoever takes the meter's rows can count them.
    """

    def __init__(self, steps: int, *, travels: bool = False) -> None:
        self.steps = [[0, 0, 0, 0, 0] for _ in range(steps)]
        self.cut = -1
        self.read_rows = 0
        self.behind: float | None = None  # of the source, for the rows of blocks that were read
        self.unread = 0  # rows that the source could not make sense of
        self.nulled = 0
        self.rejects: list[Reject] = []
        self.watch: Watch | None = None  # tells the driver of calls
        self._faults: dict[tuple[str, str], list[Any]] = {}
        self._travels = travels
        self.lead: Guard | None = None  # the first step with user code: where its rows are, the attempt is
        self.seconds = {"read": 0.0, "steps": 0.0, "write": 0.0, "wait": 0.0}
        self.tell: Callable[[], None] = lambda: None  # called now and then as the user's code gets on
        self.retried: Callable[[str, str], None] = lambda label, error: None
        self.shrunk: Callable[[str, int, int], None] = lambda label, before, now: None
        self.sized: Callable[[str, int, float], None] = lambda label, rows, per_second: None

    @property
    def done_rows(self) -> int:
        """How many rows of the source were read and went through the first step with user code."""
        done = self.read_rows if self.lead is None else self.lead.done
        return done if self.behind is None else int(self.behind * min(1.0, done / max(1, self.read_rows)))

    def read_block(self, block: Block, rows: int) -> None:
        """Count rows of a block as they are taken, and those of the source that became them."""
        self.read_rows += rows
        self.behind = (self.behind or 0.0) + block.read * rows / max(1, block.rows)

    def ledger(self, written: int = 0) -> Ledger:
        """Return where the rows went so far."""
        ins, outs, aside, dropped, added = zip(*self.steps, strict=True) if self.steps else [()] * 5
        ledger = Ledger(
            self.read_rows,
            written,
            self.unread + sum(aside),
            tuple(zip(ins, outs, strict=True)),
            aside,
            self.nulled,
            dropped,
            added,
            (0,) * len(self.steps),
        )
        return cut_short(ledger, self.cut)

    def faults(self, *, words: bool = True) -> Faults:
        """Return how often rows failed, by step and class of the error; ``words``: with those of one of each."""
        return Faults(
            tuple(
                (fault if words else Fault(fault.step, fault.kind, ""), count)
                for fault, count in self._faults.values()
            )
        )

    def take_in(self, rejects: Iterable[Reject]) -> None:
        """Remember rows that failed, be it in a stage before."""
        for reject in rejects:
            fault = reject.fault
            self._faults.setdefault((fault.step, fault.kind), [fault, 0])[1] += reject.count
            if self._travels or not reject.kept:
                self.rejects.append(reject)

    def drained(self) -> tuple[Reject, ...]:
        """Hand over the rejects that there are so far."""
        rejects, self.rejects = tuple(self.rejects), []
        return rejects

    @contextmanager
    def timing(self, what: str) -> Iterator[None]:
        """Add the time that the block takes to ``what``."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[what] += time.perf_counter() - start


class Guard:
    """Runs the user's code on some rows, takes the time, and says where it failed.

    ``label`` is what messages call the code, ``noun`` what it should give back; ``chosen`` is the argument that
    left columns out, if one did. ``step`` is the step's number in the meter.
    """

    def __init__(
        self,
        label: str,
        noun: str,
        where: Where,
        meter: Meter,
        chosen: str = "",
        *,
        step: int = 0,
        policy: Policy = Policy(),  # noqa: B008 - frozen
    ) -> None:
        self._label = label
        self._noun = noun
        self._chosen = chosen
        self._where = where
        self._meter = meter
        self._step = step
        self._policy = policy
        self.row: int | None = None
        self.done = 0
        if meter.lead is None:
            meter.lead = self

    @property
    def tolerant(self) -> bool:
        """True if rows that fail do not end the run."""
        return self._policy.on_error != "raise"

    @property
    def keeps(self) -> bool:
        """True if rows that fail go on, with a null in the place of a result."""
        return self._policy.on_error == "null"

    @contextmanager
    def over(self, rows: Rows, *, counted: bool = True) -> Iterator[None]:
        """Turn what the user's code raises into a ``StepError`` that names file, rows and step.

        Code that goes row by row keeps the number of the row at hand in ``row``, and
        counts in ``done`` itself what it does in several goes (``counted=False``).
        """
        self.row = None
        try:
            with self.timed(len(rows) if counted else 0):
                yield
        except BaseException as error:
            if is_interrupt(error) or (isinstance(error, StepError) and not isinstance(error, BadInput)):
                raise
            at = self.row
            raise self.told(error, rows if at is None else rows.cut(at, at + 1))  # noqa: B904 - has its cause

    @contextmanager
    def timed(self, rows: int) -> Iterator[None]:
        """Take the time, and count ``rows`` as done."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._meter.seconds["steps"] += time.perf_counter() - start
            self.done += rows
            self._meter.tell()

    @contextmanager
    def watched(self, rows: Rows) -> Iterator[None]:
        """Tell the driver of a call over these rows, before and after, if it wants to know."""
        end = self.begins(rows)
        try:
            yield
        finally:
            if end is not None:
                end()

    def begins(self, rows: Rows) -> Callable[[], None] | None:
        """Tell the driver that a call begins, if it wants to know; return what tells the end."""
        watch = self._meter.watch
        return partial(watch.ends, watch.begins(self._label, rows)) if watch is not None else None

    @property
    def suspicious(self) -> bool:
        """True if some rows of the shard may end the worker: then they are at hand one batch at a time."""
        return self._meter.watch is not None and self._meter.watch.suspicious

    def pieces(self, rows: Rows) -> Iterable[Rows]:
        """Cut a batch so that rows that may end the worker stand apart."""
        return self._meter.watch.pieces(rows) if self._meter.watch is not None else (rows,)

    def patience(self, error: BaseException, tried: int, most: int = sys.maxsize) -> bool:
        """Say whether a call that failed for the ``tried``-th time is to be tried again, once its time has come.

        It is tried ``most`` times more, or as often as the policy has it.
        """
        policy = self._policy
        if (
            tried > min(policy.max_retries, most)
            or not isinstance(error, policy.retry_on)
            or is_interrupt(error)
        ):
            return False
        self._meter.retried(self._label, name_of(error))
        time.sleep(min(PAUSE * 2 ** (tried - 1), LONGEST) * random.uniform(0.5, 1.5))
        return True

    def patient(self, call: Callable[[Any], Any], renewed: Callable[[int], Any]) -> Callable[[Any], Any]:
        """Return the function with its patience, for code that goes row by row.

        ``renewed(row)`` gives a row as it was: a call that failed may have changed it.
        """
        if not self._policy.retry_on:
            return call

        def patient(row: Any) -> Any:
            for tried in itertools.count(1):
                try:
                    return call(row)
                except BaseException as error:
                    if not self.patience(error, tried):
                        raise
                assert self.row is not None
                row = renewed(self.row)

        return patient

    def told(self, error: BaseException, rows: Rows) -> StepError:
        """Return the error that says what the user's code raised, and at which rows it was."""
        kind: type[StepError] = StepError
        cause: BaseException | None = error.__cause__
        said = words(error)
        if not self._policy.show_data:
            said = hidden(said, rows)
        if isinstance(error, ConversionError):
            kind, text = BadReturn, f"{self._label} gave something that is not {self._noun}: {said}."
        elif isinstance(error, BadInput):
            said = said.rstrip(".")
            kind, text = BadInput, f"{self._label}: {said}{'' if said.endswith(('?', '!')) else '.'}"
        else:
            cause = error
            name = name_of(error)
            from millrace.run.hints import hint_on  # only to say what is wrong

            hint = hint_on(error, said, rows, chosen=self._chosen, by_row=self._noun == "a row")
            text = f"{self._label} raised {f'{name}: {said}' if said else name}{hint}"
        told = kind(f"{text} It was working on {self._where(rows)}{self._preview(rows)}.")
        told.__cause__ = cause if cause is None or self._policy.show_data else _without_words(cause)
        return told

    def is_fault(self, error: BaseException) -> bool:
        """Say whether some rows may be to blame for an error, so that it is worth looking for them."""
        if is_interrupt(error) or is_lasting(error):
            return False
        return isinstance(error, BadInput) or not isinstance(error, MillraceError)

    def abandon(self, error: BaseException) -> None:
        """End a worker whose device is spoilt, if rows that fail are to be found: another one can go on looking."""
        if self.tolerant and is_lasting(error) and is_worker():
            say(f"{self._label} raised {name_of(error)}: {words(error)}", sys.stderr)
            os._exit(1)

    def set_aside(self, row: Rows, error: BaseException, *, keep: bool = True) -> Fault:
        """Take a row that fails by itself off the way of the others; or count it as kept, if it can be."""
        kind = "BadReturn" if isinstance(error, ConversionError) else name_of(error)
        fault = Fault(self._label, kind, words(error))
        span = row.spans[0]
        first, last = span.bounds()
        kept = keep and self.keeps
        self._meter.take_in([Reject(span.split, first, last, fault, kept)])
        if kept:
            self._meter.nulled += 1
        else:
            self._meter.steps[self._step][2] += 1
        return fault

    def dropped(self, rows: int) -> None:
        """Count rows that the step took away as it should."""
        self._meter.steps[self._step][3] += rows

    def gave(self, rows: int, made: int) -> None:
        """Count what a function made of some rows: none of them, or more than there were."""
        if made != rows:
            self._meter.steps[self._step][3 if made < rows else 4] += abs(made - rows)

    def shrunk(self, before: int, now: int) -> None:
        """Tell that the code gets fewer rows at a time from now on."""
        self._meter.shrunk(self._label, before, now)

    def sized(self, rows: int, per_second: float) -> None:
        """Tell how many rows at a time turned out to be best for the code."""
        self._meter.sized(self._label, rows, per_second)

    def _preview(self, rows: Rows) -> str:
        """Show the values of a single row, if they may be shown."""
        if len(rows) != 1 or not self._policy.show_data:
            return ""
        values = preview(rows.batch)
        return f": {values}" if values else ""


def _without_words(error: BaseException) -> Exception:
    """Return an error with the traceback of another and none of its words, which may be data."""
    return RuntimeError(f"{name_of(error)} (its words are hidden)").with_traceback(error.__traceback__)


def stretch(start: str, end: str) -> str:
    """Say from where to where, in the words of ``Source.locate``.

    >>> stretch("a.csv, row 3", "a.csv, row 9")
    'a.csv, rows 3 to 9'
    """
    if start == end:
        return start
    place, _, first = start.rpartition(" ")
    same, _, last = end.rpartition(" ")
    if place == same and first.isdigit() and last.isdigit():
        return f"{place}s {first} to {last}"
    return f"the rows from {start} to {end}"
