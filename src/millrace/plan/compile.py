"""From the logical plan to what runs: which columns are read, which shards. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from millrace.core.work import Shard, Split
from millrace.errors import ColumnExists, UnknownColumn, nearest
from millrace.plan.expressions import fields_of
from millrace.plan.logical import (
    Accumulate,
    Drop,
    Filter,
    FlatMap,
    Limit,
    MapBatches,
    MapRows,
    Predict,
    Rename,
    Select,
    Step,
    may_rename,
    model_label,
    step_label,
)

if TYPE_CHECKING:
    import pyarrow as pa

SHARD_BYTES = 64 << 20
LEAST_BYTES = 1 << 20
LEAST_ROWS = 1_024
LEAST_UNCOUNTED = 128 << 10  # in bytes, where rows are not known
TYPICAL_ROW = 100  # bytes; a guess, for shards of so many rows where rows are not known
SHARES_PER_WORKER = 3


# ---------------------------------------------------------------- columns


def columns_at(steps: Sequence[Step], schema: pa.Schema) -> list[list[str] | None]:
    """Return the column names before each step and after the last; None where only running would tell.

    Raises ``UnknownColumn`` for a name that can never be there.
    """
    names: list[str] | None = list(schema.names)
    places = [names]
    for step in steps:
        names = _columns_after(step, names)
        places.append(names)
    return places


def _columns_after(step: Step, names: list[str] | None) -> list[str] | None:
    if names is not None:
        for name in _asked(step):
            if name not in names:
                raise UnknownColumn(
                    f"{step_label(step)} asks for column {name!r}, but the columns there are "
                    f"{', '.join(names) or 'none'}.{nearest(name, names)}"
                )
        if isinstance(step, Predict):
            _check_outputs(step, names)
    if may_rename(step):
        return None
    if isinstance(step, Select):
        return list(step.columns)
    if names is None:
        return None
    if isinstance(step, Drop):
        return [name for name in names if name not in step.columns]
    if isinstance(step, Rename):
        new = dict(step.names)
        renamed = [new.get(name, name) for name in names]
        for name in renamed:
            if renamed.count(name) > 1:
                raise UnknownColumn(f"{step_label(step)} would give two columns the name {name!r}.")
        return renamed
    return names


def _check_outputs(step: Predict, names: Sequence[str]) -> None:
    """Refuse a result that would take the name of a column that is carried."""
    carried = [name for name in names if step.keep is None or name in step.keep]
    for model in step.models:
        if model.output in carried and not step.replace and not model.prefixed:
            raise ColumnExists(
                f"{model_label(step, model)} would add a column {model.output!r}, and there is one of that name "
                "already. Give the result another name with output=, leave the other out with keep=, or say "
                "replace=True."
            )


def _asked(step: Step) -> tuple[str, ...]:
    if isinstance(step, MapBatches):
        return step.columns or ()
    if isinstance(step, Predict):  # what a later model reads, an earlier one may make
        return (*(step.models[0].inputs or ()), *(step.keep or ()))
    if isinstance(step, (Select, Drop, Accumulate)):
        return step.columns
    if isinstance(step, Rename):
        return tuple(old for old, _ in step.names)
    return ()


@dataclass(frozen=True, slots=True)
class _Needed:
    """Columns that somebody needs: ``only`` these (None: all there are), ``without`` those."""

    only: frozenset[str] | None = None
    without: frozenset[str] = frozenset()

    def has(self, name: str) -> bool:
        return (self.only is None or name in self.only) and name not in self.without

    def plus(self, names: Iterable[str]) -> _Needed:
        added = frozenset(names)
        return _Needed(self.only | added if self.only is not None else None, self.without - added)


_ALL = _Needed()
_NONE = _Needed(frozenset())


def columns_to_read(
    steps: Sequence[Step], schema: pa.Schema, *, output: bool = True
) -> tuple[str, ...] | None:
    """Return the source columns that the plan needs, in the source's order; None for all of them.

    Without ``output`` only metrics are asked for, so that nobody needs what comes out in the end. Raises
    ``UnknownColumn`` and ``ColumnExists`` for what can never work.
    """
    columns_at(steps, schema)
    needed = (
        _ALL if output or not any(_asked(step) for step in steps if isinstance(step, Accumulate)) else _NONE
    )
    for step in reversed(steps):
        needed = _needed_before(step, needed, schema)
    if all(map(needed.has, schema.names)):
        return None
    return tuple(filter(needed.has, schema.names))


def _needed_before(step: Step, needed: _Needed, schema: pa.Schema) -> _Needed:
    """Return what a step has to get, so that what is ``needed`` behind it can be there."""
    if isinstance(step, MapBatches):
        return _ALL if step.columns is None else _Needed(frozenset(step.columns))
    if isinstance(step, Predict):
        return _needed_by_models(step, needed)
    if isinstance(step, (MapRows, FlatMap)):
        return _ALL
    if isinstance(step, Filter):
        read = fields_of(step.expression, schema) if step.function is None else None
        return _ALL if read is None else needed.plus(read)
    if isinstance(step, Accumulate):
        return needed.plus(step.columns)
    if isinstance(step, Select):
        return _Needed(frozenset(step.columns))
    if isinstance(step, Drop):
        dropped = frozenset(step.columns)
        return _Needed(needed.only - dropped if needed.only is not None else None, needed.without | dropped)
    if isinstance(step, Rename):
        old = {new: name for name, new in step.names}
        only = frozenset(old.get(name, name) for name in needed.only) if needed.only is not None else None
        return _Needed(only, needed.without - frozenset(old)).plus(name for name, _ in step.names)
    return needed


def _needed_by_models(step: Predict, needed: _Needed) -> _Needed:
    if any(model.inputs is None for model in step.models):
        return _ALL
    carried = needed
    if step.keep is not None:
        carried = _Needed(frozenset(filter(needed.has, step.keep)))
    return carried.plus(name for model in step.models for name in model.inputs or ())


def unread_at(
    steps: Sequence[Step], schema: pa.Schema, columns: Sequence[str] | None
) -> tuple[frozenset[str], ...]:
    """Return, for each step, the columns that are there by the plan, though nobody reads them."""
    left = frozenset(schema.names).difference(schema.names if columns is None else columns)
    places = []
    for step in steps:
        places.append(left)
        if isinstance(step, Drop):
            left = left.difference(step.columns)
        elif isinstance(step, Select) or (may_rename(step) and not isinstance(step, Predict)):
            left = frozenset()
        elif isinstance(step, Predict) and step.keep is not None:
            left = left.intersection(step.keep)
    return tuple(places)


def limits_of(steps: Sequence[Step]) -> tuple[int, ...]:
    """Return the budgets of the plan's ``limit`` steps, in order."""
    return tuple(step.rows for step in steps if isinstance(step, Limit))


