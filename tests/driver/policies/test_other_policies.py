"""The small policies, each alone."""

from __future__ import annotations

import pytest

from headrace.core.events import BatchShrunk, RowsRead, WorkerRetired
from headrace.core.work import (
    AttemptLost,
    Done,
    ErrorReport,
    Failed,
    Fault,
    Faults,
    Ledger,
    Remainder,
    Shard,
    Split,
    Task,
    Timings,
)
from headrace.driver.policies.poison_rows import PoisonRowDetector
from headrace.driver.policies.shards import SAMPLE, EarlyCommit, ErrorBudget, LedgerCheck
from headrace.driver.policies.workers import GROW_AFTER, BatchCeilings, PoolScaling
from headrace.driver.policy import (
    DivideShard,
    Emit,
    ResizePool,
    Verdict,
    WorkerDeath,
)
from headrace.driver.ports import InMemoryCommitter
from headrace.errors import NeverReady, NodeLost, TooManyErrors, WorkerDied

from .views import FakeView

SHARD = Shard(0, (Split(0, 0, 1, 100),))


def finished(read: int, failed: int = 0, rest: Remainder | None = None) -> Done:
    faults = Faults(((Fault("map(f)", "ValueError", "bad"), failed),) if failed else ())
    return Done(0, 0, (), Ledger(read, read - failed, failed), Timings(), faults=faults, rest=rest)


@pytest.mark.parametrize("error", [NeverReady("loading failed"), NodeLost("node 7 is gone")])
def test_no_shard_is_charged_with_a_death_from_outside(error: WorkerDied) -> None:
    poison_rows = PoisonRowDetector()
    for _ in range(9):
        assert poison_rows.on_death(WorkerDeath(error, 1, 0)) == Verdict(charged=False)
    assert not poison_rows.poison_rows(0).watched
    assert poison_rows.on_death(WorkerDeath(WorkerDied("killed"), 1, 0)) == Verdict(charged=True)


def test_ceilings_only_come_down_and_reach_every_later_task() -> None:
    committer = InMemoryCommitter()
    ceilings = BatchCeilings(committer)
    for rows in (512, 1024, 256):
        ceilings.on_message(BatchShrunk(1, "predict(M)", 2 * rows, rows), 0.0)
    assert committer.ceilings == {"predict(M)": 256}
    assert ceilings.before_submit(Task(SHARD, 0)).ceilings == {"predict(M)": 256}


def test_an_attempt_may_end_early_and_leaves_a_shard() -> None:
    policy, view = EarlyCommit(5.0), FakeView(planned=[SHARD])
    assert policy.before_submit(Task(SHARD, 0)).every == 5.0
    decision = policy.on_outcome(finished(40, rest=Remainder(0, 40, 40)), view)
    assert isinstance(decision, DivideShard) and decision.early
    assert [part.rows for part in decision.parts] == [40, 60]
    whole = finished(100)
    assert policy.on_outcome(whole, view) is whole
    stale = finished(40, rest=Remainder(0, 40, 40))
    assert policy.on_outcome(stale, FakeView(planned=[SHARD], stale=True)) is stale


class Counts:
    """Accounts that expect as many rows as a shard has."""

    def check(self, shard: Shard, done: Done) -> ErrorReport | None:
        return None if done.ledger.read == shard.rows else ErrorReport("LedgerMismatch", "wrong")


def test_a_wrong_ledger_is_not_committed() -> None:
    policy, view = LedgerCheck(Counts()), FakeView(planned=[SHARD])  # type: ignore[arg-type]
    whole, rest = finished(100), finished(40, rest=Remainder(0, 40, 40))
    assert policy.on_outcome(whole, view) is whole
    assert policy.on_outcome(rest, view) is rest, "what is left is not counted"
    wrong = policy.on_outcome(finished(99), view)
    assert isinstance(wrong, Failed) and wrong.error.kind == "LedgerMismatch"
    lost = AttemptLost(0, 0, "killed")
    assert policy.on_outcome(lost, view) is lost


def test_rows_that_fail_in_open_shards_count_until_the_shard_is_done() -> None:
    budget, faults = ErrorBudget(5), finished(10, 3).faults
    budget.on_message(RowsRead(1, 0, 10, faults), 0.0)
    budget.on_message(RowsRead(1, 0, 20, faults), 0.0)
    budget.on_outcome(finished(30, 3), FakeView())
    with pytest.raises(TooManyErrors, match="6 of the 40 rows"):
        budget.on_message(RowsRead(1, 1, 10, faults), 0.0)


def test_a_share_is_judged_once_enough_rows_were_read() -> None:
    budget = ErrorBudget(0.01)
    budget.on_outcome(finished(SAMPLE - 1, 500), FakeView())
    with pytest.raises(TooManyErrors, match="500 of the 1,000 rows"):
        budget.on_outcome(finished(1), FakeView())


def test_earlier_drivers_count() -> None:
    before = finished(100, 5)
    budget = ErrorBudget(5, before.ledger, before.faults)
    with pytest.raises(TooManyErrors, match="6 of the 110 rows"):
        budget.on_outcome(finished(10, 1), FakeView())


def test_pools_with_bounds_grow_with_their_work_and_the_others_stay() -> None:
    scaling = PoolScaling([(2, 2), (1, 4)])

    def sizes(now: float) -> list[tuple[int, int]]:
        view = FakeView(now, [{0: 1, 1: 1}, {2: 1}], waiting=[9, 9])
        actions = list(scaling.after_schedule(view))
        assert sum(isinstance(action, Emit) for action in actions) * 2 == len(actions)
        return [(action.stage, action.size) for action in actions if isinstance(action, ResizePool)]

    assert sizes(0.0) == []
    assert sizes(GROW_AFTER) == [(1, 2)]
    assert sizes(2 * GROW_AFTER) == [(1, 4)]


def test_a_pool_that_lost_a_worker_for_want_of_memory_does_not_grow_again() -> None:
    scaling = PoolScaling([(1, 2)])
    busy = [FakeView(now, [{0: 1}], waiting=[9]) for now in (0.0, GROW_AFTER, 10.0, 20.0)]
    assert not list(scaling.after_schedule(busy[0]))
    assert ResizePool(0, 2) in list(scaling.after_schedule(busy[1]))
    scaling.on_message(WorkerRetired(0, 0, 1, 1, replaced=False, idle=False, reason="memory"), 5.0)
    assert not [*scaling.after_schedule(busy[2]), *scaling.after_schedule(busy[3])]
