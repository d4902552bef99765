"""What many machines take of one budget or rate is never more than it, whatever a place answers and whoever dies."""

from __future__ import annotations

import bisect
import contextlib
import itertools
import os
import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.annex.fleet import shares as module
from headrace.annex.fleet.board import PLAN
from headrace.annex.fleet.shares import GRACE, PART, Shares
from headrace.annex.llm.turns import LATE_SECONDS, LONGEST_TURN, UTILISATION
from headrace.errors import RunLocked
from headrace.output.places.place import place_at

HISTORIES = int(os.environ.get("HEADRACE_SOAK_HISTORIES", "200"))
SEED = int(os.environ.get("HEADRACE_SOAK_SEED", "0"))


def notes_in(root: Path) -> Any:
    notes = place_at(root).notes("fleet/notes")
    notes.add(PLAN, b"plan")
    return notes


def test_what_is_left_is_taken_by_one_of_two(tmp_path: Path) -> None:
    notes_in(tmp_path)
    one, other = Shares(str(tmp_path), ()), Shares(str(tmp_path), ())
    assert one.take((10.0, None), (8.0, 5.0)) == [8.0, 0.0]
    assert other.take((10.0, None), (1.5, 0.0)) == [1.5, 0.0]
    assert one.take((10.0, None), (1.0, 0.0)) is None  # it did not know of the other until it was refused
    other.give_back((1.0, 0.0))
    assert one.take((10.0, None), (1.0, 0.0)) == [1.0, 0.0]
    assert other.take((12.0, None), (2.0, 0.0)) == [2.0, 0.0]  # it was started again, with a higher cap
    assert one.take((1.0, None), (0.0, 0.0)) is None


def test_shares_get_smaller_as_less_is_left(tmp_path: Path) -> None:
    notes_in(tmp_path)
    taken, shares = [0.0], [Shares(str(tmp_path), ()) for _ in range(3)]
    while (more := random.choice(shares).take((None, 6400), (0.0, 1))) is not None:
        left = 6400 - taken[-1]
        assert more == [0.0, min(left, max(1.0, left / PART))]
        taken.append(taken[-1] + more[1])
    assert taken[-1] > 6399 and len(taken) < 500


def test_nothing_is_taken_once_the_output_is_complete(tmp_path: Path) -> None:
    """Its notes are gone then, and with them how much was taken: it would all be there again."""
    notes_in(tmp_path)
    one, late = Shares(str(tmp_path), ()), Shares(str(tmp_path), ())
    assert one.take((4.0,), (4.0,)) == [4.0]
    place = place_at(tmp_path)
    place.remove(["_headrace/fleet/notes/plan"])
    for each in (one, late):
        with pytest.raises(RunLocked, match="completed by other machines"):
            each.take((9.0,), (1.0,))
    place.remove_below("_headrace/fleet")
    with pytest.raises(RunLocked, match="completed by other machines"):
        Shares(str(tmp_path), ()).take((4.0,), (1.0,))


class Kept:
    """Notes that all see, in the memory of this process."""

    def __init__(self) -> None:
        self._there = {PLAN: b"plan"}

    def add(self, name: str, data: bytes) -> bool:
        return self._there.setdefault(name, data) == data

    def read(self, name: str) -> bytes | None:
        return self._there.get(name)

    def names(self) -> list[str]:
        return [*self._there]


class Misbehaving:
    """Notes of a place that loses replies, repeats requests, and lets others go first at any moment."""

    def __init__(self, notes: Any, dice: random.Random, others: Callable[[], None]) -> None:
        self._notes, self._dice, self._others = notes, dice, others
        self._late: list[tuple[str, bytes]] = []

    def add(self, name: str, data: bytes) -> bool:
        self._others()
        what = self._dice.random()
        if what < 0.05:
            raise OSError("not sent")
        if what < 0.1:
            self._late.append((name, data))  # it was given up, and comes later
            raise OSError("late")
        if self._late and what < 0.3:
            self._notes.add(*self._late.pop())
        added: bool = self._notes.add(name, data)
        if what > 0.9:
            added = self._notes.add(name, data)  # repeated; what is there is ours
        if what > 0.95:
            raise OSError("the reply was lost")
        self._others()
        return added

    def read(self, name: str) -> bytes | None:
        self._others()
        found: bytes | None = self._notes.read(name)
        return None if self._dice.random() < 0.1 else found  # a network disk that does not show it yet

    def names(self) -> list[str]:
        self._others()
        found: list[str] = self._notes.names()
        return found


class Machine:
    """What it has by what it was told, and what it has spent of that."""

    def __init__(self, notes: Misbehaving) -> None:
        self.shares = Shares("", ())
        self.shares._notes = notes
        self.shares._open = lambda count: None  # type: ignore[method-assign]
        self.shares._taken = [0.0, 0.0]
        self.has, self.spent, self.at_work = [0.0, 0.0], [0.0, 0.0], False


