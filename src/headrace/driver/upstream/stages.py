"""What the upstream scheduler knows of the stages before the last."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from headrace.core.work import Shard
from headrace.plan.partitioning import RowRange, row_ranges


def _one_per_split(shard: Shard) -> Iterable[RowRange]:
    return row_ranges(shard.splits, 0)


@dataclass(frozen=True, slots=True)
class UpstreamStages:
    """The stages before the last, in order.

    ``steps`` has the number of steps of each stage, ``limits`` the indices of those that are ``limit``s. A stage
    whose steps want batches of a fixed size has it in ``units``: the rows of its tasks are multiples of that.
    ``origins`` has, for each step of all stages, the last one too, the step of the plan that it is a part of.
    ``split`` divides a shard into the tasks of the first stage.
    """

    steps: Sequence[int]
    limits: Sequence[Sequence[int]]
    units: Sequence[int] = ()
    origins: Sequence[int] = ()
    split: Callable[[Shard], Iterable[RowRange]] = _one_per_split

    @property
    def count(self) -> int:
        """The number of stages."""
        return len(self.steps)

    @property
    def limited(self) -> bool:
        """True if one of the steps is a ``limit``."""
        return any(self.limits)

    @property
    def limit_count(self) -> int:
        """The number of ``limit`` steps."""
        return sum(map(len, self.limits))

    def unit(self, stage: int) -> int:
        """Return the rows of which a stage's tasks are multiples; 0: any number."""
        return self.units[stage] if self.units else 0
