"""How the input is divided into shards and row ranges, so that batches of a numeric size need not be."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import groupby, pairwise

import msgspec

from headrace.core.source_ports import Source
from headrace.core.work import Shard, Split
from headrace.plan import compile as compiler
from headrace.plan.physical import Stage
from headrace.plan.steps.base import UNDECLARED, Step, paths_of, union_in


def in_windows(splits: Sequence[Split], sizes: Iterable[int]) -> Iterator[tuple[Split, ...]]:
    """Yield groups of so many rows, in order, and one of what is left. Of each split the rows have to be known.

    A split that is in one group as a whole stays as it is.

    >>> [[(split.low, split.high) for split in group] for group in in_windows([Split(0, 0, 1, 9)], [2, 4])]
    [[(0, 2)], [(2, 6)], [(6, 9)]]
    """
    group: list[Split] = []
    following = iter(sizes)
    room = next(following, None)
    for split in splits:
        low, end = split.low, split.low + split.length
        while room is not None and end - low > room:
            if room:
                group.append(msgspec.structs.replace(split, low=low, high=low + room))
            yield tuple(group)
            low += room
            group, room = [], next(following, None)
        group.append(split if low == split.low else msgspec.structs.replace(split, low=low, high=end))
        if room is not None:
            room -= end - low
    if group:
        yield tuple(group)


MOST_ROWS = 65_536  # a common multiple of several sizes that is bigger than this is not sought
READ_AGAIN = 4  # a split that two row ranges share is at most this part of one
SHARES = 3  # blocks for each worker of the next stage, at least, as far as batches allow
FEW_ROWS = 16  # of a shard, at least, where the rows up to a limit go to all workers
MODEL_ROWS = 256  # of a shard, about, where a model is loaded and there are few rows: it may be slow
ROWS_MADE = 16  # of one row, about, where a step makes several
MOST_READ_TWICE = 16 << 20  # bytes of a split that several workers may read, each for some of its rows


class Partitioning(msgspec.Struct, frozen=True):
    """How a plan's input is divided.

    ``units``: for each stage, the number of rows that its row ranges are multiples of; 0: any number. ``whole``: the
    first stage takes a shard as one row range. ``batch``: the number of rows that shards are multiples of, as far as
    splits allow; 0: any. ``largest``: the largest batch size of a step; each shard has so many rows, and with
    ``small`` may have no more. ``workers``: how many workers shards are made for. ``shares``: how many shards are
    made of what each of them would get. ``apart``: no shard has rows of two datasets of a union. ``few``: about
    so many rows are enough for a worker, and splits are cut so that each gets some; 0: splits are not cut.
    ``merged``: a small input is as few shards as can be, since the run divides what takes long. ``uncut``: pieces of
    one unit of the source, such as a row group, are one split where there are enough for all workers.
    """

    units: tuple[int, ...]
    whole: bool
    batch: int
    largest: int
    small: bool
    workers: int
    shard_rows: int | None = None
    shares: int = compiler.SHARES_PER_WORKER
    apart: bool = False
    few: int = 0
    merged: bool = False
    first: int = 0
    uncut: bool = False

    def shards(self, source: Source) -> list[Shard]:
        """Return the shards of a source."""
        if source.files_apart:
            files = groupby(source.splits(), key=lambda split: split.file)
            return [Shard(i, tuple(splits)) for i, (_, splits) in enumerate(files)]
        splits = self._splits(source)
        if not self.apart:
            return self._up_to_limit(splits) or self._spread(self.shards_of(splits), self.few)
        datasets = [source.dataset_of(split) for split in splits]
        return self.shards_of(splits, {i for i, (a, b) in enumerate(pairwise(datasets), 1) if a != b})

    def _up_to_limit(self, splits: Sequence[Split]) -> list[Shard]:
        """Return shards of the rows that a limit may let pass, and others behind these; [] without such a limit.

        So workers get equal parts of what there is to do, and none reads on where others have enough.
        """
        rows = [split.length for split in splits]
        if not self.first or min(rows, default=-1) < 0 or sum(rows) <= self.first:
            return []
        needed, *beyond = in_windows(splits, [self.first])
        shards = self._spread(self.shards_of(needed), self.few or FEW_ROWS)
        others = self.shards_of([split for group in beyond for split in group])
        return [*shards, *(Shard(len(shards) + each.index, each.splits) for each in others)]

    def begins_with_one(self, shards: Sequence[Shard]) -> bool:
        """Say whether one worker may be through with so few rows, up to a limit, before another is started."""
        if not self.first or self.few:
            return False
        rows = sum(shard.rows for shard in shards[: self.needed(shards)])
        return 0 <= rows < compiler.LEAST_ROWS * self.workers

    def needed(self, shards: Sequence[Shard]) -> int:
        """Return how many of some shards have enough rows for a limit, if every row passes it."""
        if not self.first:
            return len(shards)
        rows = 0
        for i, shard in enumerate(shards):
            if rows >= self.first:
                return i
            rows += max(0, shard.rows)
        return len(shards)

    def shards_of(self, splits: Sequence[Split], begins: Collection[int] = ()) -> list[Shard]:
        """Group splits into shards; those with the numbers in ``begins`` each begin one."""
        return compiler.make_shards(
            splits,
            self.workers,
            self.shard_rows,
            self.batch,
            largest=self.largest,
            small=self.small,
            shares=self.shares,
            begins=begins,
            few=self.merged,
        )

    def _spread(self, shards: list[Shard], few: int) -> list[Shard]:
        """Return a shard for each worker at least, as far as rows go, where ``few`` rows may be much work.

        Several workers then read one split, such as the only row group of a small file, each for its own rows.
        """
        splits = [split for shard in shards for split in shard.splits]
        if not few or self.shard_rows is not None or any(split.rows < 0 for split in splits):
            return shards
        rows, unit = sum(split.length for split in splits), self.batch or 1
        batches = -(-rows // unit)
        pieces = min(self.workers, (rows + few // 2) // few, batches)
        enough = pieces < len(shards) or (pieces == len(shards) and not self.first)
        if enough or max((split.bytes for split in splits), default=0) > MOST_READ_TWICE:
            return shards
        ends = [batches * piece // pieces * unit for piece in range(pieces)]
        sizes = [end - start for start, end in pairwise(ends)]
        return [Shard(i, group) for i, group in enumerate(in_windows(splits, sizes))]

    def _splits(self, source: Source) -> Sequence[Split]:
        if self.batch:
            return source.splits_in_batches(self.batch)
        splits = source.splits()
        whole = _without_pieces(splits) if self.uncut else []
        return whole if len(whole) >= self.workers else splits

    def row_ranges(self, shard: Shard) -> list[RowRange]:
        """Divide a shard into what workers of the first stage take at a time."""
        return list(row_ranges(shard.splits, self.units[0], whole=self.whole))


class RowRange(msgspec.Struct, frozen=True):
    """Splits without the first ``skip`` rows, and without those behind the next ``rows`` (None: none)."""

    splits: tuple[Split, ...]
    skip: int = 0
    rows: int | None = None


def _without_pieces(splits: Sequence[Split]) -> list[Split]:
    """Join the neighbours that are pieces of one unit of the source.

    >>> pieces = [Split(0, 0, 1, 5), Split(0, 0, 1, 4, first=5), Split(0, 1, 2, 9, first=9), Split(1, 1, 2, 9)]
    >>> [(split.file, split.rows) for split in _without_pieces(pieces)]
    [(0, 9), (0, 9), (1, 9)]
    """
    whole: list[Split] = []
    for split in splits:
        before = whole[-1] if whole else split
        unit = before.file, before.start, before.stop
        if (
            whole
            and unit == (split.file, split.start, split.stop)
            and before.first + before.rows == split.first
        ):
            rows, size = before.rows + split.rows, before.bytes + split.bytes
            whole[-1] = msgspec.structs.replace(before, rows=rows, bytes=size)
        else:
            whole.append(split)
    return whole


def partitioning_of(
    stages: Sequence[Stage],
    source: Source,
    shard_rows: int | None = None,
    *,
    divides: bool = False,
    begun: bool = False,
    writes: bool = False,
    copies: bool = False,
) -> Partitioning:
    """Return how the input of these stages is divided.

    ``divides``: the run divides shards that take long, so few of them are enough. ``begun``: it does so where a model
    is slow, too, as one process begins before others are started. ``writes``: the rows are written, so that shards up
    to a limit may be done at a time. ``copies``: columns may be copied as they are stored, a row group at a time.
    """
    units = tuple(map(unit_of, stages))
    steps = [step for stage in stages for step in stage.steps]
    counted = _with_rows_of_input(steps) if len(stages) == 1 else steps
    sizes = sizes_of(counted)
    asks = any(step.keeps_answers for stage in stages for step in stage.steps)
    small = any(map(is_declared, stages)) and not asks
    whole = (
        len(stages) > 1
        and units[0] > 0
        and (_has_unknown_row_counts(stages[0].steps) or _is_uncounted(source))
    )
    workers = max(stage.workers for stage in stages) if whole else stages[-1].workers
    # At the end of each shard, a worker waits for the slowest requests: one worker has nobody to divide work with.
    shares = 1 if asks and workers == 1 else compiler.SHARES_PER_WORKER
    return Partitioning(
        units,
        whole,
        _common(sizes),
        max(sizes, default=0),
        small,
        workers,
        shard_rows,
        shares,
        apart=union_in(steps) is not None,
        few=0
        if len(stages) > 1 or asks or begun
        else _few(steps, sizes, declared=small, made=len(counted) < len(steps)),
        first=next(iter(compiler.limits_of(steps)), 0) if writes else 0,
        merged=divides and len(stages) == 1 and not asks and not compiler.limits_of(steps),
        uncut=copies and divides and len(stages) == 1,
    )


def _with_rows_of_input(steps: Sequence[Step]) -> Sequence[Step]:
    """Return the steps up to the first that makes other rows: the input does not say how many come behind it."""
    makers = (i for i, step in enumerate(steps, 1) if step.makes_rows and step.changes_row_count)
    return steps[: next(makers, len(steps))]


def _few(steps: Sequence[Step], sizes: Sequence[int], *, declared: bool, made: bool) -> int:
    """Return how many rows are enough for a worker; 0 if the steps look as if it had better get many.

    ``made``: a step makes other rows of them, many as a rule.
    """
    if declared and sizes:
        return max(sizes)
    loads = declared or any(function.loads for step in steps for function in step.functions())
    return max([MODEL_ROWS // ROWS_MADE if made else MODEL_ROWS, *sizes]) if loads else 0


def unit_of(stage: Stage) -> int:
    """Return the least common multiple of a stage's numeric batch sizes, or the largest of them; 0 for none."""
    return _common(sizes_of(stage.steps))


