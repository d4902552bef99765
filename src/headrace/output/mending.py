"""Rows that were rejected and succeed later: records and parts of their shards as if they had never failed.

A part is written anew: its old rows, read back as they are, and new ones in their places among them. Nothing is
computed here and nothing is revealed: the records go the way of those of any further run.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain, groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
from msgspec.structs import replace

from headrace.core.files import safe_files
from headrace.core.metric_states import STATES, States, merge, stored
from headrace.core.ports import Accumulator
from headrace.core.rejected import ERROR_FIELDS
from headrace.core.uploading.names import PARTS, is_uploaded, uploaded_name
from headrace.core.work import HOME, CommitRecord, Faults, Ledger, Shard, StagedFile, Task
from headrace.errors import LedgerMismatch, OutputSchemaChanged, UnreadableFile
from headrace.output.commit import ShardCommitter
from headrace.plan.accounts import mismatch, wrong_in_record
from headrace.sinks.arrow import Arrow
from headrace.sinks.files import FileSink
from headrace.sources.rejected import table_of

_REASON = ("_error", "_error_type", "_step")
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Aside:
    """A committed shard, and its rejected rows in their order."""

    record: CommitRecord
    rows: pa.Table


@dataclass(frozen=True)
class Retried:
    """What became of rejected rows of a shard that were tried again, in a run of their own: its records of them.

    ``which``: their numbers among the rejected rows of their shard; ``first``: the number of the first in that run.
    """

    which: Sequence[int]
    first: int
    records: Sequence[CommitRecord]
    committer: ShardCommitter

    def changes(self, aside: Aside) -> bool:
        """Say whether anything became of the rows but what is known already."""
        failed, known = self.failed(), aside.rows.select(_REASON).to_pylist()
        return len(failed) < len(self.which) or any(
            known[i] != {name: row[name] for name in _REASON} for i, row in failed.items()
        )

    def failed(self) -> dict[int, dict[str, Any]]:
        """Return why rows failed again, by their numbers among the rejected rows of their shard."""
        found: dict[int, dict[str, Any]] = {}
        for path in self._paths(parts=False):
            for row in table_of(path).select([each.name for each in ERROR_FIELDS]).to_pylist():
                found[self.which[row["_row"] - self.first]] = row
        return found

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Read the rows that succeeded, in their order."""
        for path in self._paths(parts=True):
            yield from Arrow().rows_back(path)

    def _paths(self, *, parts: bool) -> Iterator[Path]:
        files = (file for record in self.records for file in record.files if file.is_part == parts)
        return (self.committer.output.root / place_of(self.committer, file) for file in files)


def mended(
    aside: Aside,
    retried: Retried,
    committer: ShardCommitter,
    sink: FileSink,
    shard: Shard,
    *,
    schema: pa.Schema,
    labels: Sequence[str],
    metrics: Sequence[tuple[str, Accumulator]],
) -> CommitRecord:
    """Write the files of a shard anew, and return its record.

    ``shard`` is what the record is for, and ``sink`` bound to the run that it is of.
    """
    old, failed = aside.record, retried.failed()
    again = [number for number in retried.which if number not in failed]
    before = aside.rows.select(_REASON).to_pylist()
    task = Task(shard, old.attempt + 1)
    with ExitStack() as opened:
        paths = [
            opened.enter_context(committer.output.place.opened(place_of(committer, file)))
            for file in old.files
            if file.is_part
        ]
        parts = [file for file in old.files if file.is_part]
        rows = chain.from_iterable(map(_rows_of, [sink] * len(parts), parts, paths))
        places = aside.rows["_place"].to_pylist()
        new = sink.format.rows_stored(retried.batches(), schema)
        files = _part(sink, task, _merged(rows, new, [places[i] for i in again]), schema)
    files += _rejects(sink, task, aside.rows, again, failed)
    ledgers = [record.ledger for record in retried.records]
    ledger = _ledger(old.ledger, [before[i]["_step"] for i in retried.which], labels)
    record = CommitRecord(
        shard.index,
        task.attempt,
        old.revision,  # that of the other rows: a refresh makes all of them again
        files,
        sum(ledgers, ledger),
        sum((each.timings for each in retried.records), replace(old.timings, each=())),
        old.passed,
        _states(old, retried, committer, metrics),
        sum(
            (each.faults for each in retried.records), _faults(old.faults, [before[i] for i in retried.which])
        ),
    )
    if wrong := wrong_in_record(record, labels):
        raise LedgerMismatch(mismatch(f"in part {shard.label()} of the input, {wrong}"))
    return record


