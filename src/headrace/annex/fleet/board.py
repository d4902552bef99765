"""What the machines of a fleet tell one another, and what follows from it. Only ``fleet_of`` reads.

All of it stands in notes of the output, which are only ever added (``output/publishing.py``):

- ``plan``: the shards, and how many of them each slice has. The first machine writes it.
- ``claim-00017-0``: slice 17 is that machine's. Of all who want to write it one is first.
- ``ended-k3f9a2xq``: what counts of that machine's work, and in pieces what it has left. It or another writes it,
  once; what the machine makes later does not count. ``claim-k3f9a2xq-2-0`` gives the third piece to a machine.
- ``left-k3f9a2xq``: that note has pieces, so it is worth reading. A hint: without it they are found later.
- ``errors-k3f9a2xq-8``: so many rows have failed that this machine has committed. It says so whenever they doubled.
- ``schema``: that of the output, by the first machine that knows it.

A slice or a piece that a machine claimed, and that the note of its end does not name, was claimed too late to count:
``claim-00017-1`` gives it to another.

A machine has a run, which is an output of its own, before it claims anything.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import accumulate, islice, pairwise
from statistics import median

import msgspec

from headrace.core.stores.addresses import Options
from headrace.core.work import FLEET, HOME, NOTES, Shard
from headrace.errors import JournalDamaged
from headrace.output.layout import sealed, unsealed
from headrace.output.places.place import looked_at
from headrace.output.runs import is_output
from headrace.plan.physical import SavedPlan

PLAN, SCHEMA = "plan", "schema"
FEWEST, MOST, LAST = 64, 1_024, 50
"""What is left is cut by such a number, again and again: so many machines are at work to the end.

The last slices have one part in ``LAST`` of what each of these machines does in all.
"""
PIECES = 16
"""What a machine has left is given to so many others, at most."""
FEW = 16
"""So many claims are few."""
TIMES, GRACE = 2.0, 5.0
"""A machine is slow if it needs so many times what others would, and so many seconds more."""
_CLAIM = re.compile(r"claim-(\w+(?:-\d+)?)-(\d+)")
_ERRORS = re.compile(r"errors-(\w+)-(\d+)")
_ENDED, _LEFT = re.compile(r"ended-(\w+)"), re.compile(r"left-(\w+)")

Part = tuple[str, int]
"""A slice or a piece, and which of its claims."""


def slices_of(shards: int) -> list[int]:
    """Return how many shards each slice has: first half of what a machine may expect, and few or one in the end.

    Each costs two requests, so there are far fewer slices than shards where there are many of these.

    >>> slices_of(5), slices_of(1_000)[:3], [len(slices_of(10**n)) for n in (3, 4, 5, 6)]
    ([1, 1, 1, 1, 1], [8, 8, 8], [234, 325, 2551, 5344])
    """
    by = min(MOST, max(FEWEST, shards // 200))
    most, least, found = -(-shards // (2 * by)), shards // (by * LAST), list[int]()
    while shards:
        found.append(min(most, shards, max(least, -(-shards // by))))
        shards -= found[-1]
    return found


class FleetPlan(msgspec.Struct, frozen=True):
    """What all machines do: the plan of the output as one machine would have saved it, and the sizes of slices."""

    plan: SavedPlan
    sizes: list[int]

    @classmethod
    def of(cls, plan: SavedPlan) -> FleetPlan:
        """Divide the shards of a plan."""
        return cls(plan, slices_of(len(plan.shards)))

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

    def slices(self) -> dict[str, range]:
        """Return the numbers of the shards of each slice, by its name."""
        ends = pairwise(accumulate(self.sizes, initial=0))
        return {f"{number:05}": range(*each) for number, each in enumerate(ends)}

    def shards(self, numbers: range) -> tuple[Shard, ...]:
        """Return shards of the plan; each has its number for a name."""
        found = self.plan.shards[numbers.start : numbers.stop]
        return tuple(msgspec.structs.replace(shard, name=str(shard.index)) for shard in found)


class Pace(msgspec.Struct, frozen=True):
    """How fast a machine is: in ``seconds`` since its run began it has claimed work of this ``weight`` in all."""

    seconds: float = 0.0
    weight: float = 0.0


class Claim(msgspec.Struct, frozen=True):
    """A machine has a slice or a piece. ``pace``: with this one."""

    machine: str
    pace: Pace = Pace()


class Ended(msgspec.Struct, frozen=True):
    """What counts of a machine's work.

    ``done``: the claims of which every row either counts or is in a piece. ``counted``: the shards that count, by
    their numbers in its run; None: all that it has committed. ``left``: the pieces. ``handed``: how often their rows
    were given on. ``pace``: where it has done all.
    """

    done: tuple[Part, ...]
    counted: tuple[int, ...] | None = None
    left: tuple[tuple[Shard, ...], ...] = ()
    handed: int = 0
    pace: Pace = Pace()


def claim_name(part: Part) -> str:
    """Return the name of a claim's note.

    >>> claim_name(("00017", 0))
    'claim-00017-0'
    """
    return f"claim-{part[0]}-{part[1]}"


def ended_name(machine: str) -> str:
    """Return the name of the note that a machine has ended."""
    return f"ended-{machine}"


def left_name(machine: str) -> str:
    """Return the name of the note that the note of a machine's end has pieces."""
    return f"left-{machine}"


