from __future__ import annotations

from headrace.core.work import AttemptLost
from headrace.driver.policies.workers import FIRST, LONGEST, RetryBackoff
from headrace.driver.policy import NEVER, Release

from .views import FakeView


def lost(shard: int, attempt: int = 0, *, charged: bool = True) -> AttemptLost:
    return AttemptLost(shard, attempt, "killed", charged=charged)


def resumed(backoff: RetryBackoff, now: float) -> list[tuple[int, int]]:
    """Return the shards and attempts that go on at a time."""
    actions = list(backoff.before_schedule(FakeView(now)))
    assert all(isinstance(action, Release) for action in actions)
    return [(action.outcome.shard, action.outcome.attempt) for action in actions]  # type: ignore[union-attr]


def test_each_death_over_a_shard_makes_the_pause_longer() -> None:
    backoff, view = RetryBackoff(), FakeView(0.0)
    for outcome in (lost(1), lost(1, 1), lost(2)):
        assert backoff.on_outcome(outcome, view) is None
    assert resumed(backoff, FIRST / 2) == [] and backoff.next_wakeup(FIRST / 2) == FIRST
    assert resumed(backoff, FIRST) == [(1, 0), (2, 0)]
    assert resumed(backoff, 2 * FIRST) == [(1, 1)]
    assert backoff.next_wakeup(2 * FIRST) == NEVER


def test_a_pause_has_an_end_however_often_workers_die() -> None:
    backoff = RetryBackoff()
    for attempt in range(40):
        backoff.on_outcome(lost(0, attempt), FakeView(0.0))
    assert resumed(backoff, LONGEST) == [(0, attempt) for attempt in range(40)]


def test_a_shard_that_is_not_charged_is_tried_again_at_once() -> None:
    outcome = lost(0, charged=False)
    assert RetryBackoff().on_outcome(outcome, FakeView(0.0)) is outcome
