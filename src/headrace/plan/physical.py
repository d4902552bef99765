"""What workers run and what is kept on disk: stages, and the saved plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec

from headrace.core.ports import Sink, Source
from headrace.core.united import UnitedSource
from headrace.core.work import Durability, OnError, Shard, Split
from headrace.plan.steps.accumulate import Accumulate
from headrace.plan.steps.base import Step


@dataclass(frozen=True, slots=True)
class Stage:
    """Steps that share a worker pool of ``workers`` processes with ``threads`` threads each; ``least`` of them at
    the start, if not all. ``origins``: which step of the plan each is, or is a part of. ``num_cpus``: the cores that
    each worker needs, where they are counted. ``remote``: what a cluster is told about each besides. ``overlapped``:
    each worker reads, computes, and encodes its output at the same time, in threads."""

    steps: tuple[Step, ...]
    workers: int
    threads: int
    overlapped: bool
    num_gpus: float = 0.0
    memory: int | None = None
    least: int = 1
    origins: tuple[int, ...] = ()
    num_cpus: float = 1.0
    remote: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ErrorPolicy:
    """What becomes of rows that fail. ``show_data``: their values may be shown in messages.

    A call that raises one of ``retry_on`` is tried again, ``max_retries`` times.
    """

    on_error: OnError = "raise"
    show_data: bool = True
    retry_on: tuple[type[BaseException], ...] = ()
    max_retries: int = 3


@dataclass(frozen=True, slots=True)
class BranchColumns:
    """The columns of one dataset of a union whose datasets have steps of their own.

    ``columns`` and ``unread`` as in ``Program``, for its rows.
    """

    columns: tuple[str, ...] | None
    unread: tuple[frozenset[str], ...]


@dataclass(frozen=True, slots=True)
class Program:
    """All that a worker needs for any shard of the plan. Travels once per worker.

    ``columns`` are the source columns to read (None: all of them); ``unread`` has, for each step, others that are
    there by the plan. ``kind`` says what becomes of the output: written by ``sink``, streamed to a reader in
    ``blocks``, only counted, or made for the next stage. ``overlapped``: the worker reads, computes, and encodes its
    output at the same time, in threads. ``reads_blocks``: rows come as blocks from the stage before instead of from
    the source. Blocks for the next stage have a multiple of ``unit`` rows, as far as memory allows, and no more than
    ``block_rows`` if a multiple is less (0: any). ``metrics`` are counted by whoever writes the rows; their
    big states become files in the folder ``states`` if it has a name. ``parted``: an attempt may leave the rest
    of its shard to another at multiples of so many rows (0: anywhere). ``folder``: where models may keep what shall
    be there when the run goes on, if it has a name. ``own_running``: what runs the steps
    that are not of Headrace. ``carried``: columns of the output that may be copied as they are
    stored, and their names in the source; ``looked_at``: the source columns whose values are needed even so.
    ``branches``: where datasets of a union have steps of their own, what to read of each; the source is a
    ``UnitedSource`` then, and each shard is of one of them.
    """

    source: Source
    steps: tuple[Step, ...]
    columns: tuple[str, ...] | None
    unread: tuple[frozenset[str], ...]
    sink: Sink | None
    kind: str
    overlapped: bool
    durability: Durability
    faults: dict[str, str] = field(default_factory=dict)
    reads_blocks: bool = False
    policy: ErrorPolicy = ErrorPolicy()
    unit: int = 0
    block_rows: int = 0
    metrics: tuple[Accumulate, ...] = ()
    states: str = ""
    parted: int = 0
    folder: str = ""
    own_running: Mapping[type[Step], type[Any]] = field(default_factory=dict)
    carried: Mapping[str, str] = field(default_factory=dict)
    looked_at: frozenset[str] = frozenset()
    branches: tuple[BranchColumns, ...] = ()

    def dataset_of(self, splits: Sequence[Split]) -> int:
        """Return the number of the dataset of a union that some splits are of; 0 where steps are those of all."""
        return cast("UnitedSource", self.source).dataset_of(splits[0]) if self.branches and splits else 0


class SavedPlan(msgspec.Struct, frozen=True):
    """The plan as it is persisted before the first attempt; resuming starts from it and from nothing else.

    ``shape`` is what must match, as JSON text. ``files`` are ``(path, size, mtime_ns)`` in the numbering that
    the shards' splits use. ``unchanged_metrics``: as ``compile.unchanged_metrics``.
    """

    run: str
    shape: str
    code: dict[str, str]
    files: list[tuple[str, int, int]]
    shards: list[Shard]
    created: float
    headrace: str
    unchanged_metrics: tuple[str, ...] = ()

    def digits(self) -> int:
        """How many digits a shard's number has in file names."""
        planned = sum(shard.place[0] == shard.index for shard in self.shards)
        return max(5, len(str(planned)))

    def encode(self) -> bytes:
        """Encode for the run folder."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> SavedPlan:
        """Read what ``encode`` wrote."""
        return msgspec.msgpack.decode(data, type=cls)
