"""What workers run and what is kept on disk: stages, and the saved plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from headrace.core.files.input_files import Mark
from headrace.core.files.staged import Uploads
from headrace.core.source_ports import Source
from headrace.core.target_ports import Sink
from headrace.core.work import Durability, OnError, Shard, Split
from headrace.plan.steps.accumulate import Accumulate
from headrace.plan.steps.base import Step


class Stage(msgspec.Struct, frozen=True):
    """Steps that share a pool of workers."""

    steps: tuple[Step, ...]
    workers: int  # the most
    threads: int  # of each worker
    overlapped: bool  # each worker reads, computes, and encodes its output at the same time, in threads
    num_gpus: float = 0.0  # of each worker
    memory: int | None = None  # of each worker, in bytes, where it is declared
    least: int = 1  # so many workers at the start, if not all
    origins: tuple[int, ...] = ()  # which step of the plan each is, or is a part of
    num_cpus: float = 1.0  # the cores that each worker needs, where they are counted
    # What a cluster is told about each worker besides.
    remote: Mapping[str, Any] = msgspec.field(default_factory=dict)


class ErrorPolicy(msgspec.Struct, frozen=True):
    """What becomes of rows that fail. ``show_data``: their values may be shown in messages.

    A call that raises one of ``retry_on`` is tried again, ``max_retries`` times.
    """

    on_error: OnError = "raise"
    show_data: bool = True
    retry_on: tuple[type[BaseException], ...] = ()
    max_retries: int = 3


class BranchColumns(msgspec.Struct, frozen=True):
    """The columns of one dataset of a union whose datasets have steps of their own.

    ``columns`` and ``unread`` as in ``Program``, for its rows.
    """

    columns: tuple[str, ...] | None
    unread: tuple[frozenset[str], ...]


class Program(msgspec.Struct, frozen=True):
    """All that a worker needs for any shard of the plan. Travels once per worker."""

    source: Source
    steps: tuple[Step, ...]
    columns: tuple[str, ...] | None  # of the source, to be read; None: all of them
    unread: tuple[frozenset[str], ...]  # for each step, columns that are there by the plan, but not read
    sink: Sink | None
    kind: str  # what becomes of rows: "write", "blocks" for a reader, "look", "count", "make" for the next stage
    overlapped: bool  # the worker reads, computes, and encodes its output at the same time, in threads
    durability: Durability
    failpoints: dict[str, str] = msgspec.field(default_factory=dict)  # what a test has happen, and where
    stage: int = 0  # which of the plan's stages this is
    policy: ErrorPolicy = ErrorPolicy()
    unit: int = 0  # blocks for the next stage have a multiple of so many rows, as far as memory allows,
    block_rows: int = 0  # and no more than these, if a multiple is less; 0: any
    metrics: tuple[Accumulate, ...] = ()  # counted by whoever writes the rows
    states: str = ""  # the folder for big states of metrics, if there is one
    # An attempt may leave the rest of its shard to another at multiples of so many rows; 0: anywhere.
    parted: int = 0
    folder: str = ""  # where models may keep what shall be there when the run goes on, if there is one
    # What runs steps not of Headrace.
    own_running: Mapping[type[Step], type[Any]] = msgspec.field(default_factory=dict)
    # Output columns that may be copied: names in the source.
    carried: Mapping[str, str] = msgspec.field(default_factory=dict)
    # Source columns whose values are needed even if all these are copied.
    looked_at: frozenset[str] = frozenset()
    # What to read of each dataset of a union whose datasets have steps.
    branches: tuple[BranchColumns, ...] = ()
    # For workers that may not see where the output is staged: how they upload what they write.
    uploads: Uploads | None = None

    @property
    def reads_blocks(self) -> bool:
        """True if rows come as blocks from the stage before, not from the source."""
        return self.stage > 0

    def dataset_of(self, splits: Sequence[Split]) -> int:
        """Return the number of the dataset of a union that some splits are of; 0 where steps are those of all."""
        return self.source.dataset_of(splits[0]) if self.branches and splits else 0


class InputVersion(msgspec.Struct, frozen=True, array_like=True):
    """Up to where an input that has versions was read: its ``position``, and the columns and forms that it had."""

    position: dict[str, Any] = {}
    columns: dict[str, str] = {}
    forms: dict[str, str] = {}


class SavedPlan(msgspec.Struct, frozen=True):
    """The plan as it is persisted before the first attempt; resuming starts from it and from nothing else.

    ``shape`` is what must match, as JSON text. ``files`` are ``(path, size, mtime_ns)`` in the numbering that
    the shards' splits use, and ``marks`` those of the first of them; empty where an earlier version has planned.
    ``unchanged_metrics``: as ``compile.unchanged_metrics``. ``input``: what was read of one that has versions.
    ``table``: what tells the table that was there, to which the rows are to be added, from others.
    """

    run: str
    shape: str
    code: dict[str, str]
    files: list[tuple[str, int, int]]
    shards: list[Shard]
    created: float
    headrace: str
    unchanged_metrics: tuple[str, ...] = ()
    input: InputVersion | None = None
    table: str = ""
    marks: Sequence[Mark] = ()

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