def _common(sizes: Sequence[int]) -> int:
    if not sizes:
        return 0
    common = math.lcm(*sizes)
    return common if common <= max(MOST_ROWS, *sizes) else max(sizes)


def is_declared(stage: Stage) -> bool:
    """Say whether a step of a stage says what workers it needs."""
    return any(needs != UNDECLARED for step in stage.steps for needs in step.needs())


def dividable_unit(steps: Sequence[Step]) -> int:
    """Return the rows of whose multiples a shard may be parted so that batches are cut as without that; 0: any.

    Steps behind a filter or ``flat_map`` do not count: nobody knows how many rows come to them.
    """
    paths = paths_of(steps)
    if paths:
        units = [dividable_unit([step for _, step in path]) for _, path in paths]
        return _common([unit for unit in units if unit])
    changes = (i for i, step in enumerate(steps) if step.changes_row_count)
    return _common(sizes_of(steps[: next(changes, len(steps))]))


def sizes_of(steps: Sequence[Step]) -> list[int]:
    """Return the numeric batch sizes of some steps."""
    return [size for step in steps for size in step.batch_sizes()]


def _has_unknown_row_counts(steps: Sequence[Step]) -> bool:
    """Say whether nobody knows how many rows come to a step that wants so many: some go or come before it."""
    changes = [i for i, step in enumerate(steps) if step.changes_row_count]
    return bool(changes) and bool(sizes_of(steps[changes[0] :]))


