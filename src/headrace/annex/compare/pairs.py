"""Which row of the old side belongs to which of the new one: by position, or by key."""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.types as pt

from headrace.annex.compare.measure import Measure
from headrace.annex.compare.sides import BATCH, OfParts, Rows
from headrace.core.arrow.batch_formats import to_numpy
from headrace.core.arrow.buffers import mask_of
from headrace.core.arrow.plain import kind_of, plain, plain_type
from headrace.core.door import library
from headrace.core.human import plural
from headrace.engines.local.machine import capacity
from headrace.errors import ArgumentError, HeadraceError
from headrace.output.commit import TABLES
from headrace.output.runs import SavedRun
from headrace.output.verification import verbs

_MEMORY = "600MB"  # of the query engine; beyond it, it spills to the temporary folder
_PIECE = 1 << 20  # rows that a thread compares before it takes others


# ------------------------------------------------------------ by position


def why_not_by_position(old: Rows, new: Rows) -> str:
    """Say why rows of the same place do not belong together; "" where they do.

    They do in two outputs over the same input, in which every row that was read was written, in its place.
    """
    for side in (old, new):
        if why := why_not_in_place(side):
            return why
    assert old.run is not None and new.run is not None
    if _input_of(old.run) != _input_of(new.run):
        return "the two outputs were made of different inputs, or the files have changed in between"
    rows = [each.run.state.ledger.written for each in (old, new) if each.run is not None]
    return f"one has {rows[0]:,} rows, and the other {rows[1]:,}" if rows[0] != rows[1] else ""


def why_not_in_place(side: Rows) -> str:
    """Say why rows of a side may not stand where they stood in an input; "" if they do."""
    if side.run is None:
        return f"{side.name} is no output of Headrace"
    moved = _moved(side.run)
    return f"in {side.name}, {moved}" if moved else ""


def _moved(run: SavedRun) -> str:
    """Say why the rows of an output may not stand where they stood in the input."""
    shape, ledger = run.plan.described, run.state.ledger
    divided = why_divided(shape.get("sink") or {})
    if divided:
        return divided
    if ledger.rejected:
        return f"{plural(ledger.rejected, 'row')} were rejected"
    moved = any(map(any, (ledger.dropped, ledger.added)))
    if moved or ledger.read != ledger.written or any(taken != given for taken, given in ledger.steps):
        return f"{ledger.written:,} rows were made of {ledger.read:,}"
    odd = verbs(shape) & {"union", "flat_map"}
    return f"{min(odd)} may have moved rows" if odd else ""


def why_divided(sink: Mapping[str, Any]) -> str:
    """Say why rows that are written there do not come in the order of the input; "" if they do."""
    if sink.get("partition_by"):
        return "rows are divided by partition_by"
    return "rows are those of a table, which others may change" if sink.get("kind") in TABLES else ""


def _input_of(run: SavedRun) -> Any:
    digests = [mark.digest for mark in run.plan.marks]
    return run.plan.described.get("source"), run.plan.files, digests, msgspec.to_builtins(run.plan.input)


def by_position(old: Rows, new: Rows, columns: tuple[list[str], list[str]], measure: Measure) -> None:
    """Count the rows of both sides, pair by pair; ``columns`` are those that are read of each."""
    if not (isinstance(old, OfParts) and isinstance(new, OfParts)):
        _count(_aligned(old.read(columns[0]), new.read(columns[1])), measure, 0)
        return

    def piece(start: int, stop: int) -> Measure:
        mine = measure.empty()
        pairs = _aligned(old.read(columns[0], start, stop), new.read(columns[1], start, stop))
        _count(pairs, mine, start)
        return mine

    bounds = _bounds(old.starts)
    threads = min(capacity().cpus, len(bounds))
    with ThreadPoolExecutor(max(1, threads), "headrace-compare") as pool:
        waiting: deque[Future[Measure]] = deque()
        for start, stop in bounds:  # merged in order, and no more of them in memory than there are threads
            if len(waiting) > threads:
                measure.merge(waiting.popleft().result())
            waiting.append(pool.submit(piece, start, stop))
        while waiting:
            measure.merge(waiting.popleft().result())


def _bounds(starts: Sequence[int]) -> list[tuple[int, int]]:
    """Return stretches of rows that begin with row groups, of about a million rows.

    >>> _bounds([0, 700_000, 1_400_000, 2_000_000])
    [(0, 1400000), (1400000, 2000000)]
    """
    found, begun = [], 0
    for start in starts[1:]:
        if start - begun >= _PIECE or start == starts[-1]:
            found.append((begun, start))
            begun = start
    return [(low, high) for low, high in found if low < high]