@pytest.mark.parametrize("seed", range(SEED, SEED + HISTORIES))
def test_in_no_history_is_more_taken_than_there_is(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.time, "sleep", lambda seconds: None)
    dice, depth = random.Random(seed), [0]
    caps = (dice.choice([None, 5.0, 50.0]), dice.choice([30.0, 300.0]))
    notes = Kept()

    def others() -> None:
        if depth[0] < 3 and dice.random() < 0.2:
            depth[0] += 1
            step()
            depth[0] -= 1

    faulty = Misbehaving(notes, dice, others)
    machines, dead = [Machine(faulty) for _ in range(4)], list[Machine]()

    def step() -> None:
        idle = [each for each in machines if not each.at_work]
        if not idle:
            return
        machine = dice.choice(idle)
        machine.at_work = True  # one thread of it asks at a time
        try:
            if dice.random() < 0.7:
                needed = (dice.random(), dice.randint(1, 9))
                taken = machine.shares.take(caps, needed)
                if taken is not None:
                    machine.has = [a + b for a, b in zip(machine.has, taken, strict=True)]
                    machine.spent = [a + b for a, b in zip(machine.spent, needed, strict=True)]
            else:
                left = [max(0.0, has - spent) for has, spent in zip(machine.has, machine.spent, strict=True)]
                machine.has = [has - more for has, more in zip(machine.has, left, strict=True)]
                machine.shares.give_back(left)
        except OSError:
            pass
        finally:
            machine.at_work = False

    for _ in range(80):
        step()
        if dice.random() < 0.05:  # one dies, or comes
            dead.append(machines.pop(dice.randrange(len(machines))))
            machines.append(Machine(faulty))
        for i, cap in enumerate(caps):
            held = sum(each.has[i] for each in (*machines, *dead))
            assert cap is None or held <= cap + 1e-9, (seed, i, held)


# ---------------------------------------------------------------- rates


class World:
    """Time that passes while machines ask, and their turns: how many seconds each has, and when it may use them."""

    def __init__(self, seed: int, monkeypatch: pytest.MonkeyPatch, *, faulty: bool) -> None:
        self.dice, self.now, self.depth = random.Random(seed), 1000.0, 0
        self.asks = self.dice.choice(((LONGEST_TURN,), (0.05, 0.3, LONGEST_TURN), (0.05, 0.1)))
        self.notes = Kept()
        asked = Misbehaving(self.notes, self.dice, self.others) if faulty else self.notes
        monkeypatch.setattr(module, "place_at", lambda *at: SimpleNamespace(notes=lambda folder: asked))
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now))
        self.machines = [Sender() for _ in range(self.dice.choice((2, 4)) if faulty else 4)]
        self.sent = list[tuple[float, float]]()  # when, and how many seconds of the rate

    def others(self) -> None:
        """A request is under way, and others go on."""
        self.now += self.dice.choice((0.001, 0.01, 0.1)) * self.dice.random()
        if self.depth < 3 and self.dice.random() < 0.2:
            self.depth += 1
            self.step(self.dice.choice(self.machines))
            self.depth -= 1

    def step(self, machine: Sender) -> None:
        if machine.at_work:
            return
        machine.at_work, began, asks = True, self.now, self.dice.choice(self.asks)
        with contextlib.suppress(OSError):
            wait = machine.shares.turn("key", asks)
            machine.wakes = self.now + wait
            if not wait:
                latest = began + asks + LATE_SECONDS
                machine.had += asks
                if self.now <= latest:
                    self.sent.append((self.dice.choice((self.now, latest)), asks))
        machine.at_work = False

    def most_in(self, seconds: float) -> float:
        """Return the most that was sent in a time of this length."""
        self.sent.sort()
        times, sums = [when for when, _ in self.sent], [0.0, *itertools.accumulate(s for _, s in self.sent)]
        ends = (bisect.bisect_right(times, when + seconds) for when in times)
        return max(sums[end] - sums[i] for i, end in enumerate(ends))


class Sender:
    def __init__(self) -> None:
        self.shares, self.at_work, self.wakes, self.had = Shares("", ()), False, 0.0, 0.0


@pytest.mark.parametrize("seed", range(SEED, SEED + HISTORIES))
def test_in_no_history_is_more_sent_in_a_minute(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Machines send all of a turn at its first or last moment, stop for a while, die and come."""
    world = World(seed, monkeypatch, faulty=True)
    pauses, deaths = world.dice.choice((0.0, 0.005, 0.1)), world.dice.choice((0.0, 0.01))
    while world.now < 1300:
        machine = min(world.machines, key=lambda each: each.wakes)
        world.now = max(world.now, machine.wakes)
        world.step(machine)
        world.now += 0.001
        if world.dice.random() < pauses:
            machine.wakes = world.now + 20 * world.dice.random()
        if world.dice.random() < deaths:
            world.machines[world.machines.index(machine)] = Sender()
    assert 0 < world.most_in(60.0) * UTILISATION <= 60.0
    for seconds in (0.5, 2.0, 10.0):
        assert world.most_in(seconds) <= seconds + 2 * LONGEST_TURN + LATE_SECONDS + GRACE


@pytest.mark.parametrize("seed", range(5))
def test_machines_that_want_more_than_there_is_have_all_of_it_and_each_its_part(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(seed, monkeypatch, faulty=False)
    while world.now < 1600:
        machine = min(world.machines, key=lambda each: each.wakes)
        world.now = max(world.now, machine.wakes) + 0.005
        world.step(machine)
    had = [each.had for each in world.machines]
    assert sum(had) >= 0.93 * 600 and min(had) >= 0.5 * max(had), had
