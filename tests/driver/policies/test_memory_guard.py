"""The memory guard alone: what it wants done with each measurement, and what follows from a worker's death."""

from __future__ import annotations

from typing import Any

from headrace.core.events import MemoryTaken, RowsRead, Worked, WorkerRetired
from headrace.core.messages import ShrinkBatches
from headrace.core.work import AttemptLost, Failed, Shard, Split
from headrace.driver.policies.memory import INTERVAL, INTERVAL_WHEN_SHORT, MemoryGuard, MemoryPolicy
from headrace.driver.policies.poison_rows import PoisonRowDetector
from headrace.driver.policy import (
    DivideShard,
    Emit,
    EndRun,
    EndWorker,
    Restrict,
    Tell,
    Verdict,
    WorkerDeath,
)
from headrace.errors import NeverReady, WorkerDied

from .views import FakeView

SHARD = Shard(0, (Split(0, 0, 1, 100),))


def view(now: float, *used: int, **more: Any) -> FakeView:
    """Return a view of workers 1, 2, … that use so many bytes of 1,000."""
    workers = dict(enumerate(used, 1))
    calls = dict.fromkeys(workers, 1)
    return FakeView(now, [calls], [workers], planned=[SHARD], **more)


def guard(*, shard_too_big: bool = False, raises: bool = False) -> MemoryGuard:
    return MemoryGuard(
        MemoryPolicy(1000, shard_too_big=shard_too_big), lambda: 0, PoisonRowDetector(raises=raises)
    )


def kinds(actions: Any) -> list[type]:
    return [type(action.event if isinstance(action, Emit) else action) for action in actions]


def retired(guard: MemoryGuard) -> None:
    """Have worker 1 ended: it uses 990 bytes of 1,000."""
    assert EndWorker in kinds(guard.before_schedule(view(9.0, 990)))


def lost(worker: int = 1, error: WorkerDied | None = None, **more: Any) -> WorkerDeath:
    return WorkerDeath(error or WorkerDied("it used too much"), worker, 0, **more)


def test_it_measures_now_and_then_and_more_often_when_memory_is_short() -> None:
    memory = guard()
    assert kinds(memory.before_schedule(view(0.0, 100))) == [MemoryTaken]
    assert kinds(memory.before_schedule(view(INTERVAL / 2, 100))) == []
    assert memory.next_wakeup(0.0) == INTERVAL
    assert kinds(memory.before_schedule(view(INTERVAL, 600))) == [MemoryTaken]
    assert memory.next_wakeup(1.0) == 1.0 + INTERVAL_WHEN_SHORT


def test_where_memory_gets_short_less_is_begun_and_batches_shrink() -> None:
    actions = list(guard().before_schedule(view(0.0, 600, 270)))
    assert kinds(actions) == [Tell, MemoryTaken, Restrict]
    assert actions[0] == Tell(0, 1, ShrinkBatches())
    assert actions[2] == Restrict(ahead=False, needed_only=True)


def test_the_biggest_worker_is_ended_and_gets_no_more_work() -> None:
    memory = guard()
    actions = list(memory.before_schedule(view(0.0, 600, 380)))
    assert kinds(actions) == [MemoryTaken, EndWorker, WorkerRetired, Restrict]
    end, restrict = actions[1], actions[3]
    assert isinstance(end, EndWorker) and (end.worker, end.stage, end.replaced, end.charged) == (
        1,
        0,
        False,
        False,
    )
    assert isinstance(restrict, Restrict) and restrict.ending == frozenset({1})
    assert kinds(memory.before_schedule(view(9.0, 600, 300))) == [MemoryTaken, Restrict], (
        "it takes time to end"
    )
    assert kinds(memory.before_schedule(FakeView(18.0, [{2: 1}], [{2: 300}]))) == [MemoryTaken]


def test_a_driver_that_uses_all_memory_ends_the_run() -> None:
    memory = MemoryGuard(MemoryPolicy(1000), lambda: 960)
    actions = list(memory.before_schedule(view(0.0, 10)))
    end = next(action for action in actions if isinstance(action, EndRun))
    assert end.error.kind == "OutOfMemory" and "this process alone takes" in end.error.message


def test_deaths_that_it_did_not_cause_are_left_to_others() -> None:
    assert guard().on_death(lost()) is None


def test_a_shard_that_does_not_fit_alone_is_divided() -> None:
    memory = guard()
    memory.on_message(RowsRead(1, 0, 40), 0.0)
    retired(memory)
    assert memory.on_death(lost()) == Verdict(restart=True)
    decision = memory.on_outcome(AttemptLost(0, 0, "", charged=False), view(1.0))
    assert isinstance(decision, DivideShard)
    assert [part.rows for part in decision.parts] == [20] * 5
    again = AttemptLost(0, 1, "", charged=False)
    assert memory.on_outcome(again, view(1.0)) is again, "it is divided once"


def test_a_worker_that_had_completed_something_proves_nothing_about_its_shard() -> None:
    memory = guard()
    memory.before_schedule(view(0.0, 100))
    memory.on_message(Worked(0, 1, 7, 0, 1.0, "done"), 0.0)
    retired(memory)
    assert memory.on_death(lost()) == Verdict()


def test_a_worker_that_did_not_even_load_ends_the_run() -> None:
    memory = guard()
    retired(memory)
    verdict = memory.on_death(lost(error=NeverReady("loading took all")))
    assert verdict is not None and verdict.error is not None
    assert "A worker alone does not fit into memory: loading took all" in verdict.error.message


def test_where_shards_cannot_be_divided_the_run_ends() -> None:
    memory = guard()
    retired(memory)
    memory.on_death(lost())
    decision = memory.on_outcome(AttemptLost(0, 0, "", charged=False), view(1.0, dividable=False))
    assert isinstance(decision, Failed) and "read in order, it is not divided" in decision.error.message


def test_a_single_row_that_does_not_fit_is_rejected_or_ends_the_run() -> None:
    one = FakeView(1.0, planned=[Shard(0, (Split(0, 0, 1, 1),))])
    outcome = AttemptLost(0, 0, "", charged=False)
    for raises in (False, True):
        memory = guard(raises=raises)
        retired(memory)
        memory.on_death(lost())
        decision = memory.on_outcome(outcome, one)
        if raises:
            assert isinstance(decision, Failed) and "row 0. Raise" in decision.error.message
        else:
            assert decision is outcome
            (reject,) = memory._poison_rows.poison_rows(0).skip
            assert (reject.row, reject.fault.kind) == (0, "OutOfMemory")


def test_each_machine_has_the_limit_for_itself() -> None:
    """Two workers on one and one on another take more than the limit together, and each machine less."""
    places = {1: "a", 2: "a", 3: "b"}
    memory = MemoryGuard(MemoryPolicy(1000), lambda: 900, machine=places.__getitem__)
    (taken,) = memory.before_schedule(view(0.0, 400, 300, 800))
    assert isinstance(taken, Emit) and taken.event == MemoryTaken(900, 0, (1500,), 2000)
    actions = list(memory.before_schedule(view(9.0, 400, 300, 960)))
    (ended,) = [action for action in actions if isinstance(action, EndWorker)]
    assert (ended.worker, ended.reason.count("On that machine the run took 960 B (1 worker 960 B)")) == (3, 1)
    (restrict,) = [action for action in actions if isinstance(action, Restrict)]
    assert restrict.ending == {3} and restrict.needed_only
    calm = list(memory.before_schedule(view(18.0, 400, 300)))
    assert not [action for action in calm if isinstance(action, Restrict)], "nobody is left on that machine"