def place_of(committer: ShardCommitter, file: StagedFile) -> str:
    """Return the name under which a committed file lies, be it published or not."""
    run, place = committer.plan.run, committer.output.place
    aside = [f"{HOME}/{run}/staging/{file.staged}", f"{HOME}/{run}/{PARTS}/{file.name}"]
    names = [uploaded_name(run, file)] if is_uploaded(file) else aside
    return next((name for name in names if place.size_of(name) == file.size), file.name)


# ------------------------------------------------------------ files


def _rows_of(sink: FileSink, file: StagedFile, path: Path) -> Iterator[pa.RecordBatch]:
    """Read a part back, which has to be what was written: what is copied gets a checksum of its own."""
    with safe_files.file(path) as opened:
        crc = 0
        while chunk := opened.read(_CHUNK):
            crc = zlib.crc32(chunk, crc)
    if crc != file.crc32:
        raise UnreadableFile(
            f"{file.name} of the output is not what was written, so no row is added to it. Nothing was changed: "
            "`headrace verify` looks at all files. Restore the file from a copy, or make the output again with "
            "mode='overwrite'."
        )
    rows = sink.format.rows_back(path)
    assert rows is not None  # who asks for it has looked
    yield from rows


def _merged(
    old: Iterator[pa.RecordBatch], new: Iterator[pa.RecordBatch], places: Sequence[int]
) -> Iterator[pa.RecordBatch]:
    """Put new rows among old ones: as many old rows come before each as its place says."""
    groups = [(place, len(list(rows))) for place, rows in groupby(places)][::-1]
    taken = _Taken(new)
    at = 0
    for batch in old:
        start = 0
        while groups and groups[-1][0] <= at + batch.num_rows:
            place, count = groups.pop()
            yield batch.slice(start, place - at - start)
            yield from taken.next(count)
            start = place - at
        yield batch.slice(start)
        at += batch.num_rows
    for place, count in reversed(groups):
        if place != at:
            raise LedgerMismatch(mismatch(f"a row stood behind row {place:,} of a part that has {at:,}"))
        yield from taken.next(count)
    if taken.left():
        raise LedgerMismatch(mismatch("more rows were made than succeeded"))


