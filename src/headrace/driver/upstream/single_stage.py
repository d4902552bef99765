"""What stands in the place of ``UpstreamPools`` in a plan of one stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.core.work import ErrorReport, Outcome, Task


class SingleStage:
    """There are no stages before the last: nothing to prepare, nothing to add."""

    error: ErrorReport | None = None

    def prepare(self, task: Task, worker: int) -> None:
        """Nothing can be made before the attempt begins."""

    def open(self, task: Task, worker: int) -> Task:
        """Return the task as it is."""
        return task

    def schedule(self, loads: Sequence[Mapping[int, int]], *, needed_only: bool) -> None:
        """There is no block to ask for."""

    def received(self, message: Any) -> bool:
        """No message is for earlier stages."""
        return False

    def completed(self, outcome: Outcome) -> Outcome:
        """Return the outcome as it is."""
        return outcome
