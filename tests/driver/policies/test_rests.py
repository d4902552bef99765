"""Who is asked to leave a part of its shard to others, and when; and what becomes of what is left."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from headrace.core.events import RowsRead, WorkerReady
from headrace.core.messages import LeaveRest, RestLeft
from headrace.core.work import Remainder, Shard, Split, Task
from headrace.driver.policies.shards import HELPER, INTERVAL, WORTH, WorkSharing
from headrace.driver.policies.workers import Autoscaler
from headrace.driver.policy import DivideShard, Tell

from .views import FakeView

SHARDS = [Shard(n, (Split(n, 0, 1, 100),)) for n in range(4)]


def view_of(at_work: dict[int, tuple[int, int]], idle: Iterable[int] = (), **more: object) -> FakeView:
    """Some workers are at attempts, others have nothing to do."""
    calls = [dict.fromkeys(at_work, 1) | dict.fromkeys(idle, 0)]
    return FakeView(calls=calls, open=set(at_work), attempts=at_work, planned=list(SHARDS), **more)  # type: ignore[arg-type]


def asked(policy: WorkSharing, view: FakeView) -> list[Tell]:
    """Return who is asked a while later."""
    view.now += INTERVAL
    return [action for action in policy.after_schedule(view) if isinstance(action, Tell)]


def test_every_attempt_may_be_asked() -> None:
    assert WorkSharing(2).before_submit(Task(SHARDS[0], 0)).shared


def test_the_one_with_most_work_left_is_asked_for_the_worker_that_is_idle() -> None:
    policy, view = WorkSharing(3), view_of({0: (0, 0), 1: (1, 2)}, [2])
    for now, worker, shard, rows in ((0.0, 0, 0, 1), (0.0, 1, 1, 1), (1.0, 0, 0, 50), (1.0, 1, 1, 10)):
        policy.on_message(RowsRead(worker, shard, rows, of=100), now)
    view.now = 1.0
    assert asked(policy, view) == [Tell(0, 1, LeaveRest(WORTH, 2), 1, 2)]
    assert asked(policy, view) == [Tell(0, 0, LeaveRest(WORTH, 2), 0, 0)]  # the first has not left anything
    policy.on_message(RestLeft(9, 9, Remainder(0, 5, 5)), 1.0)  # now somebody has: begin anew
    assert asked(policy, view) == [Tell(0, 1, LeaveRest(WORTH, 2), 1, 2)]


def test_one_that_has_said_nothing_may_take_longest() -> None:
    policy, view = WorkSharing(3), view_of({0: (0, 0), 1: (1, 0)}, [2])
    policy.on_message(RowsRead(0, 0, 1, of=100), 0.0)
    policy.on_message(RowsRead(1, 3, 90, of=100), 0.0)  # of the shard before
    assert asked(policy, view) == [Tell(0, 1, LeaveRest(WORTH, 2), 1, 0)]


def test_the_one_whose_rows_have_become_slower_may_take_longest() -> None:
    policy, view = WorkSharing(3), view_of({0: (0, 0), 1: (1, 0)}, [2])
    for now, rows in ((0.0, 1), (1.0, 80), (3.0, 82)):
        policy.on_message(RowsRead(0, 0, rows, of=100), now)
        policy.on_message(RowsRead(1, 1, 1 + int(now * 20), of=100), now)
    view.now = 3.0
    assert [each.worker for each in asked(policy, view)] == [0]


def test_nobody_is_waited_for_before_the_first_is_asked() -> None:
    policy, busy = WorkSharing(2), view_of({0: (0, 0), 1: (1, 0)})
    assert not asked(policy, busy)
    idle = view_of({0: (0, 0)}, [1], now=busy.now)  # at once
    assert len([*policy.after_schedule(idle)]) == 1


def test_what_was_left_is_no_reason_to_wait_before_others_are_asked() -> None:
    policy, view = WorkSharing(4), view_of({0: (0, 0)}, [1, 2])
    assert len(asked(policy, view)) == 1
    policy.on_message(RestLeft(0, 0, Remainder(0, 40, 40)), view.now)
    assert len([*policy.after_schedule(view)]) == 1


def test_it_asks_no_more_often_than_it_says() -> None:
    policy, view = WorkSharing(2), view_of({0: (0, 0)}, [1])
    assert len(asked(policy, view)) == 1
    assert not list(policy.after_schedule(view))
    assert policy.next_wakeup(view.now) == view.now + INTERVAL


def test_many_idle_workers_ask_many_or_for_more_of_it() -> None:
    policy, view = WorkSharing(9), view_of({0: (0, 0), 1: (1, 0)}, [2, 3, 4, 5])
    assert [(each.worker, each.what) for each in asked(policy, view)] == [
        (0, LeaveRest(WORTH, 3)),
        (1, LeaveRest(WORTH, 3)),
    ]
    view = view_of({0: (0, 0), 1: (1, 0), 2: (2, 0)}, [3])
    assert [(each.worker, each.what) for each in asked(WorkSharing(9), view)] == [(0, LeaveRest(WORTH, 2))]


@pytest.mark.parametrize(
    "view",
    [
        view_of({0: (0, 0), 1: (1, 0)}),  # all are busy
        view_of({}, [0, 1]),  # nobody has anything
        view_of({0: (0, 0)}, [1], waiting=[1]),  # a shard waits
        view_of({0: (0, 0)}, [1], attempts_waiting=1),  # what is slow is the stage before
    ],
)
def test_nobody_is_asked(view: FakeView) -> None:
    assert not asked(WorkSharing(2), view)


def test_nobody_is_asked_while_nothing_is_to_begin() -> None:
    assert not asked(WorkSharing(2), view_of({0: (0, 0)}, [1], holds=True))


def test_a_paused_worker_is_not_idle() -> None:
    view = view_of({0: (0, 0)}, [1])
    view.open.add(1)
    assert not asked(WorkSharing(2), view)


def test_a_pool_that_may_grow_has_work_wait_for_the_next_worker() -> None:
    policy, view = WorkSharing(2), view_of({0: (0, 0)})
    policy.on_message(WorkerReady(0, 7.0), 0.0)
    assert asked(policy, view) == [
        Tell(0, 0, LeaveRest(HELPER + 7.0, 2), 0, 0)
    ]  # it will load its model, too
    view = view_of({0: (0, 0)}, [1], now=10.0)
    assert asked(policy, view) == [Tell(0, 0, LeaveRest(WORTH + 7.0, 2), 0, 0)]
    policy.on_message(WorkerReady(1, 7.0), 0.0)
    assert asked(policy, view) == [Tell(0, 0, LeaveRest(WORTH, 2), 0, 0)]


def test_a_pool_that_may_grow_by_several_asks_for_a_piece_for_each() -> None:
    assert asked(WorkSharing(4), view_of({0: (0, 0)})) == [Tell(0, 0, LeaveRest(HELPER, 4), 0, 0)]
    scaler = Autoscaler(1, 9)
    scaler.expect_work()
    assert scaler.wanted({0: 1}, waiting=3, now=0.0) == 4


def test_what_is_left_becomes_a_shard() -> None:
    policy, view = WorkSharing(2), view_of({0: (1, 2)}, [1])
    policy.on_message(RestLeft(1, 2, Remainder(0, 40, 40)), 0.0)
    (division,) = policy.before_schedule(view)
    assert isinstance(division, DivideShard) and division.early
    assert [(part.index, part.name, part.rows) for part in division.parts] == [(1, "", 40), (4, "1.001", 60)]
    assert not list(policy.before_schedule(view))


def test_what_is_left_of_an_attempt_that_is_over_is_no_news() -> None:
    """Its outcome said it, or it was lost, and the shard is done again as a whole."""
    policy, view = WorkSharing(2), view_of({0: (1, 3)}, [1])
    policy.on_message(RestLeft(1, 2, Remainder(0, 40, 40)), 0.0)
    assert not list(policy.before_schedule(view))


def test_news_that_come_in_the_wrong_order() -> None:
    policy, view = WorkSharing(2), view_of({0: (1, 2)}, [1])
    view.planned[1] = Shard(1, (Split(1, 0, 1, 100, high=40),))
    policy.on_message(RestLeft(1, 2, Remainder(0, 60, 60)), 0.0)
    assert not list(policy.before_schedule(view))