class _Taken:
    """Takes rows from batches, some at a time."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._batch: pa.RecordBatch | None = None

    def next(self, rows: int) -> Iterator[pa.RecordBatch]:
        """Yield so many rows."""
        while rows:
            if not self.left():
                raise LedgerMismatch(mismatch("fewer rows were made than succeeded"))
            assert self._batch is not None
            taken = self._batch.slice(0, rows)
            self._batch = self._batch.slice(taken.num_rows)
            rows -= taken.num_rows
            yield taken

    def left(self) -> bool:
        """Say whether there are more rows."""
        while self._batch is None or not self._batch.num_rows:
            self._batch = next(self._batches, None)
            if self._batch is None:
                return False
        return True


def _part(
    sink: FileSink, task: Task, batches: Iterator[pa.RecordBatch], schema: pa.Schema
) -> tuple[StagedFile, ...]:
    """Write the part; none if there is no row."""
    full = (batch for batch in batches if batch.num_rows)
    first = next(full, None)
    if first is None:
        return ()
    stored = sink.format.as_stored(schema)
    writer = dataclasses.replace(sink, format=stored).open(task, schema)
    try:
        for batch in chain([first], full):
            writer.write(_typed(batch, schema) if stored is sink.format else batch)
        files = writer.close()
        writer.sync()
    except BaseException:
        writer.abort()
        raise
    return files


def _typed(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch with exactly these columns; files have other types for a few, such as views in structs."""
    if batch.schema.names != schema.names:
        raise OutputSchemaChanged(
            f"A part has the columns {', '.join(batch.schema.names)}, and the output {', '.join(schema.names)}: no "
            "row is added to it. Make the output again with mode='overwrite'."
        )
    columns = [
        column if column.type == field.type else column.cast(field.type)
        for column, field in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _rejects(
    sink: FileSink, task: Task, rows: pa.Table, again: Sequence[int], failed: dict[int, dict[str, Any]]
) -> tuple[StagedFile, ...]:
    """Write the rows that stay rejected: those that failed again with their newest reason."""
    gone = set(again)
    kept = [number for number in range(rows.num_rows) if number not in gone]
    if not kept:
        return ()
    left = rows.take(kept)
    told = left.select([field.name for field in ERROR_FIELDS]).to_pylist()
    passed = 0
    for number, row in zip(kept, told, strict=True):
        while passed < len(again) and again[passed] < number:
            passed += 1
        if row["_place"] is not None:
            row["_place"] += passed
        if number in failed:
            row |= {name: failed[number][name] for name in _REASON}
            row["_attempts"] += failed[number]["_attempts"]
    for field in ERROR_FIELDS:
        column = pa.array([row[field.name] for row in told], field.type)
        left = left.set_column(left.schema.get_field_index(field.name), field, column)
    writer = sink.open_rejected(task, left.schema)
    try:
        for batch in left.to_batches():
            writer.write(batch)
        files = writer.close()
        writer.sync()
    except BaseException:
        writer.abort()
        raise
    return files


# ------------------------------------------------------------ counts


def _ledger(old: Ledger, steps: Sequence[str], labels: Sequence[str]) -> Ledger:
    """Return a ledger without rows that were rejected in these steps, as if they had never been read.

    Steps may have one name, and rows that ended their worker were set aside unread: what is counted decides.

    >>> old = Ledger(9, 7, 2, ((8, 8), (8, 7)), (0, 1), 0, (0, 0), (0, 0), (0, 0))
    >>> left = _ledger(old, ["read", "predict(f)"], ["map(f)", "predict(f)"])
    >>> left.read, left.rejected, left.steps, left.rejects
    (7, 0, ((7, 7), (7, 7)), (0, 0))
    """
    counts, aside = [list(pair) for pair in old.steps], list(old.rejects)
    for step in steps:
        at = next((i for i, label in enumerate(labels) if label == step and aside[i]), None)
        if at is None:
            continue
        aside[at] -= 1
        for pair in counts[:at]:
            pair[0], pair[1] = pair[0] - 1, pair[1] - 1
        counts[at][0] -= 1
    ledger = replace(old, steps=tuple((a, b) for a, b in counts), rejects=tuple(aside))
    return replace(ledger, read=old.read - len(steps), rejected=old.rejected - len(steps))


def _faults(old: Faults, rows: Sequence[dict[str, str]]) -> Faults:
    """Return what failed, without rows that are tried again."""
    gone = Counter((row["_step"], row["_error_type"]) for row in rows)
    counts = []
    for fault, count in old.counts:
        less = min(count, gone[fault.step, fault.kind])
        gone[fault.step, fault.kind] -= less
        counts.append((fault, count - less))
    others = gone.total()  # of kinds that were not counted separately
    counts = [(fault, count - (others if not fault.step else 0)) for fault, count in counts]
    return Faults(tuple((fault, count) for fault, count in counts if count > 0))


def _states(
    old: CommitRecord, retried: Retried, committer: ShardCommitter, metrics: Sequence[tuple[str, Accumulator]]
) -> States:
    """Merge what metrics counted of the old rows and of the new ones."""
    if not metrics:
        return ()
    totals = [metric.empty() for _, metric in metrics]
    if old.states:
        merge(totals, old.states, committer.folder)
    for record in retried.records:
        if record.states:
            merge(totals, record.states, retried.committer.folder)
    return stored(
        [total.to_bytes() for total in totals], str(committer.folder / STATES), committer.durability
    )
