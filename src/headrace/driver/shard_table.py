"""The shards of a run: which are committed, and which were divided."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.core.work import Shard


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

    def family(self, number: int) -> set[tuple[int, ...]]:
        """Return the places of all parts of the planned shard that a shard is, or is a part of."""
        return self._families.get(self._shards[number].place[0], set())

    def _note_place(self, part: Shard) -> None:
        number = part.place[0]
        family = self._families.setdefault(number, set())
        if not self._shards[number].name:
            family.add((number,))
        family.add(part.place)

    def _advance(self) -> None:
        while self.head < len(self._shards) and self._done[self.head]:
            self.head += 1
