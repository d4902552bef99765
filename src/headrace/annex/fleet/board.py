"""What the machines of a fleet tell one another, and what follows from it. Nothing here reads or writes.

All of it stands in notes of the output, which are only ever added (``output/places/notes.py``):

- ``plan``: the shards, and how many of them are a slice. The first machine writes it.
- ``claim-00017-0``: slice 17 is that machine's. ``claim-00017-1``: what that one had not done is another's. Of all
  claims of a slice the last counts, and of all who want to write it one is first.
- ``ended-k3f9a2xq``: which claims that machine has done. It makes nothing more.
- ``schema``: that of the output, by the first machine that knows it.

A machine has a run, which is an output of its own, before it claims anything. Who takes over from it first makes sure
that nothing more can be committed there. So what its journal says from then on stays true, and the rest is whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from headrace.core.work import Shard
from headrace.errors import JournalDamaged
from headrace.output.saved_plan import sealed, unsealed
from headrace.plan.physical import SavedPlan

PLAN, SCHEMA = "plan", "schema"
MOST_SLICES = 256
_CLAIM = re.compile(r"claim-(\d+)-(\d+)")
_ENDED = re.compile(r"ended-(\w+)")

Part = tuple[int, int]
"""A slice, and which of its claims."""


class FleetPlan(msgspec.Struct, frozen=True):
    """What all machines do: the plan of the output as one machine would have saved it, and shards of a slice."""

    plan: SavedPlan
    of_a_slice: int

    @classmethod
    def of(cls, plan: SavedPlan) -> FleetPlan:
        """Divide the shards of a plan."""
        return cls(plan, max(1, -(-len(plan.shards) // MOST_SLICES)))

    def encode(self) -> bytes:
        """Encode for its note."""
        return sealed(msgspec.msgpack.encode(self))

    @classmethod
    def decode(cls, data: bytes, where: str) -> FleetPlan:
        """Decode what the note of the machines that write ``where`` has; a damaged one is refused."""
        found = unsealed(data)
        if found is None:
            raise JournalDamaged(
                f"The plan of the machines that write {where} is damaged. Restore it from a copy, or write to "
                "another place."
            )
        return msgspec.msgpack.decode(found, type=cls)

    @property
    def slices(self) -> int:
        """How many slices there are."""
        return -(-len(self.plan.shards) // self.of_a_slice)

    def shards(self, slice_: int) -> list[Shard]:
        """Return the shards of a slice; each has its number for a name."""
        first = slice_ * self.of_a_slice
        found = self.plan.shards[first : first + self.of_a_slice]
        return [msgspec.structs.replace(shard, name=str(shard.index)) for shard in found]


class Claim(msgspec.Struct, frozen=True):
    """A machine has a slice, or, with ``shards``, what another has not done of it."""

    machine: str
    shards: tuple[Shard, ...] | None = None


class Ended(msgspec.Struct, frozen=True):
    """A machine has done these claims, and makes nothing more."""

    done: tuple[Part, ...]


def claim_name(part: Part) -> str:
    """Return the name of a claim's note.

    >>> claim_name((17, 0))
    'claim-00017-0'
    """
    return f"claim-{part[0]:05}-{part[1]}"


def ended_name(machine: str) -> str:
    """Return the name of the note that a machine has ended."""
    return f"ended-{machine}"


class Board:
    """What is known of the notes, which only grow: so what was read once stays true. ``read`` reads one of them."""

    def __init__(self, slices: int, read: Callable[[str], bytes | None]) -> None:
        self._slices = slices
        self._read = read
        self._claims: dict[str, Claim] = {}
        self._last: dict[int, int] = {}  # slice → its last claim
        self._ended: dict[str, Ended] = {}

    def look(self, names: Iterable[str]) -> None:
        """Take in which notes there are."""
        for name in names:
            if found := _CLAIM.fullmatch(name):
                self.claimed((int(found[1]), int(found[2])))
            elif (found := _ENDED.fullmatch(name)) and found[1] not in self._ended:
                data = self._read(name)
                if data is not None:
                    self._ended[found[1]] = msgspec.msgpack.decode(data, type=Ended)

    def claimed(self, part: Part) -> None:
        """Somebody has this claim."""
        slice_, turn = part
        self._last[slice_] = max(turn, self._last.get(slice_, 0))

    def free(self, start: int) -> Iterator[int]:
        """Yield the slices that nobody has, from number ``start`` on and around."""
        for i in range(self._slices):
            slice_ = (start + i) % self._slices
            if slice_ not in self._last:
                yield slice_

    def open_parts(self) -> list[tuple[Part, Claim]]:
        """Return the claims that count and are not done, as far as is known."""
        done = self._done()
        parts = [part for part in self._last.items() if part not in done]
        found = [(part, self._claim(claim_name(part))) for part in parts]
        return [(part, claim) for part, claim in found if claim is not None]

    def _done(self) -> set[Part]:
        return {part for each in self._ended.values() for part in each.done}

    def _claim(self, name: str) -> Claim | None:
        if name not in self._claims:
            data = self._read(name)
            if data is None:
                return None
            self._claims[name] = msgspec.msgpack.decode(data, type=Claim)
        return self._claims[name]

    @property
    def complete(self) -> bool:
        """True once every slice is done, by one machine or several."""
        done = self._done()
        return all((slice_, self._last.get(slice_, -1)) in done for slice_ in range(self._slices))

    @property
    def ended(self) -> list[str]:
        """The machines that have ended."""
        return sorted(self._ended)


def rest_of(shards: Sequence[Shard], claimed: Sequence[Shard], committed: set[int]) -> tuple[Shard, ...]:
    """Return what a machine has not done of what it claimed, by its ``shards`` as they are in the end.

    Names say where rows stand among all of the output, so those of the rest have to sort where they did, and leave
    room for more: no shard of that machine may stand among the parts that another will make of them.

    >>> shards = [Shard(0, (), "7"), Shard(1, (), "7.001")]
    >>> [shard.name for shard in rest_of(shards, [Shard(0, (), "7")], {0})]
    ['7.1.0']
    """
    known = {shard.place[0] for shard in shards}
    whole = [shard for shard in claimed if shard.place[0] not in known]  # it had not begun with these
    mine = {shard.place[0] for shard in claimed}
    left = [shard for shard in shards if shard.place[0] in mine and shard.index not in committed]
    places = [shard.place for shard in shards]
    return (*whole, *(msgspec.structs.replace(shard, name=_within(shard.place, places)) for shard in left))


def _within(place: tuple[int, ...], others: Iterable[tuple[int, ...]]) -> str:
    below = [other for other in others if other != place and other[: len(place)] == place]
    while any(other[: len(place)] == place for other in below):
        place = (*place, 0)
    return ".".join(map(str, (*place, 0)))
