"""64 machines share 25,600 shards in virtual time: they ask the store little, and none waits long for work.

The decisions are those of ``Fleet`` and its board. Work, the clock and the notes are simulated.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from headrace.annex.fleet import machine as machines
from headrace.annex.fleet.board import Ended, FleetPlan, Pace, Part, ended_name, weight_of
from headrace.annex.fleet.machine import PLAN, WATCH, Fleet
from headrace.core.work import Shard, Split
from headrace.plan.physical import SavedPlan

SECONDS = 10.0  # of work for a shard
LISTED = 1_000  # names in an answer
OF_A_SHARD = 4  # requests: the rows are read, their part is written, and both are told


class Clock:
    """What happens when, one after another."""

    def __init__(self) -> None:
        self.now = 0.0
        self._order = itertools.count()
        self._coming: list[tuple[float, int, Callable[[], None]]] = []

    def monotonic(self) -> float:
        return self.now

    def after(self, seconds: float, then: Callable[[], None]) -> None:
        heapq.heappush(self._coming, (self.now + seconds, next(self._order), then))

    def run(self) -> None:
        while self._coming:
            self.now, _, then = heapq.heappop(self._coming)
            then()


class CountedNotes:
    """Notes that all see, and what was asked."""

    def __init__(self) -> None:
        self.there = {PLAN: b""}
        self.asked: Counter[str] = Counter()

    def add(self, name: str, data: bytes) -> bool:
        self.asked[f"write {name.split('-')[0]}"] += 1
        return self.there.setdefault(name, data) is data

    def read(self, name: str) -> bytes | None:
        self.asked[f"read {name.split('-')[0]}"] += 1
        return self.there.get(name)

    def names(self) -> list[str]:
        found = list(self.there)
        self.asked["list"] += max(1, -(-len(found) // LISTED))
        return found


class VirtualFleet(Fleet):
    """The fleet as one machine sees it, where outputs are lists of when each shard was committed."""

    def __init__(self, plan: FleetPlan, world: World) -> None:
        nothing: Any = SimpleNamespace(source=None, sink=SimpleNamespace(target=None))
        super().__init__(nothing, nothing, plan, world.notes, None)  # type: ignore[arg-type]
        self._world = world

    def sink_of(self, machine: str) -> Any:
        return machine

    def completes(self) -> bool:
        self._world.notes.asked["read lock"] += 1
        return self._world.finished is not None

    def _lives(self, sink: Any) -> bool:
        self._world.notes.asked["read lock"] += 1
        return True

    def _overtaken(self, machine: str) -> Ended:
        run = self._world.runs[machine]
        done = {number for number, when in enumerate(run.committed) if when <= self._world.clock.now}
        shards = [msgspec.structs.replace(shard, index=number) for number, shard in enumerate(run.shards)]
        parts = self.board.read_claims(self._world.clock.now)[machine]
        return self.board.handover(parts, shards[: 1 + max(done, default=-1)], done)


class Run:
    """A run of a machine, with what it has claimed so far."""

    def __init__(self, world: World, fleet: VirtualFleet, times: float) -> None:
        self.world, self.fleet, self.times = world, fleet, times
        self.name = f"m{len(world.runs):07}"
        self.began = world.clock.now
        self.parts: list[Part] = []
        self.shards: list[Shard] = []
        self.committed: list[float] = []
        self.weight = 0.0
        world.runs[self.name] = self

    def claim(self) -> bool:
        """Do a slice, and come back; False if there is none."""
        world, seconds = self.world, self.world.clock.now - self.began
        taken = self.fleet.take(self.name, Pace(seconds, self.weight), self.weight, seconds)
        if taken is None:
            return False
        self.parts.append(taken[0])
        self.weight += weight_of(taken[1])
        until = world.clock.now
        for shard in taken[1]:
            until += SECONDS * self.times * world.chance.uniform(0.7, 1.3)
            self.shards.append(shard)
            self.committed.append(until)
        busy = until - world.clock.now
        world.notes.asked["list"] += int(busy / (WATCH * self.fleet.longest))
        world.clock.after(busy, self.go_on)
        return True

    def go_on(self) -> None:
        """Claim more; end if there is nothing."""
        if self.claim():
            return
        if ended_name(self.name) not in self.world.notes.there:
            ended = Ended(tuple(self.parts), pace=Pace(self.world.clock.now - self.began, self.weight))
            if self.fleet.notes.add(ended_name(self.name), msgspec.msgpack.encode(ended)):
                self.fleet.board.end(self.name, ended)
        self.world.wait(self.fleet, self.times)


class World:
    """Machines, of which the first ``slow`` need ten times as long, and ``each`` shards for one."""

    def __init__(self, count: int, each: int, slow: int) -> None:
        self.clock, self.notes, self.chance = Clock(), CountedNotes(), random.Random(7)
        self.runs: dict[str, Run] = {}
        self.finished: float | None = None
        shards = [Shard(i, (Split(0, i, i + 1, 100),), "") for i in range(count * each)]
        self._plan = FleetPlan.of(SavedPlan("r", "", {}, [], shards, 0.0, ""))
        self._starts = [(self.chance.uniform(0, 5), 10.0 if i < slow else 1.0) for i in range(count)]
        self.ideal = len(shards) * SECONDS / (count - slow + slow / 10)
        self.work = OF_A_SHARD * len(shards)

    def run(self) -> None:
        for after, times in self._starts:
            self.clock.after(after, lambda times=times: self.wait(VirtualFleet(self._plan, self), times))
        self.clock.run()

    def wait(self, fleet: VirtualFleet, times: float, tries: int = 0) -> None:
        """Look until there is work, or all is done."""
        fleet.look()
        if fleet.board.complete:
            self.finished = self.finished or self.clock.now
        if self.finished is not None:
            return
        if (next(fleet.board.free(), None) is None and not fleet._release()) or not Run(
            self, fleet, times
        ).claim():
            tries += 1
            self.clock.after(fleet.pause(tries), lambda: self.wait(fleet, times, tries))


@pytest.mark.parametrize(("slow", "share", "longer"), [(0, 0.022, 1.05), (1, 0.028, 1.1)])
def test_many_machines_ask_little_and_wait_little(
    monkeypatch: pytest.MonkeyPatch, slow: int, share: float, longer: float
) -> None:
    world = World(64, 400, slow)
    monkeypatch.setattr(machines, "time", world.clock)
    monkeypatch.setattr(machines, "random", random.Random(7))
    world.run()
    assert world.finished is not None
    asked = world.notes.asked
    assert asked.total() <= share * (asked.total() + world.work), asked
    assert world.finished <= longer * world.ideal
