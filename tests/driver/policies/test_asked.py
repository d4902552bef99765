"""What a run does that somebody who watches has asked to pause, to end, or to have other workers and limits."""

from __future__ import annotations

import pytest

from headrace.core.asked import RunAsked
from headrace.core.messages import EndEarly, RunInterrupted
from headrace.core.work import Done, Fault, Faults, Ledger, Shard, Task, Timings
from headrace.driver.policies.shards import ErrorBudget
from headrace.driver.policies.workers import Interruption, PoolScaling
from headrace.driver.policy import Action, Emit, ResizePool, Restrict, StopRun, Tell
from headrace.errors import TooManyErrors

from .views import FakeView

HOLD = Restrict(begin=False)
BUSY = {"calls": [{0: 1, 1: 2}], "open": {0, 1}, "attempts": {0: (4, 0), 1: (5, 1)}}


def actions(policy: Interruption | PoolScaling, view: FakeView) -> list[Action]:
    return [*policy.before_schedule(view), *policy.after_schedule(view)]


def told(shard: int, attempt: int, worker: int) -> Tell:
    return Tell(0, worker, EndEarly(), shard, attempt)


def test_a_pause_ends_what_is_under_way_and_goes_on() -> None:
    policy = Interruption(waits=True)
    assert actions(policy, FakeView(**BUSY)) == []
    policy.on_message(RunAsked(paused=True), 0.0)
    assert actions(policy, FakeView(**BUSY)) == [HOLD, told(4, 0, 0), told(5, 1, 1)]
    later = FakeView(
        calls=[{0: 1, 1: 0}], open={0}, attempts={0: (6, 0)}
    )  # the next that it was given before
    assert actions(policy, later) == [HOLD, told(6, 0, 0)]
    held = RunAsked(paused=True, held=True)
    assert actions(policy, FakeView(calls=[{0: 0, 1: 0}])) == [HOLD, Emit(held)]
    policy.on_message(held, 1.0)  # as all policies hear it
    assert actions(policy, FakeView(calls=[{0: 0, 1: 0}])) == [HOLD], "it waits for as long as it takes"
    policy.on_message(RunAsked(), 9e9)
    assert actions(policy, FakeView(**BUSY)) == []


def test_what_cannot_end_early_goes_on_to_its_end() -> None:
    policy = Interruption(waits=False)
    policy.on_message(RunAsked(paused=True), 0.0)
    assert actions(policy, FakeView(**BUSY)) == [HOLD]


def test_an_end_waits_for_what_is_under_way() -> None:
    policy = Interruption(waits=True)
    policy.on_message(RunAsked(paused=True, ends=True), 0.0)
    assert actions(policy, FakeView(now=1e6, **BUSY)) == [HOLD]
    waits_for_what_never_begins = FakeView(calls=[{0: 0, 1: 0}], open={0})
    assert actions(policy, waits_for_what_never_begins) == [HOLD, StopRun()]


def test_an_interrupt_has_the_last_word() -> None:
    policy = Interruption(waits=True)
    policy.on_message(RunAsked(paused=True), 0.0)
    policy.on_message(RunInterrupted(), 0.0)
    assert actions(policy, FakeView(**BUSY)) == [HOLD, Tell(0, 0, EndEarly()), Tell(0, 1, EndEarly())]


def test_workers_that_are_too_many_get_nothing_more() -> None:
    policy = PoolScaling([(4, 4)], [0])
    assert actions(policy, FakeView(calls=[dict.fromkeys(range(4), 2)])) == []
    policy.on_message(RunAsked(workers=2), 0.0)
    busy = FakeView(calls=[{0: 1, 1: 1, 5: 2, 7: 1}])
    assert [*policy.before_schedule(busy)] == [Restrict(ending=frozenset({5, 7})), ResizePool(0, 2)]
    actions(policy, busy)
    assert actions(policy, FakeView(calls=[{0: 1, 1: 1}])) == []
    policy.on_message(RunAsked(workers=6), 0.0)
    kinds = [type(action) for action in actions(policy, FakeView(calls=[{0: 1, 1: 1}]))]
    assert kinds == [ResizePool, Emit]


def test_a_stage_that_says_how_many_workers_it_has_keeps_them() -> None:
    policy = PoolScaling([(1, 1), (2, 2)], [1])
    policy.on_message(RunAsked(workers=5), 0.0)
    found = actions(policy, FakeView(calls=[{0: 1}, {1: 1, 2: 1}], waiting=[9, 9]))
    assert [action.stage for action in found if isinstance(action, ResizePool)] == [1]


def test_a_pause_is_no_reason_to_shrink() -> None:
    policy = PoolScaling([(1, 4)])
    for now in range(8):
        actions(policy, FakeView(now=now, calls=[dict.fromkeys(range(4), 2)], waiting=[9]))
    idle = [FakeView(now=10 + now, calls=[dict.fromkeys(range(4), 0)], holds=True) for now in range(100)]
    assert [action for view in idle for action in actions(policy, view)] == []


def test_errors_and_how_many_there_may_be() -> None:
    budget, task = ErrorBudget(), Task(Shard(0, ()), 0)
    assert budget.before_submit(task) == task
    budget.on_message(RunAsked(on_error="reject", max_errors=2), 0.0)
    assert budget.before_submit(task).on_error == "reject"
    faults = Faults(((Fault("f", "ValueError", "no"), 3),))
    with pytest.raises(TooManyErrors, match="3 of the 100 rows"):
        budget.count(Done(0, 0, (), Ledger(100, 97, 3), Timings(), faults=faults))


def test_what_several_policies_ask_for_holds_together() -> None:
    both = Restrict(ending=frozenset({1}), ahead=False) & Restrict(ending=frozenset({2}), begin=False)
    assert both == Restrict(frozenset({1, 2}), ahead=False, needed_only=False, begin=False)