def _aligned(
    old: Iterator[pa.RecordBatch], new: Iterator[pa.RecordBatch]
) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch]]:
    """Yield both sides in batches of the same rows."""
    one: pa.RecordBatch | None = None
    other: pa.RecordBatch | None = None
    while True:
        one = one if one else next((each for each in old if each.num_rows), None)
        other = other if other else next((each for each in new if each.num_rows), None)
        if one is None or other is None:
            if one is not None or other is not None:
                raise ArgumentError(
                    "compare: the two sides have different numbers of rows. Say which columns tell a row: on='key'."
                )
            return
        rows = min(one.num_rows, other.num_rows)
        yield one.slice(0, rows), other.slice(0, rows)
        one, other = one.slice(rows), other.slice(rows)


def _count(pairs: Iterator[tuple[pa.RecordBatch, pa.RecordBatch]], measure: Measure, first: int) -> None:
    for old, new in pairs:
        measure.add(old, new, first)
        first += old.num_rows


# ------------------------------------------------------------ by key


def by_key(
    old: Rows,
    new: Rows,
    on: Sequence[str],
    columns: tuple[list[str], list[str]],
    measure: Measure,
) -> None:
    """Count the rows of both sides whose columns ``on`` are the same, and those that have no counterpart.

    Both sides are put into a database in a temporary folder, and joined there: DuckDB spills what does not fit into
    600 MB. A null is the same key as a null.
    """
    duckdb = library("compare", "duckdb", "sql")
    for key in on:
        types = [plain_type(side.schema.field(key).type) for side in (old, new)]
        kinds = [kind_of(type_) for type_ in types]
        whole = [pt.is_floating(type_) for type_ in types]
        if kinds[0] in ("list", "struct"):  # the engine would convert what is within, such as text to numbers
            types = [_held(key, type_) for type_ in types]
        of_one_type = kinds[0] in ("time", "duration", "list", "struct")
        if kinds[0] != kinds[1] or whole[0] != whole[1] or (of_one_type and types[0] != types[1]):
            raise ArgumentError(
                f"compare: on={key!r}: the two sides have it as {types[0]} and {types[1]}, so keys cannot be the "
                "same. Convert one of them in a step."
            )
    failed: list[Exception] = []  # to read rows of a side, which the engine tells in its own words
    with tempfile.TemporaryDirectory(prefix="headrace-compare-") as folder:
        settings = {"memory_limit": _MEMORY, "temp_directory": str(Path(folder) / "spilled")}
        connection = duckdb.connect(str(Path(folder) / "rows.duckdb"), config=settings)
        try:
            connection.execute("SET preserve_insertion_order = false")
            for side, table, names in zip((old, new), ("old", "new"), columns, strict=True):
                _fill(connection, side, table, names, failed)
                _refuse_twice(connection, side.name, table, [f"c{names.index(key)}" for key in on], on)
            for batch in _joined(connection, on, columns):
                _count_joined(batch, (old, new), columns, measure)
        except duckdb.Error as error:
            cause = failed[0] if failed else error
            if isinstance(cause, HeadraceError):
                raise cause from None
            words = f": {str(cause).strip().partition(chr(10))[0].rstrip('.')}"  # with values of rows
            refused = ArgumentError(
                f"compare: the query engine could not join the rows by {', '.join(on)}{words}. Leave columns of "
                "types that it lacks out, with columns=."
            )
            refused.row = words
            raise refused from cause
        finally:
            connection.close()


def _fill(connection: Any, side: Rows, table: str, names: list[str], failed: list[Exception]) -> None:
    """Put a side into a table of the database."""
    types = [_held(name, side.schema.field(name).type) for name in names]
    schema = pa.schema([(f"c{i}", type_) for i, type_ in enumerate(types)])

    def batches() -> Iterator[pa.RecordBatch]:
        try:
            for batch in side.read(names):
                columns = [_cast(column, type_) for column, type_ in zip(batch.columns, types, strict=True)]
                yield pa.RecordBatch.from_arrays(columns, schema=schema)
        except Exception as error:
            failed.append(error)
            raise

    reader = pa.RecordBatchReader.from_batches(schema, batches())
    connection.register("given", reader)
    connection.execute(f'CREATE TABLE "{table}" AS SELECT * FROM given')
    connection.unregister("given")


