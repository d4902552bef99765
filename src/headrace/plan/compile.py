"""From the logical plan to what runs: which columns are read, which shards. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from headrace.core.work import Shard, Split
from headrace.errors import ColumnExists, UnknownColumn
from headrace.plan.physical import ColumnsRead
from headrace.plan.steps.base import (
    ALL_COLUMNS,
    NO_COLUMNS,
    Conform,
    NeededColumns,
    Path,
    Step,
    in_dataset,
    paths_of,
    union_in,
)

if TYPE_CHECKING:
    import pyarrow as pa

SHARD_BYTES = 64 << 20
LEAST_BYTES = 1 << 20
LEAST_ROWS = 1_024
LEAST_UNCOUNTED = 128 << 10  # in bytes, where rows are not known
SMALL = 16 << 20  # bytes that are one shard where no more than that comes to each worker
SMALL_UNCOUNTED = 4 << 20
TYPICAL_ROW = 100  # bytes; a guess, for shards of so many rows where rows are not known
SHARES_PER_WORKER = 3


# ---------------------------------------------------------------- columns


def columns_at(steps: Sequence[Step], schema: pa.Schema | None) -> list[list[str] | None]:
    """Return the column names before each step and after the last; None where only running would tell.

    ``schema`` is that of the source, as far as it is known.

    Raises ``UnknownColumn`` and ``ColumnExists`` for what can never work. Of a union whose datasets have steps of
    their own, the columns of all of them.
    """
    paths = paths_of(steps)
    if paths:
        return _together([_along(path, source, i, len(steps)) for i, (source, path) in enumerate(paths)])
    names: list[str] | None = None if schema is None else list(schema.names)
    places = [names]
    for step in steps:
        if names is not None:
            step.check_columns(names)
        names = step.columns_after(names)
        places.append(names)
    return places


def _along(path: Path, schema: pa.Schema, number: int, count: int) -> list[list[str] | None]:
    """Return the columns of one dataset at each of ``count`` steps, and after the last."""
    try:
        places = columns_at([step for _, step in path], schema)
    except (UnknownColumn, ColumnExists) as error:
        raise in_dataset(number, error) from None
    passed = [sum(at < i for at, _ in path) for i in range(count + 1)]
    return [places[i] for i in passed]


def _together(datasets: Sequence[Sequence[list[str] | None]]) -> list[list[str] | None]:
    """Return the columns that any dataset has, at each place; None where one has columns that nobody knows."""
    return [
        None if None in each else list(dict.fromkeys(name for names in each for name in names or ()))
        for each in zip(*datasets, strict=True)
    ]


def known_columns(
    steps: Sequence[Step], schema: pa.Schema | None
) -> tuple[dict[str, pa.DataType | None], str | None]:
    """Return the columns after the last step with their types, as far as the plan knows them; runs nothing.

    A type is None where only running tells. What is named, if it is, may add columns that nobody knows before.
    Raises what ``columns_at`` does.
    """
    columns_at(steps, schema)
    paths = paths_of(steps)
    if paths:
        return _known_of_all([known_columns([step for _, step in path], source) for source, path in paths])
    types: dict[str, pa.DataType] = {field.name: field.type for field in schema or ()}
    names: list[str] | None = None if schema is None else list(types)
    adds = "the input" if schema is None else None
    for step in steps:
        names = step.columns_after(names)
        types = step.types_after(types) if isinstance(step, Conform) else step.carried(types)
        if names is not None:
            adds = None
        elif step.columns_after([]) is None:
            adds = step.label()
    known = list(types) if names is None else names
    return {name: types.get(name) for name in known}, adds


def _known_of_all(
    datasets: Sequence[tuple[dict[str, pa.DataType | None], str | None]],
) -> tuple[dict[str, pa.DataType | None], str | None]:
    found: dict[str, list[pa.DataType | None]] = {}
    for columns, _ in datasets:
        for name, type_ in columns.items():
            found.setdefault(name, []).append(type_)
    types = {name: each[0] if each[1:] == each[:-1] else None for name, each in found.items()}
    return types, next((adds for _, adds in datasets if adds is not None), None)


def columns_read(steps: Sequence[Step], schema: pa.Schema, *, output: bool = True) -> list[ColumnsRead]:
    """Return what to read of each dataset of a union whose datasets have steps of their own; or of all rows.

    Without ``output`` only metrics are asked for, so that nobody needs what comes out in the end. Raises
    ``UnknownColumn`` and ``ColumnExists`` for what can never work.
    """
    columns_at(steps, schema)
    return [
        _read_along(path, source, len(steps), output=output)
        for source, path in paths_of(steps) or [(schema, list(enumerate(steps)))]
    ]


def _read_along(path: Path, schema: pa.Schema, count: int, *, output: bool) -> ColumnsRead:
    counted = any(step.reads() for _, step in path if step.metrics)
    needed = ALL_COLUMNS if output or not counted else NO_COLUMNS
    for _, step in reversed(path):
        needed = step.needed_before(needed, schema)
    columns = None if all(map(needed.has, schema.names)) else tuple(filter(needed.has, schema.names))
    left = frozenset(schema.names).difference(schema.names if columns is None else columns)
    unread = [frozenset[str]()] * count
    for i, step in path:
        unread[i] = left
        left = step.unread_after(left)
    return ColumnsRead(columns, tuple(unread))


def carried_columns(steps: Sequence[Step], schema: pa.Schema) -> dict[str, str]:
    """Return the columns that come out as they are in the source: what they are called in the end, and there."""
    names = {} if union_in(steps) is not None else {name: name for name in schema.names}
    for step in steps:
        names = step.carried(names) if step.passes_values else {}
    return names


def values_looked_at(steps: Sequence[Step], schema: pa.Schema, carried: Iterable[str]) -> frozenset[str]:
    """Return the source columns whose values are needed if those in ``carried`` (names in the end) are not."""
    if union_in(steps) is not None:
        return frozenset(schema.names)
    needed = NeededColumns(without=frozenset(carried))
    for step in reversed(steps):
        needed = step.values_before(needed, schema)
    return frozenset(filter(needed.has, schema.names))


def why_rows_change(steps: Sequence[Step]) -> str:
    """Name the step that may leave rows out of any row group, or add some; "" if there is none."""
    for step in steps:
        if step.makes_rows or step.changes_row_count:
            return f"{step.label()} may change which rows there are"
    return ""


def limits_of(steps: Sequence[Step]) -> tuple[int, ...]:
    """Return the budgets of the plan's ``limit`` steps, in order."""
    return tuple(step.row_limit for step in steps if step.row_limit is not None)


