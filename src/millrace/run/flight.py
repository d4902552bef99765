"""Batches on their way through one function: several at a time where it waits, smaller where memory is short.

Results come in the order of the rows, each row's exactly once, whatever ends first and whatever is tried again.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Generic, TypeVar

from millrace.core.handed import Handed
from millrace.run.calls import Call, Caller, Raised
from millrace.run.failures import is_interrupt
from millrace.run.guard import Guard
from millrace.run.memory import forget, is_out_of_memory, make_room
from millrace.run.rows import Rows

T = TypeVar("T")

Sized = Callable[[Iterator[Rows]], Iterator[Rows]]
_Flying = deque[tuple[Rows, Call]]


class Flight(Generic[T]):
    """Sends batches to ``caller``; ``ready`` makes of rows what the function gets, ``made`` what its result means.

    A batch that is too big for memory is cut in halves, which are tried one by one while nothing else is in flight.
    From then on no batch of this caller is bigger than what was found to fit.
    """

    def __init__(
        self,
        caller: Caller,
        guard: Guard,
        ready: Callable[[Rows], tuple[Any, Handed]],
        made: Callable[[Rows, Handed, Any], T],
    ) -> None:
        self._caller = caller
        self._guard = guard
        self._ready = ready
        self._made = made
        self._left = 0  # rows that were read, and that no batch has got yet

    def over(self, rows: Iterator[Rows], sized: Sized, *, look: int | None) -> Iterator[tuple[Rows, T]]:
        """Yield batches, cut by ``sized``, with what came of each.

        ``look``: somebody only takes a look, so before there are fewer rows left of what was read than that, and more
        would be read, all results are let out.
        """
        self._left = 0
        thread = threading.get_ident()
        flying: _Flying = deque()
        try:
            for part in sized(self._counted(rows)):
                self._left -= len(part)
                for piece in self._cut(part):
                    flying.append((piece, self._begun(piece)))
                    if len(flying) >= self._caller.depth:
                        yield from self._landed(flying)
                while flying and look is not None and self._left < look:
                    yield from self._landed(flying)
            while flying:
                yield from self._landed(flying)
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
        while True:
            stop = min(at + (self._caller.ceiling or len(part)), len(part))
            yield part.cut(at, stop)
            at = stop
            if at >= len(part):
                return

    def _begun(self, part: Rows) -> Call:
        with self._guard.over(part, counted=False):
            try:
                view, handed = self._ready(part)
                return self._caller.start(view, partial(self._made, part, handed))
            except BaseException as error:  # the batches before have their turn first
                if is_interrupt(error):
                    raise
                if is_out_of_memory(error):
                    forget(error)
                return Raised(error)

    def _landed(self, flying: _Flying) -> Iterator[tuple[Rows, T]]:
        part, call = flying.popleft()
        made = self._result(part, call, final=self._caller.depth == 1 and len(part) <= 1)
        del call  # and with it what an error holds
        if made is not None:
            yield part, made
        else:
            _settle(flying)
            yield from self._again(part)

    def _result(self, part: Rows, call: Call, *, final: bool) -> T | None:
        """Wait for a call; None if memory did not suffice, unless nothing is left to be tried (``final``)."""
        with self._guard.over(part, counted=False):
            try:
                made: T = call.result()
                self._guard.done += len(part)
                return made
            except Exception as error:
                if final or not is_out_of_memory(error):
                    raise
                forget(error)
        return None

    def _again(self, part: Rows) -> Iterator[tuple[Rows, T]]:
        """Try rows again for which memory did not suffice: fewer at a time, or one row with nothing beside it."""
        self._lower(len(part))
        make_room()
        for piece in self._cut(part):
            made = self._result(piece, self._begun(piece), final=len(piece) <= 1)
            if made is not None:
                yield piece, made
            else:
                yield from self._again(piece)

    def _lower(self, rows: int) -> None:
        now = rows // 2
        if now and (self._caller.ceiling is None or now < self._caller.ceiling):
            self._caller.ceiling = now
            self._guard.shrunk(rows, now)


def _settle(flying: _Flying) -> None:
    for _, call in flying:
        call.wait()
