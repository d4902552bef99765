"""The loop alone: no process, no thread, no time. Workers are scripted, and policies record what they are asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import msgspec
import pytest

from headrace.core.engine_ports import PoolSpec
from headrace.core.events import Event, ShardDivided, ShardsAdded, WorkerLost
from headrace.core.messages import MoreShards
from headrace.core.work import (
    ErrorReport,
    Failed,
    Outcome,
    Proposal,
    Remainder,
    Shard,
    Split,
    Task,
)
from headrace.driver.loop import GROUP, Runner
from headrace.driver.policies.shards import EarlyCommit, Growth
from headrace.driver.policies.workers import DUMP, StallDetector
from headrace.driver.policy import (
    Action,
    Decision,
    DumpStacks,
    Emit,
    EndRun,
    EndWorker,
    Policy,
    Restrict,
    RunView,
)
from headrace.driver.ports import NoObserver, RunPorts
from headrace.driver.scheduler import Scheduler
from headrace.errors import ShardFailed, Stalled, StepError
from headrace.testing import FakeClock, FakeEngine

from .doubles import FakeInbox, RecordingCommitter, ScriptedWorker, done


class EventList(NoObserver):
    """An observer that collects events."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def on_event(self, event: Event) -> None:
        self.events.append(event)


class Rig:
    """A runner over shards of one row, on a fake engine and a fake clock."""

    def __init__(
        self,
        shards: int | list[Shard],
        script: Callable[[Task], Outcome] = done,
        policies: Iterable[Policy] = (),
        *,
        workers: int = 2,
        schema: bytes | None = b"schema",
        faults: Any = None,
        max_attempts: int = 3,
        expects: bool = False,
    ) -> None:
        self.clock, self.observer, self.committer = FakeClock(), EventList(), RecordingCommitter()
        self.slept: list[float] = []
        planned = (
            shards
            if isinstance(shards, list)
            else [Shard(i, (Split(0, i, i + 1, 1),)) for i in range(shards)]
        )
        self.scheduler = Scheduler(
            planned,
            merge=lambda known, new: (new, True),
            schema=schema,
            max_attempts=max_attempts,
            expects=expects,
        )
        ports = RunPorts(self.observer, self.clock, FakeInbox(self.clock), self.slept.append)
        self.runner = Runner(self.scheduler, self.committer, policies=policies, ports=ports)
        self.engine = FakeEngine(faults)
        spec = PoolSpec("stage 1", partial(ScriptedWorker, script), workers)
        self.pool = self.engine.start(spec, self.runner.notify)

    def run(self) -> None:
        self.runner.run([self.pool])

    @property
    def begun(self) -> list[int | None]:
        return [shard for _, method, shard in self.engine.calls if method == "attempt"]


def test_every_shard_is_submitted_once_and_committed_once() -> None:
    rig = Rig(5)
    rig.run()
    assert sorted(rig.begun) == list(range(5))  # type: ignore[type-var]
    committed = [call for call in rig.committer.calls if call.startswith("accept")]
    assert sorted(committed) == [f"accept {shard}" for shard in range(5)]
    assert rig.committer.calls[-1] == "commit_accepted", "nothing is left that is not durable"


def test_commits_that_come_fast_share_a_flush() -> None:
    rig = Rig(100)
    rig.run()
    assert rig.committer.calls.count("commit_accepted") < 5
    assert rig.clock.now < 5 * GROUP


def test_the_schema_is_durable_before_an_attempt_goes_on() -> None:
    def script(task: Task) -> Outcome:
        if task.schema is None:
            return Proposal(task.shard.index, task.attempt, b"schema")
        assert rig.committer.calls[0] == "settle"
        return done(task)

    rig = Rig(3, script, schema=None, workers=1)
    rig.run()
    assert rig.committer.calls[0] == "settle" and rig.committer.calls.count("settle") == 1
    assert [method for _, method, _ in rig.engine.calls].count("proceed") == 1


def test_a_lost_attempt_is_made_again() -> None:
    rig = Rig(2, faults={(0, 0): "die", (0, 1): "die"})
    rig.run()
    assert rig.begun.count(0) == 3
    assert rig.committer.ledger.written == 2
    assert sum(isinstance(event, WorkerLost) for event in rig.observer.events) == 2


def test_a_shard_that_kills_its_workers_ends_the_run_and_the_others_stay_committed() -> None:
    rig = Rig(3, faults={(1, attempt): "die" for attempt in range(3)}, workers=1)
    with pytest.raises(ShardFailed, match="Shard 1 ended its worker 3 times"):
        rig.run()
    assert rig.committer.calls[-1] == "commit_accepted" and "accept 0" in rig.committer.calls


def test_an_error_of_the_users_code_ends_the_run() -> None:
    def script(task: Task) -> Outcome:
        return Failed(task.shard.index, task.attempt, ErrorReport("StepError", "map(f) failed"))

    with pytest.raises(StepError, match=r"map\(f\) failed"):
        Rig(2, script).run()


# ---------------------------------------------------------------- policies


class RecordingPolicy(Policy):
    """Records what it is asked; ``actions`` are wanted at the first turn."""

    def __init__(self, *actions: Action) -> None:
        self.asked: list[str] = []
        self.actions = list(actions)

    def before_schedule(self, view: RunView) -> Iterable[Action]:
        self.asked.append("before_schedule")
        wanted, self.actions = self.actions, []
        return wanted

    def after_schedule(self, view: RunView) -> Iterable[Action]:
        self.asked.append("after_schedule")
        return ()

    def before_submit(self, task: Any) -> Any:
        self.asked.append(f"before_submit {task.shard.index}")
        return task

    def on_outcome(self, outcome: Outcome, view: RunView) -> Decision:
        self.asked.append(f"on_outcome {outcome.shard}")
        return outcome