# ---------------------------------------------------------------- the shards


def make_shards(
    splits: Sequence[Split],
    workers: int,
    shard_rows: int | None = None,
    batch: int = 0,
    *,
    largest: int = 0,
    small: bool = True,
    shares: int = SHARES_PER_WORKER,
    begins: Collection[int] = (),
    few: bool = False,
) -> list[Shard]:
    """Group neighbouring splits so that workers stay busy to the end and files stay decent.

    Each shard takes a share of what is still left (a third of a worker's part), 64 MiB of decoded data at
    most: big shards first, small ones last, so that all workers end together. This is guided self-scheduling
    (Polychronopoulos and Kuck, 1987). A shard has at least 1 MiB or 1,024 rows, whichever is less, as a model
    may be slow where data are small; 128 KiB where rows are not known. A split is never cut. With
    ``shard_rows``, shards are filled up to about that many rows instead; where rows are not known, a row is
    taken to have 100 bytes. With ``batch``, each shard but the last has that many rows at least, whatever else is
    said, and ends where such batches do, as far as splits let it; ``small``: one batch may be a shard. ``largest`` is
    the size of the largest batch where ``batch`` is a common multiple of several: so many rows will do. ``shares``: 1
    where shards need not be small so that workers end together. ``begins``: numbers of splits that each begin a
    shard in any case. ``few``: at most 16 MiB for each worker (4 MiB where rows are not known) become as few shards
    of one size as that makes: the run divides them, as it knows how long they take.
    """
    largest = largest or batch
    if batch > largest and batch * sum(split.bytes for split in splits) > SHARD_BYTES * sum(
        map(_rows, splits)
    ):
        batch = largest
    sizes = [split.bytes if shard_rows is None else _rows(split) for split in splits]
    least = _least_bytes(splits, largest if small else batch, small=small)
    left = sum(sizes)
    if few and shard_rows is None:
        least = max(least, _even_share(splits, workers))
    shards: list[Shard] = []
    group: list[Split] = []
    held = rows = 0
    for i, (split, size) in enumerate(zip(splits, sizes, strict=True)):
        share = max(min(max(left / (workers * shares), least), SHARD_BYTES), least if batch else 0)
        full = held + size / 2 >= (share if shard_rows is None else shard_rows)
        if group and (i in begins or (full and _ends_batch(rows, split, batch, largest))):
            shards.append(Shard(len(shards), tuple(group)))
            left -= held
            group, held, rows = [], 0, 0
        group.append(split)
        held += size
        rows += _rows(split)
    if group:
        shards.append(Shard(len(shards), tuple(group)))
    return shards


def _even_share(splits: Sequence[Split], workers: int) -> int:
    """Return the size of as few equal shards as a small input makes, no more than there are workers; else 0."""
    total = sum(split.bytes for split in splits)
    most = SMALL_UNCOUNTED if any(split.rows < 0 for split in splits) else SMALL
    pieces = -(-total // most)
    return -(-total // pieces) if 0 < pieces <= workers else 0


def _rows(split: Split) -> int:
    return split.rows if split.rows >= 0 else max(1, split.bytes // TYPICAL_ROW)


def _ends_batch(rows: int, following: Split, batch: int, largest: int) -> bool:
    """Say whether a shard of ``rows`` rows has a batch, and ends where one does or would go beyond the end of one."""
    if not batch or rows < largest:
        return not batch
    return following.rows < 0 or not rows % batch or rows % batch + following.rows > batch


def _least_bytes(splits: Sequence[Split], batch: int, *, small: bool) -> int:
    if any(split.rows < 0 for split in splits):
        usual, one = LEAST_UNCOUNTED, batch * TYPICAL_ROW
        return min(usual, one) if batch and small else max(usual, one)
    total, rows = sum(split.bytes for split in splits), max(sum(split.rows for split in splits), 1)
    usual, one = max(1, min(LEAST_BYTES, LEAST_ROWS * total // rows)), -(-batch * total // rows)
    return one if batch and small else max(usual, one)
