"""A budget of many machines: each takes shares of it, by notes that are only added.

The note ``spent-00017`` says how much was taken in all once it was there. Whoever writes the next one has read it,
and of all who want to write a note of one number one is first: so more than the budget is never taken. What was taken
and is not needed is given back by a note with a smaller sum. What a machine has taken that dies counts as spent:
nobody knows what it has asked for until it died, or whether it still asks.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Sequence

import msgspec

from headrace.annex.fleet.board import PLAN
from headrace.core.process import backoff
from headrace.core.stores.addresses import Options
from headrace.core.work import FLEET, NOTES
from headrace.errors import RunLocked
from headrace.output.places.place import place_at
from headrace.output.publishing import Notes

PART = 64
"""A share is one part in so many of what is left, or what is needed now."""
LONGEST_WAIT = 1.0
_SPENT = re.compile(r"spent-(\d+)")


class Taken(msgspec.Struct, frozen=True, array_like=True):
    """How much was taken in all, of each amount; ``by`` tells this note from another of the same number."""

    amounts: list[float]
    by: str


class Shares:
    """The budget of an output, as one worker of one machine sees it. A copy in another process begins anew."""

    def __init__(self, root: str, options: Options) -> None:
        self._at = root, options
        self._notes: Notes | None = None
        self._number, self._taken = 0, list[float]()

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_notes": None, "_number": 0, "_taken": []}

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