def test_policies_are_asked_in_the_order_of_the_loop() -> None:
    policy = RecordingPolicy()
    Rig(1, policies=[policy]).run()
    assert policy.asked == ["before_schedule", "before_submit 0", "after_schedule", "on_outcome 0"]


def test_later_policies_see_the_outcome_that_earlier_ones_made_of_it() -> None:
    class Refuses(Policy):
        def on_outcome(self, outcome: Outcome, view: RunView) -> Decision:
            return Failed(outcome.shard, outcome.attempt, ErrorReport("StepError", "refused"))

    class Sees(Policy):
        seen: Outcome | None = None

        def on_outcome(self, outcome: Outcome, view: RunView) -> Decision:
            self.seen = outcome
            return outcome

    last = Sees()
    with pytest.raises(StepError, match="refused"):
        Rig(1, policies=[Refuses(), last]).run()
    assert isinstance(last.seen, Failed)


def test_a_policy_that_ends_the_run_does_so_after_a_flush() -> None:
    class EndsAfterTwo(Policy):
        def after_schedule(self, view: RunView) -> Iterable[Action]:
            if rig.committer.ledger.written >= 2:
                yield EndRun(ErrorReport("StepError", "enough"))

    rig = Rig(50, policies=[EndsAfterTwo()], workers=1)
    with pytest.raises(StepError, match="enough"):
        rig.run()
    assert rig.committer.calls[-1] == "commit_accepted" and rig.committer.ledger.written < 50


def test_workers_that_are_ending_get_no_work() -> None:
    class Excludes(Policy):
        def before_schedule(self, view: RunView) -> Iterable[Action]:
            yield Restrict(frozenset({0}), ahead=False)

    rig = Rig(6, policies=[Excludes()])
    rig.run()
    assert {worker for worker, _, _ in rig.engine.calls} == {1}


def test_a_worker_that_a_policy_ends_is_replaced_and_events_reach_policies_too() -> None:
    class MessageList(Policy):
        def __init__(self) -> None:
            self.messages: list[Any] = []

        def on_message(self, message: Any, now: float) -> None:
            self.messages.append(message)

    event = WorkerLost(0, "a test")
    collected = MessageList()
    rig = Rig(2, policies=[RecordingPolicy(EndWorker(0, "a test"), Emit(event)), collected], workers=1)
    rig.run()
    assert {worker for worker, _, _ in rig.engine.calls} == {1}
    assert event in collected.messages and event in rig.observer.events


def test_stacks_are_printed_and_waited_for() -> None:
    rig = Rig(1, policies=[RecordingPolicy(DumpStacks(1.5))])
    rig.run()
    assert rig.slept == [1.5]


def test_the_rest_that_an_attempt_leaves_becomes_a_shard() -> None:
    def script(task: Task) -> Outcome:
        if task.shard.rows < 10:
            return done(task)
        split = task.shard.splits[0]
        assert task.every == 5.0
        return done(task, rest=Remainder(0, split.low + 4, 4))

    rig = Rig([Shard(0, (Split(0, 0, 10, 10),))], script, policies=[EarlyCommit(5.0)])
    rig.run()
    assert [call for call in rig.committer.calls if call != "commit_accepted"] == [
        "divide 0 early",
        "accept 0",
        "accept 1",
    ]
    assert [event.parts for event in rig.observer.events if isinstance(event, ShardDivided)] == [2]


def test_a_run_in_which_nothing_happens_any_more_ends() -> None:
    """A worker that answers for another attempt looks idle: nobody works, and no message comes."""

    def script(task: Task) -> Outcome:
        return done(msgspec.structs.replace(task, attempt=task.attempt + 7))

    rig = Rig(1, script, policies=[StallDetector(30.0)])
    with pytest.raises(Stalled, match="Nothing has happened for 30 s"):
        rig.run()
    assert rig.slept == [DUMP]


def test_further_shards_come_while_the_run_goes_on() -> None:
    """They are asked for once at a time, and numbered behind what a division has made. The run waits for them."""
    asked: list[int] = []

    def want() -> None:
        asked.append(len(rig.committer.calls))
        more = [Shard(77, (Split(len(asked), 0, 10, 10),), f"{7 + len(asked)}")] if len(asked) < 3 else []
        rig.runner.notify(-1, MoreShards(tuple(more)))

    def script(task: Task) -> Outcome:
        split = task.shard.splits[0]
        return done(task, rest=Remainder(0, 4, 4)) if split.length == 10 else done(task)

    rig = Rig(
        [Shard(0, (Split(0, 0, 10, 10),), "7")],
        script,
        policies=[EarlyCommit(5.0), Growth(want)],
        expects=True,
    )
    rig.run()
    assert len(asked) == 3
    committed = [call for call in rig.committer.calls if call.startswith("accept")]
    assert sorted(committed) == [f"accept {number}" for number in range(6)]
    added = [event for event in rig.observer.events if isinstance(event, ShardsAdded)]
    assert [(event.shards, event.rows) for event in added] == [(1, 10), (1, 10)]