# ---------------------------------------------------------------- the shards


def make_shards(
    splits: Sequence[Split],
    workers: int,
    shard_rows: int | None = None,
    batch: int = 0,
    *,
    largest: int = 0,
    small: bool = True,
) -> list[Shard]:
    """Group neighbouring splits so that workers stay busy to the end and files stay decent.

    Each shard takes a share of what is still left (a third of a worker's part), 64 MiB of decoded data at
    most: big shards first, small ones last, so that all workers end together. This is guided self-scheduling
    (Polychronopoulos and Kuck, 1987). A shard has at least 1 MiB or 1,024 rows, whichever is less, as a model
    may be slow where data are small; 128 KiB where rows are not known. A split is never cut. With
    ``shard_rows``, shards are filled up to about that many rows instead; where rows are not known, a row is
    taken to have 100 bytes. With ``batch``, each shard but the last has that many rows at least, whatever else is
    said, and ends where such batches do, as far as splits let it; ``small``: one batch may be a shard. ``largest`` is
    the size of the largest batch where ``batch`` is a common multiple of several: so many rows will do.
    """
    largest = largest or batch
    if batch > largest and batch * sum(split.bytes for split in splits) > SHARD_BYTES * sum(
        map(_rows, splits)
    ):
        batch = largest
    sizes = [split.bytes if shard_rows is None else _rows(split) for split in splits]
    least = _least_bytes(splits, largest if small else batch, small=small)
    left = sum(sizes)
    shards: list[Shard] = []
    group: list[Split] = []
    held = rows = 0
    for split, size in zip(splits, sizes, strict=True):
        share = max(min(max(left / (workers * SHARES_PER_WORKER), least), SHARD_BYTES), least if batch else 0)
        full = held + size / 2 >= (share if shard_rows is None else shard_rows)
        if group and full and _ends_batch(rows, split, batch, largest):
            shards.append(Shard(len(shards), tuple(group)))
            left -= held
            group, held, rows = [], 0, 0
        group.append(split)
        held += size
        rows += _rows(split)
    if group:
        shards.append(Shard(len(shards), tuple(group)))
    return shards


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