def errors_name(machine: str, errors: int) -> str:
    """Return the name of the note that so many rows of a machine have failed."""
    return f"errors-{machine}-{errors}"


def weight_of(shards: Iterable[Shard]) -> float:
    """Return about how much work shards are, in any unit: their rows, or bytes where rows are not known."""
    return sum(
        float(shard.rows if shard.rows >= 0 else sum(split.bytes for split in shard.splits) or 1)
        for shard in shards
    )


class Board:
    """What is known of the notes, which only grow: so what was read once stays true. ``read`` reads one of them.

    A name tells what is claimed, so machines with work read nothing. ``unread``: machines that have ended, of which
    it is not known yet what counts. ``hinted``: those of them that have left something.
    """

    def __init__(self, plan: FleetPlan, read: Callable[[str], bytes | None]) -> None:
        self._plan = plan
        self._read = read
        self._items: dict[str, range | tuple[Shard, ...]] = {**plan.slices()}
        self._last: dict[str, int] = {}  # slice or piece → its last claim
        self._noticed: dict[Part, float] = {}  # when a claim was first seen
        self._claims: dict[Part, Claim] = {}
        self._seen: dict[
            str, tuple[Pace, float]
        ] = {}  # machine → its last claim that was read, and when it was there
        self._settled: set[Part] = set()
        self.ended: dict[str, Ended] = {}
        self.unread: set[str] = set()
        self.hinted: set[str] = set()
        self._errors: dict[str, int] = {}

    def look(self, names: Iterable[str], now: float = 0.0) -> None:
        """Take in which notes there are; ``now`` is any time that only grows."""
        for name in names:
            if found := _CLAIM.fullmatch(name):
                self.claimed((found[1], int(found[2])), now)
            elif (found := _ENDED.fullmatch(name)) and found[1] not in self.ended:
                self.unread.add(found[1])
            elif (found := _LEFT.fullmatch(name)) and found[1] not in self.ended:
                self.hinted.add(found[1])
            elif found := _ERRORS.fullmatch(name):
                self._errors[found[1]] = max(int(found[2]), self._errors.get(found[1], 0))

    def read_ended(self, machines: Collection[str] | None = None) -> None:
        """Read what counts of machines that have ended; None: of all of them."""
        for machine in self.unread & {*(self.unread if machines is None else machines)}:
            data = self._read(ended_name(machine))
            if data is not None:
                self.end(machine, msgspec.msgpack.decode(data, type=Ended))

    def end(self, machine: str, ended: Ended) -> None:
        """Take in what counts of a machine's work."""
        self.ended[machine] = ended
        self.unread.discard(machine)
        self.hinted.discard(machine)
        self._settled.update(ended.done)
        self._items |= {f"{machine}-{i}": piece for i, piece in enumerate(ended.left)}

    def claimed(self, part: Part, now: float) -> None:
        """Somebody has this claim."""
        self._noticed.setdefault(part, now)
        self._last[part[0]] = max(part[1], self._last.get(part[0], 0))

    def shards(self, item: str) -> tuple[Shard, ...]:
        """Return the shards of a slice or a piece."""
        found = self._items[item]
        return self._plan.shards(found) if isinstance(found, range) else found

    def alike(self, most: int) -> list[Part]:
        """Return claims that may be made now, as ``free`` does: the first, and of those after it that are as big."""
        found = list(islice(self.free(), most))
        least = 0.9 * len(self._items[found[0][0]]) if found else 0.0
        return [part for part in found if len(self._items[part[0]]) >= least]

    def handed(self, item: str) -> int:
        """Return how often the rows of a slice or a piece were given on."""
        machine, dash, _ = item.rpartition("-")
        return self.ended[machine].handed if dash else 0

    def free(self) -> Iterator[Part]:
        """Yield the claims that may be made now, as far as is known: of pieces first, then of slices in order."""
        late = [part for part, claim in self._claims.items() if self._is_void(part, claim)]
        yield from ((item, turn + 1) for item, turn in late if self._last[item] == turn)
        yield from ((item, 0) for item in reversed(self._items) if "-" in item and item not in self._last)
        yield from ((item, 0) for item in self._items if "-" not in item and item not in self._last)

    def _is_void(self, part: Part, claim: Claim) -> bool:
        return claim.machine in self.ended and part not in self._settled

    def read_claims(self, now: float, most: int | None = None) -> dict[str, list[Part]]:
        """Return the claims of machines that have not ended, as far as they were read; read ``most`` more."""
        for part in self.unread_claims[::-1][:most]:
            data = self._read(claim_name(part))
            if data is None:
                continue
            claim = self._claims[part] = msgspec.msgpack.decode(data, type=Claim)
            known = self._seen.get(claim.machine)
            if known is None or known[0].seconds < claim.pace.seconds:
                self._seen[claim.machine] = claim.pace, self._noticed.get(part, now)
        found: dict[str, list[Part]] = {}
        for part, claim in self._claims.items():
            if claim.machine not in self.ended:
                found.setdefault(claim.machine, []).append(part)
        return found

    @property
    def unread_claims(self) -> list[Part]:
        """The last claims that do not count yet, as far as is known, and that were not read."""
        return [part for part in self._last.items() if part not in self._settled and part not in self._claims]

    def is_slow(self, machine: str, parts: Sequence[Part], now: float, done: Pace | None = None) -> bool:
        """Say whether a machine with these claims takes much longer than those would that have done all of theirs.

        ``done``: what the machine has done that asks.
        """
        paces = [
            pace for pace in (done, *(each.pace for each in self.ended.values())) if pace and pace.weight
        ]
        if not paces:
            return False
        pace, seen = self._seen[machine]
        needed = pace.weight * median(each.seconds / each.weight for each in paces)
        times = TIMES * 4.0 ** max(self.handed(item) for item, _ in parts)  # it may be the rows that are slow
        return pace.seconds + now - seen > times * needed + GRACE

    @property
    def has_few_open(self) -> bool:
        """True if nearly all claims are of machines that have ended."""
        return len(self._last) - len(self._settled) <= max(FEW, len(self._last) // 16)

    @property
    def complete(self) -> bool:
        """True once every slice and every piece is done."""
        return all((item, self._last.get(item, -1)) in self._settled for item in self._items)

    def errors_beside(self, machine: str) -> int:
        """Return how many rows have failed on others, at least: those count for sure whose machine has not ended."""
        over = {machine, *self.ended, *self.unread}
        return sum(errors for each, errors in self._errors.items() if each not in over)

    def told(self, shard: int) -> str:
        """Say what the notes tell of a shard of the plan: who has claimed it, and which machines say they did it."""
        item = next(name for name, shards in self._plan.slices().items() if shard in shards)
        said, turn = list[str](), 0
        while (data := self._read(claim_name((item, turn)))) is not None:
            said.append(
                f"{claim_name((item, turn))} is of {msgspec.msgpack.decode(data, type=Claim).machine}"
            )
            turn += 1
        for machine, ended in self.ended.items():
            said += [f"{machine} did {claim_name(part)}" for part in ended.done if part[0] == item]
            for i, piece in enumerate(ended.left):
                said += [f"{machine} left {machine}-{i}"] * any(each.place[0] == shard for each in piece)
        return ", ".join(said) or "nobody has claimed it"

    @property
    def machines(self) -> int:
        """How many machines have ended."""
        return len(self.ended) + len(self.unread)

    @property
    def taken(self) -> int:
        """How many slices of the plan were claimed."""
        return sum("-" not in item for item in self._last)

    def handover(self, parts: Sequence[Part], shards: Sequence[Shard], committed: Collection[int]) -> Ended:
        """Return what counts of a machine's work with these claims, by ``shards`` of its run, and what is left."""
        counted, left = rest_of(
            shards, [shard for item, _ in parts for shard in self.shards(item)], committed
        )
        size = max(1, -(-len(left) // PIECES))
        pieces = tuple(tuple(left[i : i + size]) for i in range(0, len(left), size))
        handed = 1 + max((self.handed(item) for item, _ in parts), default=0)
        return Ended(tuple(parts), tuple(counted), pieces, handed)


def rest_of(
    shards: Sequence[Shard], claimed: Sequence[Shard], committed: Collection[int]
) -> tuple[list[int], list[Shard]]:
    """Return which shards count of what a machine claimed, and what is left of it, by its ``shards`` as they are.

    Names say where rows stand among all of the output, so those of the rest have to sort where they did, and leave
    room for more: no shard of that machine may stand among the parts that another will make of them.

    >>> shards = [Shard(0, (), "7"), Shard(1, (), "7.001")]
    >>> counted, left = rest_of(shards, [Shard(0, (), "7"), Shard(0, (), "8")], {0})
    >>> counted, [shard.name for shard in left]
    ([0], ['7.1.0', '8'])
    """
    stems = {_stem(shard) for shard in claimed}
    begun, mine = set[tuple[int, ...]](), list[Shard]()
    for shard in shards:
        above = stems.intersection(shard.place[:i] for i in range(1, 1 + len(shard.place)))
        begun |= above
        mine += [shard] * bool(above)
    places = [shard.place for shard in mine]
    left = [
        msgspec.structs.replace(shard, name=_within(shard.place, places))
        for shard in mine
        if shard.index not in committed
    ]
    left += [shard for shard in claimed if _stem(shard) not in begun]
    return (
        [shard.index for shard in mine if shard.index in committed],
        sorted(left, key=lambda shard: shard.place),
    )


def _stem(shard: Shard) -> tuple[int, ...]:
    """Return what the places of all begin with that a machine makes of a shard."""
    return shard.place[:-1] or shard.place


def _within(place: tuple[int, ...], others: Iterable[tuple[int, ...]]) -> str:
    below = [other for other in others if other != place and other[: len(place)] == place]
    while any(other[: len(place)] == place for other in below):
        place = (*place, 0)
    return ".".join(map(str, (*place, 0)))


# ---------------------------------------------------------------- for who asks


class FleetView(msgspec.Struct, frozen=True):
    """Machines that work on an output, or have: their outputs by their names.

    ``slices`` of the input there are, and ``taken`` by some machine. ``rows`` of the input; -1: unknown.
    ``completes``: one of them puts the parts in order just now.
    """

    machines: dict[str, str]
    ended: tuple[str, ...]
    slices: int
    taken: int
    rows: int
    completes: bool


def fleet_of(path: str | os.PathLike[str], options: Options | None = None) -> FleetView | None:
    """Return the machines that write an output; None where there are none, or not any more."""
    with looked_at(path, options) as place:
        if not is_output(place.root) or FLEET not in place.folders(HOME):
            return None
        notes = place.notes(f"{FLEET}/{NOTES}")
        data = notes.read(PLAN)
        if data is None:
            return None
        fleet = FleetPlan.decode(data, place.name)
        board = Board(fleet, notes.read)
        board.look(notes.names())
        board.read_ended()
        machines = sorted(place.folders(f"{HOME}/{FLEET}") - {NOTES})
        rows = [shard.rows for shard in fleet.plan.shards]
        return FleetView(
            {name: str(place.at(f"{HOME}/{FLEET}/{name}")) for name in machines},
            tuple(board.ended),
            len(fleet.sizes),
            board.taken,
            -1 if min(rows, default=0) < 0 else sum(rows),
            board.complete and place.writer() is not None,
        )
