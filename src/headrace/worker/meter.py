"""What an attempt counts and reports: rows and seconds, metrics of what is written, and calls that are watched."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from headrace.core.answered import Answered
from headrace.core.arrow.batch import empty_columns
from headrace.core.arrow.views import protected
from headrace.core.engine_ports import WorkerContext
from headrace.core.events import Event
from headrace.core.messages import CallEnded, CallStarted
from headrace.core.metric_states import guarded
from headrace.core.model_ports import Accumulator
from headrace.core.process import decoded
from headrace.core.work import Block, Fault, Faults, Ledger, PoisonRows, Reject, Split, Timings
from headrace.errors import StepError
from headrace.plan.accounts import cut_short
from headrace.plan.steps.functions import Accumulate
from headrace.worker.rows import Rows

_call_numbers = itertools.count()


class StepCounts(msgspec.Struct):
    """What became of the rows of one step in an attempt.

    ``dropped`` are those that it left out as it should, ``added`` those beyond what it was given,
    ``past`` those of other datasets of a union.
    """

    taken: int = 0
    given: int = 0
    rejected: int = 0
    dropped: int = 0
    added: int = 0
    past: int = 0


class Meter:
    """Counts rows and seconds of one attempt.

    ``steps`` has the counts of each step; ``cut`` is the last step that is a limit and needs no more rows.
    ``rejects`` are the rows that were set aside; with ``travels`` also those that failed and were kept, so that
    whoever takes the meter's rows can count them.
    """

    def __init__(self, steps: int, *, travels: bool = False) -> None:
        self.steps = [StepCounts() for _ in range(steps)]
        self.cut = -1
        self.read_rows = 0
        self._split: tuple[Split, int] | None = None  # that rows were read of last, and the rows read before
        self._whole = (0, 0)  # rows and bytes of the splits before it that were read from their beginning
        self.block_source_rows: float | None = None  # of the source, for the rows of blocks that were read
        self.unreadable = 0  # rows that the source could not make sense of
        self.nulled = 0
        self.answered: Answered | None = None  # by language models
        self.rejects: list[Reject] = []
        self.watch: CallWatch | None = None  # reports calls to the driver
        self._faults: dict[tuple[str, str], list[Any]] = {}
        self._travels = travels
        self._user_codes: list[tuple[int, Any]] = []  # each ``UserCode``, by its step
        self._done = 0
        self.seconds = dict.fromkeys(("read", "decode", "steps", "metrics", "write", "wait"), 0.0)
        self.step_seconds = [0.0] * steps
        self._cpu = time.process_time()
        # Called now and then, as the user's code gets on:
        self.report_progress: Callable[[], None] = lambda: None
        self.shard = 0
        self._notify: Callable[[Any], None] = lambda event: None
        self._worker = -1

    def report_to(self, context: WorkerContext, poison_rows: PoisonRows, shard: int) -> None:
        """Report to the driver what happens over a shard's rows; also each call, if ``poison_rows`` asks for it."""
        self.shard = shard
        self._worker, self._notify = context.worker, context.notify
        if poison_rows.watched:
            self.watch = CallWatch(poison_rows, context.worker, shard, context.notify)

    def report(self, event: Event) -> None:
        """Report an event of this worker."""
        self._notify(msgspec.structs.replace(event, worker=self._worker))

    @property
    def done_rows(self) -> int:
        """How many rows of the source were read and went through the user code, as far as its slowest step is.

        Of the rows that a step was given, others may be under way there.
        """
        done = self.read_rows
        if self._user_codes:
            done = first = self._user_codes[0][1].done
            for step, code in self._user_codes[1:]:
                if taken := self.steps[step].taken:
                    done = min(done, first * code.done // taken)
            self._done = done = max(done, self._done)  # rows may become more behind the first step
        return (
            done
            if self.block_source_rows is None
            else int(self.block_source_rows * min(1.0, done / max(1, self.read_rows)))
        )

    @property
    def source_rows(self) -> int:
        """How many rows of the source were read, or went into the blocks that were read."""
        return self.read_rows if self.block_source_rows is None else int(self.block_source_rows)

    def add_user_code(self, step: int, code: Any) -> None:
        """Count what a ``UserCode`` has done."""
        self._user_codes.append((step, code))
        self._user_codes.sort(key=lambda each: each[0])

    def begin_split(self, split: Split) -> None:
        """Note that the next rows that count as read are of this split.

        >>> meter = Meter(0)
        >>> for split in (Split(0, 0, 8, bytes=90, low=7), Split(0, 8, 9, bytes=100), Split(0, 9, 20, bytes=90)):
        ...     meter.begin_split(split)
        ...     meter.read_rows += 10
        >>> meter.done_size
        300
        """
        last, before = self._split or (split, 0)
        if split != last:
            if not last.low:
                rows, size = self._whole
                self._whole = rows + self.read_rows - before, size + last.bytes
            before = self.read_rows
        self._split = split, before

    @property
    def done_size(self) -> int:
        """About how many bytes of the input ``done_rows`` are, by splits that were read as a whole; 0 before that."""
        rows, size = self._whole
        return round(size * self.done_rows / rows) if rows else 0

    def read_block(self, block: Block, rows: int) -> None:
        """Count rows of a block as they are taken, and those of the source that became them."""
        self.read_rows += rows
        self.block_source_rows = (self.block_source_rows or 0.0) + block.read * rows / max(1, block.rows)

    def ledger(self, written: int = 0) -> Ledger:
        """Return where the rows went so far."""
        aside = tuple(step.rejected for step in self.steps)
        past = tuple(step.past for step in self.steps)
        ledger = Ledger(
            self.read_rows,
            written,
            self.unreadable + sum(aside),
            tuple((step.taken, step.given) for step in self.steps),
            aside,
            self.nulled,
            tuple(step.dropped for step in self.steps),
            tuple(step.added for step in self.steps),
            (0,) * len(self.steps),
            past if any(past) else (),
            self.answered,
        )
        return cut_short(ledger, self.cut)

    def faults(self, *, words: bool = True) -> Faults:
        """Return how many rows failed, by step and class of error; ``words``: with the message of one of each."""
        return Faults(
            tuple(
                (fault if words else Fault(fault.step, fault.kind, ""), count)
                for fault, count in self._faults.values()
            )
        )

    def add_rejects(self, rejects: Iterable[Reject]) -> None:
        """Add rows that failed, here or in an earlier stage."""
        for reject in rejects:
            fault = reject.fault
            self._faults.setdefault((fault.step, fault.kind), [fault, 0])[1] += reject.count
            if self._travels or not reject.kept:
                self.rejects.append(reject)

    def take_rejects(self) -> tuple[Reject, ...]:
        """Return the rejects so far, and forget them."""
        rejects, self.rejects = tuple(self.rejects), []
        return rejects

    @contextmanager
    def timing(self, what: str) -> Iterator[None]:
        """Add the time of the ``with`` block to ``what``; what a source decoded meanwhile, to decoding."""
        start, before = time.perf_counter(), decoded()
        try:
            yield
        finally:
            decode = decoded() - before
            self.seconds["decode"] += decode
            self.seconds[what] += max(0.0, time.perf_counter() - start - decode)

    def count_step(self, step: int, seconds: float) -> None:
        """Add the time that a step's code took."""
        self.seconds["steps"] += seconds
        if step < len(self.step_seconds):
            self.step_seconds[step] += seconds

    def timings(self) -> Timings:
        """Return what took how long so far."""
        seconds = dict(self.seconds)
        seconds["steps"] += seconds["metrics"]
        each = tuple(round(each, 6) for each in self.step_seconds)
        return Timings(**seconds, each=each, cpu=round(time.process_time() - self._cpu, 6))


class CallWatch:
    """Reports calls over a shard's rows, and splits batches that have suspects."""

    def __init__(
        self, poison_rows: PoisonRows, worker: int, shard: int, notify: Callable[[Any], None]
    ) -> None:
        self._suspects = poison_rows.suspects
        self._worker = worker
        self._shard = shard
        self._notify = notify

    @property
    def has_suspects(self) -> bool:
        """True if some rows are suspected."""
        return bool(self._suspects)

    def report_start(self, step: str, rows: Rows) -> int:
        """Report that a call starts; return its number."""
        number = next(_call_numbers)
        stretches = tuple((span.split, *span.bounds()) for span in rows.spans if span.count)
        self._notify(CallStarted(self._worker, number, self._shard, step, stretches, len(rows)))
        return number

    def report_end(self, number: int) -> None:
        """Report that a call has ended."""
        self._notify(CallEnded(self._worker, number))

    def split_suspects(self, part: Rows) -> Iterator[Rows]:
        """Split a batch: few suspects at a time, separate from the other rows."""
        sizes = self._sizes(part)
        if sizes is None:
            yield part
            return
        at = 0
        while at < len(part):
            same = np.flatnonzero(sizes[at:] != sizes[at])
            stop = min(at + int(sizes[at]), at + int(same[0]) if len(same) else len(part))
            yield part.cut(at, stop)
            at = stop

    def _sizes(self, part: Rows) -> np.ndarray[Any, np.dtype[np.int64]] | None:
        """Return, for each row, the size of the batch that it may be in; None if there are no suspects."""
        sizes = np.full(len(part), len(part), np.int64)
        at = 0
        for span in part.spans:
            first, last = span.bounds()
            here = sizes[at : at + span.count]
            at += span.count
            for suspect in self._suspects:
                if suspect.split != span.split or suspect.last < first or suspect.first > last:
                    continue
                if span.last is None:
                    numbers = span.numbers()
                    among = (numbers >= suspect.first) & (numbers <= suspect.last)
                else:
                    among = np.ones(span.count, np.bool_)
                here[among] = np.minimum(here[among], suspect.size)
        return sizes if (sizes < len(part)).any() else None


# ---------------------------------------------------------------- metrics


def side_column_name(step: Accumulate, column: str) -> str:
    """Name a column as it was at ``step``."""
    return f"{step.number}:{column}"


class MetricsCounter:
    """The metrics of one attempt. ``show_data``: values may be shown in messages."""

    def __init__(
        self, steps: Sequence[Accumulate], where: Callable[[Rows], str], *, show_data: bool = True
    ) -> None:
        self._where = where
        self._show_data = show_data
        self._metrics: list[tuple[Accumulate, str, Accumulator]] = []
        self._tried = False
        for step in steps:
            for name, metric in step.metrics:
                with guarded(name, "", show_data=show_data):
                    self._metrics.append((step, name, metric.empty()))

    def update(self, rows: Rows) -> None:
        """Update the metrics with rows that are written."""
        for step, name, metric in self._metrics:
            batch = protected(_columns_of(step, metric, rows), "pyarrow", tried=self._tried)
            try:
                with guarded(name, "", show_data=self._show_data):
                    metric.update(batch)
            except StepError as error:  # looking up which rows these are may be slow: only now
                raise type(error)(f"{error} This was in {self._where(rows)}.") from error.__cause__
        self._tried = True

    def states(self) -> tuple[bytes, ...]:
        """Return the state of each metric."""
        states = []
        for _, name, metric in self._metrics:
            with guarded(name, "its state: ", show_data=self._show_data):
                states.append(metric.to_bytes())
        return tuple(states)


def _columns_of(step: Accumulate, metric: Accumulator, rows: Rows) -> pa.RecordBatch:
    """Return the columns that a metric reads, as they were at its step."""
    names = list(dict.fromkeys(metric.columns))
    if not names:
        return empty_columns(len(rows))
    side_columns = rows.side_columns
    if side_columns is None or side_columns.num_rows != len(rows):
        raise AssertionError("a step lost the columns that metrics read")
    return pa.RecordBatch.from_arrays(
        [side_columns.column(side_column_name(step, name)) for name in names], names=names
    )
