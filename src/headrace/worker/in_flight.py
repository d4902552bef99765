"""Runs batches through one function: several at a time where it waits, smaller ones where memory is short.

Results come in the order of the rows, exactly one per row, whichever call ends first and whichever is retried.
"""

from __future__ import annotations

import itertools
import re
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Generic, NoReturn, TypeVar

from headrace.core.answered import without_answered
from headrace.core.arrow.input_view import InputView
from headrace.core.arrow.values import ConversionError
from headrace.core.events import BatchShrunk, BatchSized, CallRetried
from headrace.core.failures import RowsFailed, first_line, is_interrupt
from headrace.core.work import Fault
from headrace.errors import HeadraceError
from headrace.worker.batching import BatchTiming, BatchTuner
from headrace.worker.calls import Caller, PendingCall, not_started, watched
from headrace.worker.messages import forget, is_out_of_memory, make_room
from headrace.worker.rows import Rows
from headrace.worker.user_code import UserCode

T = TypeVar("T")

Sized = Callable[[Iterator[Rows]], Iterator[Rows]]
_InFlight = deque[tuple[Rows, PendingCall]]
_NONE: _InFlight = deque()
_NUMBER = re.compile(r"\d+")


class _Raised(Fault, frozen=True):
    """A row fails by itself, and that will end the run."""

    error: BaseException | None = None


