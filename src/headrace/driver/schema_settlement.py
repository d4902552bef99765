"""Settling the output schema: the first rows, in the order of shards, decide; later ones fill what is left open."""

from __future__ import annotations

from collections.abc import Callable

from headrace.driver.shard_table import ShardTable

# Merges schema proposals in the order of shards; the flag says that no column's type is open any more.
Merge = Callable[[bytes | None, bytes], tuple[bytes, bool]]


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
