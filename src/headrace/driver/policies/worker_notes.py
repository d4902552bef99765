"""What workers found out: the others are told, or the user."""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.core.events import BatchShrunk
from headrace.core.warn import warn_of_pickling
from headrace.core.work import ObjectsPickled, Task
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


class PickleWarnings(Policy):
    """Warns of each column of Python objects that is pickled between processes."""

    def __init__(self) -> None:
        self._columns: set[str] = set()

    def on_message(self, message: Any, now: float) -> None:
        """Warn of a column of which the user was not told before."""
        if isinstance(message, ObjectsPickled) and message.column not in self._columns:
            self._columns.add(message.column)
            warn_of_pickling(message.column, message.kinds)
