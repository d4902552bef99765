"""Commits long shards in parts, so that less has to be done again after a crash."""

from __future__ import annotations

import msgspec

from headrace.core.work import Done, Outcome, Task
from headrace.driver.policy import Decision, DivideShard, Policy
from headrace.driver.run_view import RunView
from headrace.driver.shard_division import split_off


class EarlyCommit(Policy):
    """Lets an attempt end after ``seconds`` of work; the rest of its shard becomes a shard of its own."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def before_submit(self, task: Task) -> Task:
        """Say after how long an attempt may end."""
        return msgspec.structs.replace(task, every=self._seconds)

    def on_outcome(self, outcome: Outcome, view: RunView) -> Decision:
        """Divide a shard of which an attempt left the rest."""
        if not isinstance(outcome, Done) or outcome.rest is None or not view.is_current(outcome):
            return outcome
        shard = view.shard(outcome.shard)
        parts = split_off(shard, outcome.rest, view.shards, view.family(outcome.shard))
        return DivideShard(parts, early=True) if len(parts) > 1 else outcome
