"""A view of a run that is plain data, for policies tested alone."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.core.work import Outcome, Shard


@dataclass
class FakeView:
    """See ``headrace.driver.policy.RunView``; the number of a stage is its place in ``calls``."""

    now: float = 0.0
    calls: list[dict[int, int]] = field(default_factory=lambda: [{}])
    used: list[dict[int, int]] = field(default_factory=lambda: [{}])
    waiting: list[int] = field(default_factory=lambda: [0])
    planned: list[Shard] = field(default_factory=list)
    held: int = 0
    attempts_waiting: int = 0
    messages: int = 0
    silence: float = 0.0
    nothing_begins: bool = False
    finished: bool = False
    holds: bool = False
    dividable: bool = True
    open: set[int] = field(default_factory=set)
    stale: bool = False
    attempts: dict[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def scheduler(self) -> FakeView:
        return self

    @property
    def blocks(self) -> FakeView:
        return self

    @property
    def stages(self) -> int:
        return len(self.calls)

    @property
    def count(self) -> int:
        return len(self.planned)

    def loads(self, stage: int) -> dict[int, int]:
        return self.calls[stage]

    def memory(self, stage: int) -> dict[int, int]:
        return self.used[stage]

    def tasks_waiting(self, stage: int) -> int:
        return self.waiting[stage]

    def open_workers(self, stage: int) -> set[int]:
        return self.open

    @property
    def at_work(self) -> dict[int, tuple[int, int]]:
        return self.attempts

    def is_current(self, outcome: Outcome) -> bool:
        return not self.stale

    def shard_of(self, number: int) -> Shard:
        return self.planned[number]

    def family(self, shard: int) -> set[tuple[int, ...]]:
        return set()
