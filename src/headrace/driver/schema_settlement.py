"""Settling the output schema: the first rows, in the order of shards, decide; later ones fill what is left open.

Of a union, the first rows of each dataset have their say before any is written.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import msgspec

from headrace.driver.shards import ShardTable

# Merges schema proposals in the order of shards; the flag says that no column's type is open any more.
Merge = Callable[[bytes | None, bytes], tuple[bytes, bool]]
# Makes one schema of those of all datasets.
Unite = Callable[[Sequence[bytes]], bytes]


class SchemaSettlement:
    """Merges the schemas that shards propose, until one is settled.

    ``schema`` is the settled one, ``empty_schema`` that of a shard without rows, ``probe`` the first shard that has
    not proposed.
    """

    def __init__(self, merge: Merge, schema: bytes | None, shards: ShardTable) -> None:
        self._merge = merge
        self._shards = shards
        self.schema = schema
        self.empty_schema: bytes | None = None
        self.probe = 0
        self._merged: bytes | None = None
        self._proposals: dict[int, bytes] = {}  # by shard; b"" of one without rows
        self._final: set[int] = set()  # shards after which nothing more will be known
        self._deferred: list[int] = []  # shards that begin again once the schema is settled

    def propose(self, shard: int, schema: bytes, *, final: bool = False) -> None:
        """Consider a shard's schema; ``final``: later rows will not change it."""
        if final:
            self._final.add(shard)
        if self.schema is None and shard >= self.probe:
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
        """A shard has no rows, and so no say; ``schema`` is what they would have."""
        if self.schema is None and shard >= self.probe:
            if self.empty_schema is None:
                self.empty_schema = schema
            self._proposals[shard] = b""
            self._settle()

    def released(self) -> list[int]:
        """Return the deferred shards that can begin again, each once."""
        if self.schema is None or not self._deferred:
            return []
        released, self._deferred = self._deferred, []
        return released

    def _settle(self) -> None:
        complete = False
        while self.schema is None and not complete and self.probe < len(self._shards):
            proposal = self._proposals.pop(self.probe, None)
            if proposal is None and not self._shards.is_committed(self.probe):
                return
            self.probe += 1
            if proposal:
                self._merged, complete = self._merge(self._merged, proposal)
                complete = complete or self.probe - 1 in self._final
        self.schema = self._merged


# ---------------------------------------------------------------- unions


class _Dataset(msgspec.Struct):
    """What is known of one dataset: up to which of its ``shards``, in the order of rows, each has proposed."""

    shards: list[int] = msgspec.field(default_factory=list)
    seen: int = 0
    merged: bytes | None = None
    empty: bytes | None = None
    decided: bool = False


class UnionSettlement(SchemaSettlement):
    """Asks each dataset for the schema of its first rows; shards that were asked begin again once all have said it.

    ``datasets`` has the number of the dataset of each shard as it was planned.
    """

    def __init__(
        self, merge: Merge, unite: Unite, schema: bytes | None, shards: ShardTable, datasets: Sequence[int]
    ) -> None:
        super().__init__(merge, schema, shards)
        self._unite = unite
        self._of = list(datasets)
        self._datasets = [_Dataset() for _ in range(max(datasets) + 1)]
        self._known = 0  # shards that are in a dataset's list
        self._empty_schemas: dict[int, bytes] = {}

    @property
    def asks(self) -> bool:
        """True as long as attempts only say what their schema is."""
        return self.schema is None

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

    def propose(self, shard: int, schema: bytes, *, final: bool = False) -> None:
        """Consider a shard's schema."""
        if self.schema is None:
            if final:
                self._final.add(shard)
            self._proposals[shard] = schema
            self._settle()

    def skip(self, shard: int, schema: bytes | None) -> None:
        """A shard has no rows: its columns count if its whole dataset has none."""
        if self.schema is None:
            self._proposals[shard] = b""
            if schema is not None:
                self._empty_schemas[shard] = schema
            self._settle()

    def _list_shards(self) -> None:
        """Put shards into the lists of their datasets; parts of a divided shard come where that would."""
        if self._known == len(self._shards):
            return
        for number in range(self._known, len(self._shards)):
            self._datasets[self._of[self._shards[number].place[0]]].shards.append(number)
        if self._known:
            for dataset in self._datasets:
                dataset.shards.sort(key=lambda number: self._shards[number].place)
        self._known = len(self._shards)

    def _settle(self) -> None:
        self._list_shards()
        for dataset in self._datasets:
            self._look_at(dataset)
        if not all(dataset.decided for dataset in self._datasets):
            return
        rows = any(dataset.merged is not None for dataset in self._datasets)
        schemas = [dataset.merged or dataset.empty for dataset in self._datasets]
        known = [schema for schema in schemas if schema is not None]
        together = self._unite(known) if known else None
        self.schema, self.empty_schema = (together, None) if rows else (None, together)

    def _look_at(self, dataset: _Dataset) -> None:
        """Take what the shards of a dataset propose, in the order of rows, until its columns have types."""
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
        dataset.decided = True
