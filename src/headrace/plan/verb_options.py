"""Options that verbs share: how many workers run a step, in Ray Data's words, and what all writers take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

from headrace.core.arguments import known_arguments
from headrace.errors import ArgumentError
from headrace.plan import ray_arguments

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.core.work import Durability
    from headrace.options import Fix, Mode, OnChange, Refresh


@dataclass(frozen=True, slots=True, init=False)
class ActorPoolStrategy:
    """A pool of workers: ``size`` of them, or between ``min_size`` and ``max_size``.

    Without any of them, as many as there is room for. ``max_tasks_in_flight_per_actor`` has no
    effect. Raises ``ArgumentError`` for both kinds of size or for
    numbers that make no sense.

    >>> ActorPoolStrategy(size=2).bounds()
    (2, 2)
    """

    size: int | None
    min_size: int | None
    max_size: int | None

    @known_arguments(also=ray_arguments.POOL)
    def __init__(
        self,
        size: int | None = None,
        min_size: int | None = None,
        max_size: int | None = None,
        max_tasks_in_flight_per_actor: int | None = None,
    ) -> None:
        in_flight = max_tasks_in_flight_per_actor  # of Ray Data; workers always have their next work at hand
        if in_flight is not None and (not isinstance(in_flight, int) or in_flight < 1):
            raise ArgumentError(f"max_tasks_in_flight_per_actor={in_flight!r}: it takes a number above zero.")
        for name, value in (("size", size), ("min_size", min_size), ("max_size", max_size)):
            object.__setattr__(self, name, value)
        self.bounds()

    def bounds(self) -> tuple[int, int] | None:
        """Return ``(min, max)``, or None when nothing was said."""
        if self.size is not None:
            if self.min_size is not None or self.max_size is not None:
                raise ArgumentError("ActorPoolStrategy takes either size or min_size and max_size, not both.")
            return worker_bounds("size", self.size)
        if self.min_size is None and self.max_size is None:
            return None
        low = 1 if self.min_size is None else self.min_size
        return worker_bounds("(min_size, max_size)", (low, low if self.max_size is None else self.max_size))


@dataclass(frozen=True, slots=True)
class TaskPoolStrategy:
    """As many workers as ``size``, or as there is room for; here tasks and actors run in the same workers.

    Raises ``ArgumentError`` if ``size`` is not a number above zero.

    >>> TaskPoolStrategy(size=3).bounds()
    (3, 3)
    """

    size: int | None = None

    def __post_init__(self) -> None:
        self.bounds()

    def bounds(self) -> tuple[int, int] | None:
        """Return ``(size, size)``, or None when nothing was said."""
        return worker_bounds("size", self.size) if self.size is not None else None


def worker_bounds(name: str, value: Any) -> tuple[int, int]:
    """Read a number of workers or a pair of bounds; a third number, how many there are at first, has no effect.

    >>> worker_bounds("concurrency", (1, 8))
    (1, 8)
    """
    pair = tuple(value) if isinstance(value, (tuple, list)) else (value, value)
    whole = len(pair) in (2, 3) and all(isinstance(n, int) and not isinstance(n, bool) for n in pair)
    if not whole or not 1 <= pair[0] <= pair[-1] <= pair[1]:
        raise ArgumentError(
            f"{name}={value!r}: give a number of workers such as 2, or a minimum and maximum such as (1, 8)."
        )
    return pair[0], pair[1]


# ---------------------------------------------------------------- of steps: ``**options: Unpack[StepOptions]``

Compute = ActorPoolStrategy | TaskPoolStrategy
Concurrency = int | tuple[int, int]


class WorkerOptions(TypedDict, total=False):
    """What the workers of a step need, and how many there may be. None is as if it were not given."""

    compute: Compute | None
    concurrency: Concurrency | None
    num_cpus: float | None
    num_gpus: float | None
    memory: float | str | None
    ray_remote_args: Mapping[str, Any] | None
    version: str | None


class StepOptions(WorkerOptions, total=False):
    """Further arguments of the user's function as well, and of its class."""

    fn_args: Sequence[Any] | None
    fn_kwargs: Mapping[str, Any] | None
    fn_constructor_args: Sequence[Any] | None
    fn_constructor_kwargs: Mapping[str, Any] | None


# ---------------------------------------------------------------- of writers: ``**options: Unpack[FileOptions]``

# None is as if an option were not given. ``write_parquet`` says what they mean.


class WriteOptions(TypedDict, total=False):
    """Of all writers."""

    schema: pa.Schema | None
    on_change: OnChange | None
    incremental: bool | None
    durability: Durability | None
    provenance: str | None
    refresh: Refresh | None
    fix: Fix | None


class LakeOptions(WriteOptions, total=False):
    """Of tables that are files and a log."""

    key: str | Sequence[str] | None
    min_rows_per_file: int | None
    max_rows_per_file: int | None


class OutputOptions(WriteOptions, total=False):
    """Of outputs that readers find by their folder."""

    mode: Mode | None
    key: str | Sequence[str] | None


OF_RUNS = {
    "mode": "resume (default) goes on with what is there, overwrite replaces it; where a run is finished, ignore "
    "leaves it and error refuses.",
    "on_change": "If the model or code has changed: refuse (default), continue or restart.",
    "incremental": "Add the rows of input files that are new since the last run into OUT; nothing new, no work.",
    "refresh": "changed, with --incremental: make those rows again that an older model or code made. rejected: try "
    "rows again that were set aside, and no others.",
    "fix": "With --refresh rejected: what `headrace rejected OUT --to FILE` wrote, with other values in it.",
    "key": "With --incremental: key columns, with commas. Files that were written again are read again, and only "
    "rows with new keys are processed.",
    "durability": "power (default), or process: what is finished outlives a kill.",
}
"""Those that are options of runs, too; here they override ``with_options``. Each as the command line explains it."""


class StoredOptions(OutputOptions, total=False):
    """Of outputs that may lie in a store."""

    storage_options: Mapping[str, Any] | None


class FileOptions(StoredOptions, total=False):
    """Of formats whose files have many rows."""

    min_rows_per_file: int | None
    max_rows_per_file: int | None


class FolderOptions(FileOptions, total=False):
    """Of formats that may leave out columns which folders are named for."""

    partition_by: str | Sequence[str] | None
    partition_cols: str | Sequence[str] | None
