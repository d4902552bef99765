"""Refuses to commit a shard whose rows are not all accounted for."""

from __future__ import annotations

from headrace.core.work import Done, Failed, Outcome
from headrace.driver.policy import Decision, Policy
from headrace.driver.run_view import RunView
from headrace.driver.shard_division import split_off
from headrace.plan.accounts import Accounts


class LedgerCheck(Policy):
    """Compares the ledger of each finished attempt with what ``accounts`` expects of its shard."""

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts

    def on_outcome(self, outcome: Outcome, view: RunView) -> Decision:
        """Turn an outcome with a wrong ledger into an error that ends the run."""
        if not isinstance(outcome, Done) or not view.is_current(outcome):
            return outcome
        shard = view.shard(outcome.shard)
        if outcome.rest is not None:
            shard = split_off(shard, outcome.rest, view.shards)[0]
        wrong = self._accounts.check(shard, outcome)
        return outcome if wrong is None else Failed(outcome.shard, outcome.attempt, wrong)
