"""Batches on their way through one function: several at a time where it waits, smaller where memory is short.

Results come in the order of the rows, each row's exactly once, whatever ends first and whatever is tried again.
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
from typing import Any, Generic, TypeVar

from millrace.core.handed import Handed
from millrace.core.values import ConversionError
from millrace.core.work import Fault
from millrace.errors import MillraceError
from millrace.run.batching import Tuner
from millrace.run.calls import Call, Caller, Raised
from millrace.run.failures import first_line, is_interrupt
from millrace.run.guard import Guard
from millrace.run.memory import forget, is_out_of_memory, make_room
from millrace.run.pace import Pace
from millrace.run.rows import Rows
from millrace.run.watching import Watched

T = TypeVar("T")

Sized = Callable[[Iterator[Rows]], Iterator[Rows]]
_Flying = deque[tuple[Rows, Call]]
_NOBODY: _Flying = deque()
_NUMBER = re.compile(r"\d+")


class Flight(Generic[T]):
    """Sends batches to ``caller``; ``ready`` makes of rows what the function gets, ``made`` what its result means.

    A batch that is too big for memory is cut in halves, which are tried one by one while nothing else is in flight.
    From then on no batch of this caller is bigger than what was found to fit.
    A batch that raises is halved until the rows at fault stand alone; the first of them is reported, or all of them
    are set aside, as the guard has it. ``tuner`` hears how long batches take, if their size is its to choose.
    """

    def __init__(
        self,
        caller: Caller,
        guard: Guard,
        ready: Callable[[Rows], tuple[Any, Handed]],
        made: Callable[[Rows, Handed, Any], T],
        tuner: Tuner | None = None,
    ) -> None:
        self._caller = caller
        self._guard = guard
        self._ready = ready
        self._made = made
        self._tuner = tuner
        self._pace = Pace(tuner, caller.depth)
        self._dividing = (
            0  # batches that failed, one within the other: their parts are not waited for as long
        )
        self._left = 0  # rows that were read, and that no batch has got yet

    def over(
        self, rows: Iterator[Rows], sized: Sized, *, look: int | None
    ) -> Iterator[tuple[Rows, T | Fault]]:
        """Yield batches, cut by ``sized``, with what came of each; a ``Fault`` for a row that fails by itself.

        ``look``: somebody only takes a look, so before there are fewer rows left of what was read than that, and more
        would be read, all results are let out.
        """
        self._left = 0
        depth = 1 if self._guard.suspicious else self._caller.depth
        thread = threading.get_ident()
        flying: _Flying = deque()
        try:
            for part in sized(self._counted(rows)):
                self._left -= len(part)
                for piece in self._pieces(part):
                    flying.append((piece, self._begun(piece)))
                    if len(flying) >= depth:
                        yield from self._landed(flying)
                while flying and look is not None and self._left < look:
                    yield from self._landed(flying)
            while flying:
                yield from self._landed(flying)
            if self._pace.ended():
                self._settled()
        finally:
            for _, call in flying:
                call.give_up()
            if threading.get_ident() == thread:  # else the garbage collector is here, in whatever thread
                _settle(flying)

    def _counted(self, rows: Iterator[Rows]) -> Iterator[Rows]:
        for part in rows:
            self._left += len(part)
            yield part

    def _cut(self, part: Rows) -> Iterator[Rows]:
        """Cut a batch to the ceiling, which may come down meanwhile."""
        at = 0
        self._caller.biggest = max(self._caller.biggest, len(part))
        while True:
            if self._caller.squeezed:
                self._caller.squeezed = False
                self._caller.lower(max(1, (self._caller.ceiling or self._caller.biggest) // 2))
            stop = min(at + (self._caller.ceiling or len(part)), len(part))
            yield part.cut(at, stop)
            at = stop
            if at >= len(part):
                return

    def _pieces(self, part: Rows) -> Iterator[Rows]:
        for piece in self._cut(part):
            yield from self._guard.pieces(piece)

    def _begun(self, part: Rows) -> Call:
        end = self._guard.begins(part)
        call = self._started(part)
        return call if end is None else Watched(call, end)

    def _started(self, part: Rows) -> Call:
        try:
            with self._timed():
                view, handed = self._ready(part)
                return self._caller.start(view, partial(self._made, part, handed))
        except BaseException as error:  # the batches before have their turn first
            if is_interrupt(error):
                raise
            if is_out_of_memory(error):
                forget(error)
            return Raised(error)

    def _landed(self, flying: _Flying) -> Iterator[tuple[Rows, T | Fault]]:
        part, call = flying.popleft()
        calls = [call]
        del call
        yield from self._outcomes(part, calls, flying, alone=self._caller.depth == 1)

    def _outcomes(
        self, part: Rows, calls: list[Call], flying: _Flying = _NOBODY, *, alone: bool = True
    ) -> Iterator[tuple[Rows, T | Fault]]:
        """Wait for a call, and yield what came of its batch; in parts, if it has to be divided.

        ``alone``: nothing else is in flight, so a single row for which memory does not suffice is at fault. The call
        comes in a list, which is emptied: what an error holds must be free before anything is tried again.
        """
        failure = None
        try:
            made = self._patient(part, calls)
        except BaseException as error:
            short = is_out_of_memory(error) and not (alone and len(part) <= 1)
            if not short and not self._guard.is_fault(error):
                if is_interrupt(error):
                    raise
                self._guard.abandon(error)
                raise self._guard.told(error, part)  # noqa: B904 - has its cause
            if short or len(part) > 1:
                forget(error)
            failure = None if short else error
            self._pace.broken()
        else:
            self._caller.tried = True
            self._guard.done += len(part)
            if self._pace.landed(len(part)):
                self._settled()
            yield part, made
            return
        if failure is None:
            _settle(flying)
            yield from self._again(part)
        elif self._guard.tolerant:
            yield from self._divided(part, failure)
        else:
            from millrace.run.hints import takes_batch_for_row  # only to say what is wrong

            found, told, others = self._narrowed(part, failure)
            together, first = len(found) > 1, _begin_alike(found, part)
            systematic = isinstance(failure, ConversionError) or takes_batch_for_row(failure)
            if (together and (first or others)) or (systematic and (together or first)):
                raise self._guard.told(failure, part)  # it is wrong for all rows, and best seen on many
            raise self._guard.told(told, found)

    def _patient(self, part: Rows, calls: list[Call]) -> T:
        """Wait for a call; if it raises what passes, make it again after a while."""
        for tried in itertools.count(1):
            try:
                with self._timed():
                    made: T = calls.pop().result()
                    return made
            except BaseException as error:
                if not self._guard.patience(error, tried, most=1 if self._dividing else sys.maxsize):
                    raise
            calls.append(self._begun(part))
        raise AssertionError

    def _tried(self, part: Rows) -> Iterator[tuple[Rows, T | Fault]]:
        return self._outcomes(part, [self._begun(part)])

    def _again(self, part: Rows) -> Iterator[tuple[Rows, T | Fault]]:
        """Try rows again for which memory did not suffice: fewer at a time, or one row with nothing beside it."""
        self._lower(len(part))
        make_room()
        for piece in self._cut(part):
            yield from self._tried(piece)

    def _divided(self, part: Rows, error: BaseException) -> Iterator[tuple[Rows, T | Fault]]:
        """Halve a batch that failed until the rows at fault stand alone: some k log2(n) calls for k of n rows."""
        if len(part) == 1:
            self._guard.done += 1
            yield part, self._guard.set_aside(part, error)
            return
        self._dividing += 1
        try:
            yield from self._halves(part, error)
        finally:
            self._dividing -= 1

    def _halves(self, part: Rows, error: BaseException) -> Iterator[tuple[Rows, T | Fault]]:
        half = len(part) // 2
        first, second = part.cut(0, half), part.cut(half, len(part))
        clean = True
        for piece, made in self._tried(first):
            clean = clean and not isinstance(made, Fault)
            yield piece, made
        if clean and len(second) > 1:  # then what fails is in there: no need to try it whole
            yield from self._divided(second, error)
        else:
            yield from self._tried(second)

    def _narrowed(self, part: Rows, error: BaseException) -> tuple[Rows, BaseException, bool]:
        """Find the first row that fails by itself, and how; or the fewest rows found that only fail together.

        What raises otherwise than ``error`` is passed over, and told by True: code that looks at a whole batch at
        once fails in some way of its own when it gets a single row, and that says nothing about the batch.
        """
        others = False
        while len(part) > 1:
            half = len(part) // 2
            for piece in (part.cut(0, half), part.cut(half, len(part))):
                failure = self._failure(piece)
                if failure is not None and _alike(failure, error):
                    part, error = piece, failure
                    break
                others = others or failure is not None
            else:
                break
        return part, error, others

    def _failure(self, part: Rows) -> BaseException | None:
        call = self._begun(part)
        try:
            with self._guard.timed(0):
                call.result()
        except BaseException as error:
            if is_interrupt(error):
                raise
            if not self._guard.is_fault(error) or (len(part) > 1 and is_out_of_memory(error)):
                return None
            if len(part) > 1:
                forget(error)
            return error
        return None

    @contextmanager
    def _timed(self) -> Iterator[None]:
        with self._pace.timing(), self._guard.timed(0):
            yield

    def _settled(self) -> None:
        if self._tuner is not None:
            self._guard.sized(self._tuner.size, self._tuner.rate)

    def _lower(self, rows: int) -> None:
        now = rows // 2
        if now and self._caller.lower(now):
            self._guard.shrunk(rows, now)


def _alike(one: BaseException, other: BaseException) -> bool:
    """Say whether two errors are of one class and one line of the user's code; errors of ours say the same, too."""
    if type(one) is not type(other) or first_line(one) != first_line(other):
        return False
    return not isinstance(one, MillraceError) or _NUMBER.sub("", str(one)) == _NUMBER.sub("", str(other))


def _begin_alike(some: Rows, others: Rows) -> bool:
    return some.cut(0, 1).spans == others.cut(0, 1).spans


def _settle(flying: _Flying) -> None:
    for _, call in flying:
        call.wait()
