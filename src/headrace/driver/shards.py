"""The shards of a run: which are committed, how they are divided, and which output schema they settle."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import groupby, repeat

import msgspec

from headrace.core.work import ErrorReport, Remainder, Shard, Split
from headrace.plan.partitioning import in_windows


class ShardTable:
    """All shards by number; ``done`` has a 1 for each that is committed, and is updated here.

    ``left`` is the number of those that are not committed, ``head`` the first of them.
    """

    def __init__(self, shards: Sequence[Shard], done: bytearray | None) -> None:
        self._shards = list(shards)
        self._done = done if done is not None else bytearray(len(shards))
        self._families: dict[int, set[tuple[int, ...]]] = {}  # places of the parts of divided shards
        self.left = len(shards) - sum(self._done)
        self.head = 0
        for shard in self._shards:
            if shard.name:
                self._note_place(shard)
        self._advance()

    def __len__(self) -> int:
        return len(self._shards)

    def __getitem__(self, number: int) -> Shard:
        return self._shards[number]

    def is_committed(self, number: int) -> bool:
        """Say whether a shard is committed."""
        return bool(self._done[number])

    def commit(self, number: int) -> None:
        """A shard is committed."""
        self._done[number] = 1
        self.left -= 1
        self._advance()

    def close(self) -> None:
        """No more shards will be read."""
        self.left = 0

    def divide(self, parts: Sequence[Shard]) -> None:
        """Replace a shard by parts: the first has its number, the others follow the last number."""
        first, *others = parts
        self._families.get(first.place[0], set()).discard(self._shards[first.index].place)
        self._shards[first.index] = first
        self._shards += others
        for part in parts:
            self._note_place(part)
        self._done.extend(bytes(len(others)))
        self.left += len(others)

    def extend(self, shards: Sequence[Shard]) -> None:
        """Add further shards, whose numbers follow the last one."""
        self._shards += shards
        for shard in shards:
            if shard.name:
                self._note_place(shard)
        self._done.extend(bytes(len(shards)))
        self.left += len(shards)

    def family(self, number: int) -> set[tuple[int, ...]]:
        """Return the places of all parts of the planned shard that a shard is, or is a part of."""
        return self._families.get(self._shards[number].place[0], set())

    def _note_place(self, part: Shard) -> None:
        number = part.place[0]
        family = self._families.setdefault(number, set())
        if number < len(self._shards) and not self._shards[number].name:
            family.add((number,))
        family.add(part.place)

    def _advance(self) -> None:
        while self.head < len(self._shards) and self._done[self.head]:
            self.head += 1


Place = tuple[int, ...]

MAX_PARTS = 1_000  # at a time; the last one has what is left over
DEFAULT_ROWS = 32_768  # of a part, where the shard's rows are not known
WINDOWS = 8  # before one to the end, of a split whose rows are not known
DIGITS = 3  # of the number of a rest


def parts_of(shard: Shard, rows: int, following: int, family: Collection[Place] = ()) -> list[Shard]:
    """Divide a shard whose worker got through about ``rows`` rows: half as many are in a part.

    The first part keeps the shard's number, the others get those from ``following`` on. A shard of one row is
    returned as it is. ``family`` are the places of all parts of the same planned shard.
    """
    groups = list(_groups(shard.splits, _part_rows(shard, rows)))
    if len(groups) > MAX_PARTS:
        groups = [
            *groups[: MAX_PARTS - 1],
            tuple(split for group in groups[MAX_PARTS - 1 :] for split in group),
        ]
    if len(groups) < 2:
        return [shard]
    width = len(str(len(groups) - 1))
    name = _below(shard, family)
    return [
        Shard(following + i - 1 if i else shard.index, splits, f"{name}.{i:0{width}d}")
        for i, splits in enumerate(groups)
    ]


def split_off(shard: Shard, rest: Remainder, number: int, family: Collection[Place] = ()) -> list[Shard]:
    """Divide a shard at a rest: that gets ``number``, and the place right behind.

    A shard that has no row behind there, as it was divided already, is returned as it is. ``family`` are the places
    of all parts of the same planned shard.

    >>> [part.name or part.index for part in split_off(Shard(7, (Split(0, 0, 9, 9),)), Remainder(0, 4, 4), 12)]
    [7, '7.001']
    >>> shard = Shard(12, (Split(0, 0, 9, 9, low=4),), "7.001")
    >>> [part.name for part in split_off(shard, Remainder(0, 6, 2), 13, [(7,), (7, 1)])]
    ['7.001', '7.002']
    >>> len(split_off(Shard(7, (Split(0, 0, 9, 9, high=4),)), Remainder(0, 4, 4), 12))
    1
    """
    if rest.split >= len(shard.splits) or 0 <= shard.splits[rest.split].high <= rest.row:
        return [shard]
    split = shard.splits[rest.split]
    before, behind = shard.splits[: rest.split], shard.splits[rest.split + 1 :]
    if rest.row > split.low:
        before = (*before, msgspec.structs.replace(split, high=rest.row))
        split = msgspec.structs.replace(split, low=rest.row)
    first = msgspec.structs.replace(shard, splits=before)
    return [first, Shard(number, (split, *behind), _behind(shard, family))]


def _behind(shard: Shard, family: Collection[Place]) -> str:
    """Return a name whose place is right behind that of a shard: no part stands between them."""
    place = shard.place
    stem, _, last = shard.name.rpartition(".")
    following = min((other for other in family if other > place), default=None)
    following_number = f"{int(last or 0) + 1:0{len(last)}d}"
    beside = (*place[:-1], place[-1] + 1)
    free = following is None or (following > beside and following[: len(beside)] != beside)
    if stem and len(following_number) == len(last) and free and (following or ())[: len(place)] != place:
        return f"{stem}.{following_number}"
    return f"{_below(shard, family)}.{1:0{DIGITS}d}"


def _below(shard: Shard, family: Collection[Place]) -> str:
    """Return a name whose parts stand behind a shard, and before all that stands behind it now."""
    name, place = shard.name or str(shard.index), shard.place
    others = [other for other in family if other != place]
    while any(other[: len(place)] == place for other in others):
        name, place = f"{name}.{0:0{DIGITS}d}", (*place, 0)
    return name


def does_not_fit(shard: Shard, reason: str, why: str = "", row: str = "") -> ErrorReport:
    """Return the error for a shard that does not fit: ``why`` it is not divided, or where its only ``row`` stands."""
    if row:
        return ErrorReport(
            "OutOfMemory",
            f"Even a single row does not fit into a worker's memory: {reason}. It was {row}. Raise memory_limit=, "
            "leave the row out, or set such rows aside (on_error='reject'). Finished work is kept.",
        )
    what = f"part {shard.label()} of the input"
    return ErrorReport(
        "OutOfMemory",
        f"A worker that works on {what} does not fit into memory: {reason}. "
        + (f"{why} " if why else "")
        + "Give the step smaller batches (batch_size=), make smaller parts (shard_rows=) in a new output, or raise "
        "memory_limit=. Finished work is kept.",
    )


def _part_rows(shard: Shard, rows: int) -> int:
    """Return how many rows a part should have."""
    known = shard.rows
    most = (
        -(-known // 2)
        if known >= 0
        else min((_half_of_window(split) for split in shard.splits), default=DEFAULT_ROWS)
    )
    return max(1, min(rows // 2 or most, most))


def _half_of_window(split: Split) -> int:
    """Return half the rows of a window that was tried before, where the rows of the split are not known."""
    return -(-split.length // 2) if split.length >= 0 else DEFAULT_ROWS


def _groups(splits: Sequence[Split], size: int) -> Iterator[tuple[Split, ...]]:
    for unknown, run in groupby(splits, lambda split: split.length < 0):
        if unknown:
            yield from ((window,) for split in run for window in _windows(split, size))
        else:
            windows = [
                msgspec.structs.replace(each, high=each.low + each.length) for each in run if each.length
            ]
            yield from in_windows(windows, repeat(size))


def _windows(split: Split, size: int) -> Iterator[Split]:
    """Cut a split whose number of rows is not known."""
    low = split.low
    for _ in range(WINDOWS):
        yield msgspec.structs.replace(split, low=low, high=low + size)
        low += size
    yield msgspec.structs.replace(split, low=low, high=-1)


# ---------------------------------------------------------------- settling the output schema

# Merges schema proposals in the order of shards; the flag says that no column's type is open any more.
Merge = Callable[[bytes | None, bytes], tuple[bytes, bool]]
# Makes one schema of those of all datasets.
Unite = Callable[[Sequence[bytes]], bytes]


class _Dataset(msgspec.Struct):
    """What is known of one dataset: how many of its ``shards``, in order, have proposed, and what."""

    shards: list[int] = msgspec.field(default_factory=list)
    seen: int = 0
    merged: bytes | None = None
    empty: bytes | None = None
    decided: bool = False


class SchemaSettlement:
    """Merges the schemas that shards propose, until one is settled: ``schema``.

    The first rows in the order of shards decide; later ones fill what is left open. Of a union, the first rows of
    each dataset have their say before any is written: ``datasets`` has the number of the dataset of each shard as it
    was planned, and ``unite`` makes one schema of theirs. Shards that were asked begin again once all have said it.
    """

    def __init__(
        self,
        merge: Merge,
        schema: bytes | None,
        shards: ShardTable,
        datasets: Sequence[int] = (),
        unite: Unite | None = None,
    ) -> None:
        self._merge = merge
        self._shards = shards
        self._of = datasets
        self._unite = unite
        self.schema = schema
        self._datasets = [_Dataset() for _ in range(max(datasets, default=0) + 1)]
        self._known = 0  # shards that are in a dataset's list
        self._proposals: dict[int, bytes] = {}  # by shard; b"" of one without rows
        self._empty_schemas: dict[int, bytes] = {}
        self._final: set[int] = set()  # shards after which nothing more will be known
        self._deferred: list[int] = []  # shards that begin again once the schema is settled

    @property
    def asks(self) -> bool:
        """True as long as attempts only say what their schema is."""
        return self._unite is not None and self.schema is None

    @property
    def probe(self) -> int:
        """The first shard that has not proposed; 0 if each dataset is asked."""
        return self._datasets[0].seen if self._unite is None else 0

    @property
    def so_far(self) -> bytes | None:
        """What is known of the schema: by rows, and for a dataset that has none by its shards without rows."""
        known = [schema for each in self._datasets if (schema := each.merged or each.empty) is not None]
        if self._unite is None or not known:
            return known[0] if known else None
        return self._unite(known)

    def propose(self, shard: int, schema: bytes, *, final: bool = False) -> None:
        """Consider a shard's schema; ``final``: later rows will not change it."""
        if self.schema is None:
            if final:
                self._final.add(shard)
            self._proposals[shard] = schema
            self._settle()

    def defer(self, shard: int, schema: bytes) -> None:
        """Consider the schema of a shard whose attempt gave up until the schema is settled."""
        self._deferred.append(shard)
        self.propose(shard, schema)

    def is_deferred(self, shard: int) -> bool:
        """Say whether a shard waits for the schema."""
        return shard in self._deferred

    def skip(self, shard: int, schema: bytes | None) -> None:
        """A shard has no rows, and so no say; what they would have counts if its whole dataset has none."""
        if self.schema is None:
            self._proposals[shard] = b""
            if schema is not None:
                self._empty_schemas[shard] = schema
            self._settle()

    def released(self) -> list[int]:
        """Return the deferred shards that can begin again, each once."""
        if self.schema is None or not self._deferred:
            return []
        released, self._deferred = self._deferred, []
        return released

    def wanted(self, begun: Collection[int]) -> int | None:
        """Return the next shard to ask, if there is one: of the dataset of which the fewest are being asked."""
        self._list_shards()
        best: tuple[int, int] | None = None
        for dataset in self._datasets:
            if dataset.decided:
                continue
            left = dataset.shards[dataset.seen :]
            new = next((n for n in left if n not in begun and not self._shards.is_committed(n)), None)
            asked = sum(n in begun for n in left[: len(self._datasets) + 64])
            if new is not None and (best is None or asked < best[0]):
                best = asked, new
        return None if best is None else best[1]

    def _list_shards(self) -> None:
        """Put shards into the lists of their datasets; in those of a union, parts of one stand where it would."""
        before, self._known = self._known, len(self._shards)
        for number in range(before, self._known):
            of = self._of[self._shards[number].place[0]] if self._unite is not None else 0
            self._datasets[of].shards.append(number)
        if 0 < before < self._known and self._unite is not None:
            for dataset in self._datasets:
                dataset.shards.sort(key=lambda number: self._shards[number].place)

    def _settle(self) -> None:
        self._list_shards()
        for dataset in self._datasets:
            self._look_at(dataset)
        if all(each.decided for each in self._datasets) and any(each.merged for each in self._datasets):
            self.schema = self.so_far
            self._proposals.clear()

    def _look_at(self, dataset: _Dataset) -> None:
        """Take what the shards of a dataset propose, in their order, until its columns have types."""
        while not dataset.decided and dataset.seen < len(dataset.shards):
            number = dataset.shards[dataset.seen]
            proposal = self._proposals.get(number)
            if proposal is None and not self._shards.is_committed(number):
                return
            dataset.seen += 1
            dataset.empty = dataset.empty or self._empty_schemas.get(number)
            if proposal:
                dataset.merged, complete = self._merge(dataset.merged, proposal)
                dataset.decided = complete or number in self._final
        # Without a union, a shard with rows may still come.
        dataset.decided = dataset.merged is not None or self._unite is not None
