"""Batch sizes that did not fit into the memory of one worker are not tried by the others."""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.core.events import BatchShrunk
from headrace.core.work import Task
from headrace.driver.policy import Policy
from headrace.driver.ports import Committer


class BatchCeilings(Policy):
    """Collects the ceilings of batch sizes that workers found, and passes them to the workers of later tasks."""

    def __init__(self, committer: Committer) -> None:
        """``committer`` holds the ceilings, also those of earlier drivers of the run."""
        self._committer = committer

    def on_message(self, message: Any, now: float) -> None:
        """Record a lower ceiling."""
        if isinstance(message, BatchShrunk):
            known = self._committer.ceilings.get(message.step)
            if known is None or message.now < known:
                self._committer.lower(message.step, message.now)

    def before_submit(self, task: Task) -> Task:
        """Add the ceilings known so far."""
        return msgspec.structs.replace(task, ceilings=dict(self._committer.ceilings))