class InFlightWindow(Generic[T]):
    """Sends batches to ``caller``: ``ready`` makes the view that the function gets, ``made`` converts its result.

    A batch that runs out of memory is cut in halves, which run one by one while nothing else is in flight. From then
    on no batch of this caller is bigger than what fitted. A batch that raises is bisected to the rows at fault; the
    first of them is reported, or all of them are rejected, depending on ``on_error``. ``tuner`` gets how long batches
    take, if it may choose their size.
    """

    def __init__(
        self,
        caller: Caller,
        user_code: UserCode,
        ready: Callable[[Rows], tuple[Any, InputView]],
        made: Callable[[Rows, InputView, Any], T],
        tuner: BatchTuner | None = None,
    ) -> None:
        self._caller = caller
        self._user_code = user_code
        self._ready = ready
        self._made = made
        self._tuner = tuner
        self._timing = BatchTiming(tuner, caller.depth)
        self._bisect_depth = 0  # depth of bisection: within one, calls are retried only once
        self._unsent_rows = 0  # rows that were read and not sent yet

    def run(
        self, rows: Iterator[Rows], sized: Sized, *, look: int | None
    ) -> Iterator[tuple[Rows, T | Fault]]:
        """Yield batches, cut by ``sized``, each with its result; a ``Fault`` for a row that fails by itself.

        ``look``: for a preview. All results are yielded before fewer than this many rows are left of what was read,
        so that no more is read than necessary.
        """
        self._unsent_rows = 0
        depth = 1 if self._user_code.has_suspects else self._caller.depth
        thread = threading.get_ident()
        in_flight: _InFlight = deque()
        self._caller.input_ends(False)
        try:
            for part in sized(self._count_unsent(rows)):
                self._unsent_rows -= len(part)
                for piece in self._pieces(part):
                    in_flight.append((piece, self._start_reported(piece)))
                    if len(in_flight) >= depth:
                        yield from self._next_outcome(in_flight)
                while in_flight and look is not None and self._unsent_rows < look:
                    yield from self._next_outcome(in_flight)
            self._caller.input_ends(True)
            while in_flight:
                yield from self._next_outcome(in_flight)
            if self._timing.rows_ended():
                self._report_size()
        finally:
            for _, call in in_flight:
                call.cancel()
            if threading.get_ident() == thread:  # else the garbage collector is here, in whatever thread
                _wait_for(in_flight)
                self._report_model()  # what was paid for is told, however it ends

    def _count_unsent(self, rows: Iterator[Rows]) -> Iterator[Rows]:
        for part in rows:
            self._unsent_rows += len(part)
            yield part

    def _cut(self, part: Rows) -> Iterator[Rows]:
        """Cut a batch to the ceiling, which may be lowered meanwhile."""
        at = 0
        self._caller.most_rows = max(self._caller.most_rows, len(part))
        while True:
            if self._caller.shrink_requested:
                self._caller.shrink_requested = False
                self._caller.lower_ceiling(max(1, (self._caller.ceiling or self._caller.most_rows) // 2))
            stop = min(at + (self._caller.ceiling or len(part)), len(part))
            yield part.cut(at, stop)
            at = stop
            if at >= len(part):
                return

    def _pieces(self, part: Rows) -> Iterator[Rows]:
        for piece in self._cut(part):
            yield from self._user_code.split_suspects(piece)

    def _start_reported(self, part: Rows) -> PendingCall:
        end = self._user_code.report_start(part)
        call = self._start(part)
        return call if end is None else watched(call, end)

    def _start(self, part: Rows) -> PendingCall:
        try:
            with self._timed():
                view, input_view = self._ready(part)
                return self._caller.start(view, partial(self._finished, part, input_view))
        except BaseException as error:  # raised when its turn comes
            if is_interrupt(error):
                raise
            if is_out_of_memory(error):
                forget(error)
            return not_started(error)

    def _finished(self, part: Rows, input_view: InputView, result: Any) -> T:
        result, answered = without_answered(result)
        made = self._made(part, input_view, result)
        self._user_code.count_answered(answered)
        return made

    def _next_outcome(self, in_flight: _InFlight) -> Iterator[tuple[Rows, T | Fault]]:
        part, call = in_flight.popleft()
        calls = [call]
        del call
        yield from self._outcomes(part, calls, in_flight, alone=self._caller.depth == 1)

    def _outcomes(
        self, part: Rows, calls: list[PendingCall], in_flight: _InFlight = _NONE, *, alone: bool = True
    ) -> Iterator[tuple[Rows, T | Fault]]:
        """Wait for a call, and yield the outcome of its batch; in parts, if it has to be divided.

        ``alone``: nothing else is in flight, so a single row that runs out of memory is at fault. The call comes in a
        list, which is emptied: the memory that an error refers to must be free before anything is run again.
        """
        failure: BaseException | None = None
        try:
            made = self._result_with_retries(part, calls)
        except RowsFailed as error:
            yield from self._some_failed(part, error)
            return
        except BaseException as error:
            short = self._is_short_of_memory(error, part, alone=alone)
            if not short:
                self._raise_unless_of_rows(error, part)
                failure = error
            if short or len(part) > 1:
                forget(error)
            self._timing.batch_failed()
        else:
            self._succeeded(part)
            yield part, made
            return
        if failure is None:
            _wait_for(in_flight)
            yield from self._run_smaller(part)
        elif self._bisect_depth:
            yield from self._bisect(part, failure)
        elif self._user_code.tolerant:
            yield from self._bisect_and_reject(part, failure)
        else:
            self._raise_for_first_row(part, failure)

    def _succeeded(self, part: Rows) -> None:
        self._caller.has_run = True
        self._user_code.done += len(part)
        self._caller.taken += len(part)
        self._report_model()
        if self._timing.batch_done(len(part)):
            self._report_size()

    def _is_short_of_memory(self, error: BaseException, part: Rows, *, alone: bool) -> bool:
        """Say whether fewer rows, or the same alone, may fit; raises what ends the run in any case."""
        if isinstance(error, HeadraceError) and error.ends_run:
            raise error
        return is_out_of_memory(error) and not (alone and len(part) <= 1)

    def _raise_unless_of_rows(self, error: BaseException, part: Rows) -> None:
        """Raise for what no other rows would change: an interrupt, a lost device, what is no error of rows."""
        if self._user_code.is_row_error(error):
            return
        if is_interrupt(error):
            raise error
        self._user_code.exit_if_device_is_lost(error)
        raise self._user_code.step_error(error, part)

    def _raise_for_first_row(self, part: Rows, failure: BaseException) -> NoReturn:
        """Raise for the first row that fails by itself as its batch does; where all do, the batch's error says more.

        Code that needs a whole batch may fail differently on a single row, and that says nothing about the batch.
        """
        from headrace.worker.messages import takes_batch_for_row  # only to say what is wrong

        systematic = isinstance(failure, ConversionError) or takes_batch_for_row(failure)
        for row, made in self._bisect(part, failure):
            if isinstance(made, _Raised) and made.error and _fail_alike(made.error, failure):
                if systematic and _same_first_row(row, part):
                    break
                raise self._user_code.step_error(made.error, row)
        raise self._user_code.step_error(failure, part)

    def _some_failed(self, part: Rows, failed: RowsFailed) -> Iterator[tuple[Rows, T | Fault]]:
        """Yield the results of rows, and the faults of others, as a model tells them apart itself."""
        self._caller.has_run = True
        self._timing.batch_failed()
        results, answered = without_answered(failed.results)
        self._user_code.count_answered(answered)
        self._caller.taken += len(part)
        self._report_model()
        at = 0
        for row in [*sorted(failed.errors), len(part)]:
            if row > at:
                good = part.cut(at, row)
                _, input_view = self._ready(good)
                yield good, self._made(good, input_view, results.slice(at, row - at))
                self._user_code.done += len(good)
            if row < len(part):
                yield part.cut(row, row + 1), self._failed_row(part.cut(row, row + 1), failed.errors[row])
            at = row + 1

    def _failed_row(self, row: Rows, error: BaseException) -> Fault:
        if not self._user_code.tolerant:
            raise self._user_code.step_error(error, row)
        self._user_code.done += 1
        return self._user_code.reject_row(row, self._user_code.fault_of(error))

    def _result_with_retries(self, part: Rows, calls: list[PendingCall]) -> T:
        """Wait for a call; repeat it after a while if its error is one that ``retry_on`` names."""
        for tried in itertools.count(1):
            try:
                with self._timed():
                    made: T = calls.pop().result()
                    return made
            except BaseException as error:
                if not self._user_code.wait_before_retry(
                    error, tried, most=1 if self._bisect_depth else sys.maxsize
                ):
                    raise
            calls.append(self._start_reported(part))
        raise AssertionError

    def _run_again(self, part: Rows) -> Iterator[tuple[Rows, T | Fault]]:
        return self._outcomes(part, [self._start_reported(part)])

    def _run_smaller(self, part: Rows) -> Iterator[tuple[Rows, T | Fault]]:
        """Run rows again that ran out of memory: fewer at a time, or one row with nothing else in flight."""
        self._lower_ceiling(len(part))
        make_room()
        for piece in self._cut(part):
            yield from self._run_again(piece)

    def _bisect_and_reject(self, part: Rows, error: BaseException) -> Iterator[tuple[Rows, T | Fault]]:
        """Find the rows of a batch that fail by themselves, reject them, and yield the outcome of all rows."""
        outcomes = list(self._bisect(part, error))
        faults = [made for _, made in outcomes if isinstance(made, Fault)]
        explained = iter(self._user_code.explained(faults, part, error))
        for piece, made in outcomes:
            fails = isinstance(made, Fault)
            yield piece, self._user_code.reject_row(piece, next(explained)) if fails else made

    def _bisect(self, part: Rows, error: BaseException) -> Iterator[tuple[Rows, T | Fault]]:
        """Bisect a failed batch down to the rows at fault: about k log2(n) calls for k of n rows."""
        if len(part) == 1:
            self._user_code.done += 1
            fault = self._user_code.fault_of(error)
            yield part, fault if self._user_code.tolerant else _Raised(fault.step, fault.kind, "", error)
            return
        self._bisect_depth += 1
        try:
            yield from self._bisect_halves(part, error)
        finally:
            self._bisect_depth -= 1

    def _bisect_halves(self, part: Rows, error: BaseException) -> Iterator[tuple[Rows, T | Fault]]:
        first, second = part.halves()
        clean = True
        for piece, made in self._run_again(first):
            clean = clean and not isinstance(made, Fault)
            yield piece, made
        if clean and len(second) > 1:  # then what fails is in there: no need to try it whole
            yield from self._bisect(second, error)
        else:
            yield from self._run_again(second)

    @contextmanager
    def _timed(self) -> Iterator[None]:
        with self._timing.timing(), self._user_code.timed(0):
            yield

    def _report_model(self) -> None:
        """Report what a model that waits has tried again itself, by the names of the errors, and what it has used."""
        parts = self._caller.built.parts
        while retried := parts.retried:
            self._user_code.report(CallRetried, retried.popleft())
        asked = parts.asked_so_far
        if asked is not None and asked is not self._caller.reported:
            self._caller.reported = asked
            self._user_code.report_asked(asked, self._caller.taken)

    def _report_size(self) -> None:
        if self._tuner is not None:
            self._user_code.report(BatchSized, self._tuner.size, self._tuner.rate)

    def _lower_ceiling(self, rows: int) -> None:
        now = rows // 2
        if now and self._caller.lower_ceiling(now):
            self._user_code.report(BatchShrunk, rows, now)


def _fail_alike(one: BaseException, other: BaseException) -> bool:
    """Say whether two errors are of one class and one line of the user's code; errors of ours say the same, too."""
    if type(one) is not type(other) or first_line(one) != first_line(other):
        return False
    return not isinstance(one, HeadraceError) or _NUMBER.sub("", str(one)) == _NUMBER.sub("", str(other))


def _same_first_row(some: Rows, others: Rows) -> bool:
    return some.cut(0, 1).spans == others.cut(0, 1).spans


def _wait_for(in_flight: _InFlight) -> None:
    for _, call in in_flight:
        call.wait()
