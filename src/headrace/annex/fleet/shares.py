"""Budgets and rates of many machines: each takes shares of them, by notes that are only added.

The note ``spent-00017`` says how much was taken in all once it was there. Whoever writes the next one has read it,
and of all who want to write a note of one number one is first: so more than the budget is never taken. What was taken
and is not needed is given back by a note with a smaller sum. What a machine has taken that dies counts as spent:
nobody knows what it has asked for until it died, or whether it still asks.

A rate is shared by turns. The next turn may begin when the last has lasted as long as its note says. Each machine
counts that from when it has seen the note, by a clock of its own: never too early, and no clocks are compared.
"""

from __future__ import annotations

import math
import re
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from headrace.annex.fleet.board import PLAN
from headrace.core.process import backoff
from headrace.core.stores.addresses import Options
from headrace.core.work import FLEET, NOTES, RATES
from headrace.errors import RunLocked
from headrace.output.places.place import place_at
from headrace.output.publishing import Notes

PART = 64
"""A share is one part in so many of what is left, or what is needed now."""
LONGEST_WAIT = 1.0
FIRST_LOOK, LONGEST_LOOK = 0.05, 0.25
"""So often, in seconds, is looked whether others have begun a turn."""
GRACE = 0.5
"""So many seconds longer waits who has had the last turn, for others; what was not used meanwhile is not lost."""
COMPLETE_SECONDS = 10.0
"""So often is looked whether the output is complete, and turns are for nothing."""
_SPENT = re.compile(r"spent-(\d+)")


class Taken(msgspec.Struct, frozen=True, array_like=True):
    """How much was taken in all, of each amount; ``by`` tells this note from another of the same number."""

    amounts: list[float]
    by: str


class Turn(msgspec.Struct, frozen=True, array_like=True):
    """For how many seconds somebody has the turn from when it was added."""

    seconds: float
    by: str


@dataclass(slots=True)
class Queue:
    """What is known of the turns of a rate: the number of the last, and when the next may begin; by which looks."""

    notes: Notes
    number: int
    free_at: float
    own: bool = False
    looks: int = 0


class Shares:
    """What machines share for an output, as one worker of one sees it. A copy in another process begins anew."""

    def __init__(self, root: str, options: Options) -> None:
        self._at = root, options
        self._notes: Notes | None = None
        self._number, self._taken = 0, list[float]()
        self._queues = dict[str, Queue]()
        self._complete_at = -math.inf

    def __reduce__(self) -> tuple[type[Shares], tuple[str, Options]]:
        return Shares, self._at

    def take(self, caps: Sequence[float | None], needed: Sequence[float]) -> list[float] | None:
        """Take so much of each amount, or more; None if that would be more than its cap, which may be none."""
        self._open(len(caps))
        while True:
            shares = [
                0.0 if cap is None else max(0.0, min(cap - taken, max(need, (cap - taken) / PART)))
                for cap, taken, need in zip(caps, self._taken, needed, strict=True)
            ]
            enough = (
                share >= need
                for cap, share, need in zip(caps, shares, needed, strict=True)
                if cap is not None
            )
            if not all(enough) or not any(shares):
                if not self._read_on():
                    return None
            elif self._add(shares):
                return shares

    def give_back(self, amounts: Sequence[float]) -> None:
        """Let others have what was taken and not needed."""
        self._open(len(amounts))
        while not self._add([-amount for amount in amounts]):
            pass

    def turn(self, name: str, seconds: float) -> float:
        """Begin a turn of so many seconds: returns 0. Else after how many seconds to ask again."""
        queue = self._queues.get(name) or self._enter(name)
        while (data := queue.notes.read(f"{name}-{queue.number + 1:07}")) is not None:
            turn = msgspec.msgpack.decode(data, type=Turn)
            queue.number, queue.free_at, queue.own = queue.number + 1, time.monotonic() + turn.seconds, False
        queue.looks += 1
        unused = time.monotonic() - queue.free_at - (GRACE if queue.own else 0.0)
        if unused < 0:
            return min(-unused, backoff(queue.looks, FIRST_LOOK, LONGEST_LOOK))
        self._check_open()
        lasts = max(0.0, seconds - min(time.monotonic() - queue.free_at, GRACE))
        note = msgspec.msgpack.encode(Turn(lasts, secrets.token_hex(8)))
        if not queue.notes.add(f"{name}-{queue.number + 1:07}", note):
            return backoff(queue.looks, FIRST_LOOK, LONGEST_LOOK)
        self._queues[name] = Queue(queue.notes, queue.number + 1, time.monotonic() + lasts, own=True)
        return 0.0

    def _enter(self, name: str) -> Queue:
        """Return the turns that others have had; the last of them counts from now."""
        notes = place_at(*self._at).notes(f"{FLEET}/{RATES}")
        numbers = [int(found.rpartition("-")[2]) for found in notes.names() if found.startswith(f"{name}-")]
        self._queues[name] = queue = Queue(notes, max(numbers, default=1) - 1, time.monotonic() - GRACE)
        return queue

    def _check_open(self) -> None:
        if time.monotonic() - self._complete_at > COMPLETE_SECONDS:
            if PLAN not in place_at(*self._at).notes(f"{FLEET}/{NOTES}").names():
                raise RunLocked(
                    f"{self._at[0]} was completed by other machines, and nothing more is asked for it."
                )
            self._complete_at = time.monotonic()

    def _open(self, count: int) -> None:
        if self._notes is None:
            self._notes = place_at(*self._at).notes(f"{FLEET}/{NOTES}")
            found = [int(name[1]) for name in map(_SPENT.fullmatch, self._notes.names()) if name]
            self._number, self._taken = max(found, default=1) - 1, [0.0] * count
            self._read_on()

    def _read_on(self) -> bool:
        """Read the notes that others have added; False if there are none."""
        assert self._notes is not None
        before = self._number
        while (data := self._notes.read(f"spent-{self._number + 1:05}")) is not None:
            self._number, self._taken = self._number + 1, msgspec.msgpack.decode(data, type=Taken).amounts
        return self._number > before

    def _add(self, amounts: Sequence[float]) -> bool:
        """Add a note, and say so; False if another machine was first, whose note was read.

        Notes are removed when the output is complete, the plan first. So where it still is there, all were read.
        """
        assert self._notes is not None
        sums = [taken + amount for taken, amount in zip(self._taken, amounts, strict=True)]
        note = msgspec.msgpack.encode(Taken(sums, secrets.token_hex(8)))
        added = self._notes.add(f"spent-{self._number + 1:05}", note)
        tries = 0
        while PLAN in self._notes.names():
            if added:
                self._number, self._taken = self._number + 1, sums
                return True
            if self._read_on():
                return False
            tries += 1
            time.sleep(backoff(tries, LONGEST_WAIT / 8, LONGEST_WAIT))  # a network disk shows it later
        raise RunLocked(f"{self._at[0]} was completed by other machines, and nothing more is spent on it.")