def _is_uncounted(source: Source) -> bool:
    return any(split.rows < 0 for split in source.splits())


def row_ranges(splits: Sequence[Split], unit: int, *, whole: bool = False) -> Iterator[RowRange]:
    """Divide a shard's splits into row ranges that end at multiples of ``unit`` rows, counted from the first.

    Where a multiple lies within a split, the two ranges share it, and both read it; so such a range has about four
    splits or more. ``unit`` 0: each split is a range.
    """
    if whole:
        yield RowRange(tuple(splits))
        return
    if not unit:
        yield from (RowRange((split,)) for split in splits)
        return
    # The first split of the range, the rows of it that belong to the range before, and the rows so far.
    begun = skip = held = 0
    for i, split in enumerate(splits):
        held += split.length
        over = held % unit
        cheap = over < split.length and split.length * READ_AGAIN <= held - over
        if held >= unit and (not over or cheap):
            yield RowRange(tuple(splits[begun : i + 1]), skip, None if not over and not skip else held - over)
            begun, skip, held = (i, split.length - over, over) if over else (i + 1, 0, 0)
    if held:
        yield RowRange(tuple(splits[begun:]), skip, held if skip else None)


def oversized_shards(shards: Sequence[Shard], shard_rows: int | None) -> str:
    """Return a warning if shards are much bigger than asked for, as the source is read in bigger units; "" if not.

    >>> oversized_shards([Shard(0, (Split(0, 0, 1, 100_000),))], 1_000).partition(".")[0]
    'shard_rows=1,000 is less than the smallest part that the source can be read in'
    """
    units = [split.length for shard in shards for split in shard.splits if len(shard.splits) == 1]
    biggest = max(units, default=0)
    if shard_rows is None or biggest < 2 * shard_rows:
        return ""
    return (
        f"shard_rows={shard_rows:,} is less than the smallest part that the source can be read in. A row group, or "
        f"part of a file, is not cut, so a file of the output has up to {biggest:,} rows. Smaller row groups in "
        "the input make smaller files."
    )


def stages_with_work(
    stages: Sequence[Stage], partitioning: Partitioning, shards: Sequence[Shard]
) -> tuple[Stage, ...]:
    """Return the stages with no more workers than can have work: row ranges for the first, shards for the last."""
    last = len(stages) - 1
    alone = partitioning.begins_with_one(shards)
    shards = shards[: partitioning.needed(shards)]
    work = {last: max(1, len(shards))}
    if len(stages) > 1:
        work[0] = max(1, sum(len(partitioning.row_ranges(shard)) for shard in shards))
    return tuple(
        msgspec.structs.replace(
            stage,
            least=1 if alone and i == last else min(stage.least, work[i]),
            workers=min(stage.workers, work[i]),
        )
        if i in work
        else stage
        for i, stage in enumerate(stages)
    )


def block_rows_for(shards: Sequence[Shard], workers: int) -> int:
    """Return how many rows a block may have, so that each of so many workers gets some."""
    rows = sum(
        split.rows if split.rows >= 0 else split.bytes // compiler.TYPICAL_ROW
        for shard in shards
        for split in shard.splits
    )
    return max(1, rows // (SHARES * workers))
