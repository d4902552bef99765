"""Carries out what the supply decides: calls to the pools of earlier stages, blocks to attempts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import msgspec

from millrace.core.events import Event, Worked
from millrace.core.ports import Pool
from millrace.core.work import BlockRef, Broken, Ended, ErrorReport, Freed, Gone, Waiting
from millrace.errors import WorkerDied
from millrace.run import failures
from millrace.run.blame import blame_for
from millrace.run.relief import Relief
from millrace.run.spans import Spans
from millrace.run.supply import Abort, Drop, Feed, GiveUp, Keep, Make, More, Supply, SupplyOrder
from millrace.run.suspicion import Suspicion


@dataclass(frozen=True, slots=True)
class _Answer:
    """What came of a call for a piece; when it was asked for, and when the answer came."""

    piece: int
    future: Future[Any]
    stage: int
    asked: float
    answered: float


class Makers:
    """The pools of the stages before the last, and the one that they feed."""

    def __init__(
        self,
        supply: Supply,
        earlier: Sequence[Pool],
        last: Pool,
        drop: Callable[[BlockRef], None],
        keep: Callable[[BlockRef], None],
        put: Callable[[Any], None],
        suspicion: Suspicion,
        relief: Relief,
        *,
        ceilings: Mapping[str, int],
        watch: Callable[[Event], None],
        clock: Callable[[], float],
    ) -> None:
        """``put`` brings messages of other threads back to ``take``; ``ceilings`` may come down meanwhile."""
        self._supply = supply
        self._earlier = earlier
        self._last = last
        self._drop = drop
        self._keep = keep
        self._put = put
        self._suspicion = suspicion
        self._relief = relief
        self._ceilings = ceilings
        self._watch = watch
        self._clock = clock
        self._spans = Spans()

    def order(self) -> None:
        """Have done what the supply wants done now."""
        self._supply.tight = self._relief.paused
        for order in self._supply.ready([self._relief.live(pool.loads()) for pool in self._earlier]):
            self._carry_out(order)

    def take(self, message: Any) -> bool:
        """Take a message if it is for the supply; say whether it is."""
        if isinstance(message, _Answer):
            self._answer(message)
        elif isinstance(message, Freed):
            self._supply.freed(message)
        elif isinstance(message, Waiting):
            self._supply.wait(message)
        else:
            return False
        return True

    def _carry_out(self, order: SupplyOrder) -> None:
        if isinstance(order, Make):
            piece = msgspec.structs.replace(
                order.piece,
                caution=self._suspicion.caution(order.piece.shard),
                ceilings=dict(self._ceilings),
            )
            self._call(order.stage, order.worker, "make", piece.number, piece)
        elif isinstance(order, More):
            self._call(order.stage, order.worker, "more", order.piece, order.piece)
        elif isinstance(order, GiveUp):
            self._earlier[order.stage].submit("give_up", order.piece, worker=order.worker)
        elif isinstance(order, Feed):
            self._last.feed(order.worker, order.shard, order.attempt, order.block)
        elif isinstance(order, Abort):
            self._last.feed(order.worker, order.shard, order.attempt, order.reason)
        elif isinstance(order, Keep):
            self._keep(order.ref)
        elif isinstance(order, Drop):
            self._drop(order.ref)

    def _call(self, stage: int, worker: int, method: str, piece: int, argument: Any) -> None:
        future = self._earlier[stage].submit(method, argument, worker=worker)
        asked, clock = self._clock(), self._clock
        future.add_done_callback(lambda done: self._put(_Answer(piece, done, stage, asked, clock())))

    def _tell(self, answer: _Answer) -> None:
        """Say how long a worker was at a piece."""
        worker, shard = getattr(answer.future, "worker", -1), self._supply.shard_of(answer.piece)
        seconds = self._spans.seconds(answer.stage, worker, answer.asked, answer.answered)
        if shard is None:
            return  # it is not needed any more
        attempt, error = self._supply.attempt_of(shard), answer.future.exception()
        what = Worked(answer.stage, worker, shard, attempt, seconds, "going on")
        if error is not None:
            what = msgspec.structs.replace(
                what, outcome="lost" if isinstance(error, WorkerDied) else "failed"
            )
        elif isinstance(outcome := answer.future.result(), Ended):
            what = msgspec.structs.replace(
                what, outcome="done", rows=outcome.ledger.read, timings=outcome.timings
            )
        elif isinstance(outcome, Broken):
            what = msgspec.structs.replace(what, outcome="failed")
        self._watch(what)

    def _answer(self, answer: _Answer) -> None:
        self._tell(answer)
        error = answer.future.exception()
        if error is None:
            outcome = answer.future.result()
            if outcome is None:
                self._supply.idle(answer.piece)
            else:
                if isinstance(outcome, Ended):
                    self._relief.worked(getattr(answer.future, "worker", -1))
                self._supply.complete(outcome)
        elif isinstance(error, WorkerDied):
            worker = getattr(answer.future, "worker", -1)
            blame = self._blame(answer.piece, worker, error)
            if isinstance(blame, ErrorReport):
                self._supply.complete(Broken(answer.piece, blame))
            else:
                self._supply.complete(Gone(answer.piece, worker, str(error), blame))
        else:
            self._supply.complete(Broken(answer.piece, failures.of_a_call(error)))

    def _blame(self, piece: int, worker: int, error: WorkerDied) -> ErrorReport | bool:
        shard = self._supply.shard_of(piece)
        if shard is None:
            return False
        rows = self._supply.rows_of(piece)
        blame = blame_for(error, shard, worker, self._relief, self._suspicion, rows=rows)
        if self._relief.ended(worker) and self._relief.is_too_big(shard):
            self._supply.give_up(shard, str(error))
        return blame