def _held(name: str, type_: pa.DataType) -> pa.DataType:
    """Return the type by which the database holds a column, so that it can be made what it was."""
    type_ = plain_type(type_)
    if pt.is_null(type_):
        return pa.int8()
    if pt.is_float16(type_):
        return pa.float32()
    if pt.is_timestamp(type_):
        return pa.timestamp(type_.unit)
    if pt.is_duration(type_) or pt.is_time(type_):
        return pa.int64()
    if pt.is_date64(type_):
        return pa.date32()
    if kind_of(type_) == "list":
        return pa.large_list(_within(name, type_.value_type))
    if pt.is_struct(type_):
        return pa.struct([(field.name, _within(name, field.type)) for field in type_])
    if kind_of(type_) in ("binary", "text"):
        return pa.large_binary() if kind_of(type_) == "binary" else pa.large_string()
    plain_types = (pt.is_boolean, pt.is_integer, pt.is_floating, pt.is_decimal128, pt.is_date32)
    if any(test(type_) for test in plain_types):
        return type_
    raise _unheld(name, type_)


def _within(name: str, type_: pa.DataType) -> pa.DataType:
    """Return by which type a value within others is held: one of the same kind."""
    held = _held(name, type_)
    if kind_of(held) != kind_of(type_):
        raise _unheld(name, type_)
    return held


def _unheld(name: str, type_: pa.DataType) -> ArgumentError:
    return ArgumentError(
        f"compare: column {name!r} holds {type_}, which cannot be compared by key. Leave the column out: columns= "
        "names those that are compared."
    )


def _cast(column: pa.Array, type_: pa.DataType) -> pa.Array:
    column = plain(column)
    if pt.is_time32(column.type):
        column = column.cast(pa.int32())
    return column if column.type == type_ else column.cast(type_)


def _restored(column: pa.Array, type_: pa.DataType) -> pa.Array:
    """Return a column that the database held as it was given, but for the form that it was stored in."""
    type_ = plain_type(type_)
    if pt.is_null(type_):
        return pa.nulls(len(column))
    if pt.is_duration(type_) or pt.is_time64(type_) or pt.is_timestamp(type_):
        return column.cast(type_)
    return column.cast(pa.int32()).cast(type_) if pt.is_time32(type_) else column


def _refuse_twice(connection: Any, name: str, table: str, keys: list[str], on: Sequence[str]) -> None:
    by = ", ".join(keys)
    twice = connection.execute(
        f'SELECT {by}, count(*) FROM "{table}" GROUP BY {by} HAVING count(*) > 1 ORDER BY {by} LIMIT 1'
    ).fetchone()
    if twice is not None:
        *key, times = twice
        shown = ", ".join(f"{column}={value!r}" for column, value in zip(on, key, strict=True))
        error = ArgumentError(
            f"compare: on={', '.join(on)}: {name} has {times:,} rows of one key: {shown}, so it is not said which of "
            "them is meant. Name the columns that tell a row: on=['a', 'b']."
        )
        error.row = f": {shown}"
        raise error


def _joined(
    connection: Any, on: Sequence[str], columns: tuple[list[str], list[str]]
) -> Iterator[pa.RecordBatch]:
    """Yield rows of both sides: a mark that there is one, then its columns, of the old side and of the new one."""
    same = " AND ".join(
        f"o.c{columns[0].index(key)} IS NOT DISTINCT FROM n.c{columns[1].index(key)}" for key in on
    )
    relation = connection.sql(
        f'SELECT o.*, n.* FROM (SELECT true AS there, * FROM "old") o FULL OUTER JOIN '
        f'(SELECT true AS there, * FROM "new") n ON {same}'
    )
    read = relation.to_arrow_reader if hasattr(relation, "to_arrow_reader") else relation.fetch_arrow_reader
    yield from read(BATCH)


def _count_joined(
    batch: pa.RecordBatch,
    given: tuple[Rows, Rows],
    columns: tuple[list[str], list[str]],
    measure: Measure,
) -> None:
    middle = 1 + len(columns[0])
    sides = {}
    for side, found, names, rows in zip(
        ("old", "new"), (batch.columns[:middle], batch.columns[middle:]), columns, given, strict=True
    ):
        there = to_numpy(found[0].is_valid())
        restored = [
            _restored(column, rows.schema.field(name).type)
            for name, column in zip(names, found[1:], strict=True)
        ]
        sides[side] = there, pa.RecordBatch.from_arrays(restored, names=names)
    both = sides["old"][0] & sides["new"][0]
    for side, (there, rows) in sides.items():
        lone = there & ~both
        if lone.any():
            measure.add_lone(side, rows.filter(mask_of(lone)))
    mask = mask_of(both)
    old, new = (rows if both.all() else rows.filter(mask) for _, rows in sides.values())
    measure.add(old, new, measure.rows)
