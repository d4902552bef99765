"""A plan with its output open, and what the user asked for when it was opened."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from headrace.core.events import MachinesWorked
from headrace.core.work import Durability, Shard
from headrace.errors import REFUSALS, HeadraceError
from headrace.output.commit import ShardCommitter
from headrace.output.layout import Output
from headrace.output.publishing import remove_tree
from headrace.plan.logical import Plan
from headrace.plan.partitioning import Partitioning


class OpenRequest(msgspec.Struct, frozen=True):
    """What the user asked for, as far as opening the output is concerned."""

    mode: str
    on_change: str
    durability: Durability
    partitioning: Partitioning
    version: str
    incremental: bool = False
    refresh: bool = False
    gated: bool = False  # nothing is revealed before requirements were asked
    retries: bool = False  # rejected rows are tried again, and the input is left alone
    prepare: Callable[[Plan, Output], tuple[Plan, Partitioning]] | None = None  # see ``Source.prepared``
    run: str = ""  # the name of a run that begins; "": one of its own
    lists_input: bool = True  # the plan of a run that begins says which files there are


class Job:
    """A plan with its output open under our lock. A context manager: leaving it closes both."""

    def __init__(
        self,
        plan: Plan,
        output: Output,
        committer: ShardCommitter,
        *,
        resumed: bool,
        interrupted: bool = False,
        recorded: Mapping[str, Any] | None = None,
    ) -> None:
        """``interrupted``: an earlier driver has begun what is to be done.

        ``recorded``: what ``_SUCCESS`` says, where the finished run may be of another plan.
        """
        self.plan = plan
        self.output = output
        self.committer = committer
        self.resumed = resumed
        self.interrupted = interrupted
        self.recorded = recorded
        self.code: Mapping[str, str] = {}  # of the plan, as it is now
        self.machines: MachinesWorked | None = None  # which have done it, if it was a fleet

    @property
    def shards(self) -> list[Shard]:
        """The shards, as they were planned when the run began."""
        return self.committer.plan.shards

    @property
    def planned(self) -> list[Shard]:
        """The shards without those that were replaced."""
        replaced = self.committer.state.replaced
        return [shard for shard in self.shards if shard.index not in replaced] if replaced else self.shards

    @property
    def labels(self) -> list[str]:
        """What messages call the steps."""
        if self.recorded is not None:
            return [str(step["step"]) for step in self.recorded["ledger"]["steps"]]
        return [step.label() for step in self.plan.steps]

    @property
    def complete(self) -> bool:
        """True if the run is finished and all of its parts are there."""
        return self.committer.state.finished

    def __enter__(self) -> Job:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        try:
            if error is not None:
                with contextlib.suppress(OSError, HeadraceError):  # the first error is the one to report
                    self._save(error)
        finally:
            self.committer.close()
            self.output.close(forget=True)

    def _save(self, error: BaseException) -> None:
        """After an error: keep what was committed, and the record and report of a run that committed nothing.

        A plan that was refused leaves no trace.
        """
        try:
            self.committer.commit_accepted()
        finally:
            if self.committer.empty:
                self.committer.close()
                if isinstance(error, REFUSALS):
                    self.output.forget(self.committer.plan.run)
                else:
                    remove_tree(self.committer.folder / "staging")
