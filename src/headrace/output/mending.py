"""Rows that were rejected and succeed later: records and parts of their shards as if they had never failed.

A part is written anew: its old rows, read back as they are, and new ones in their places among them. Nothing is
computed here and nothing is revealed: the records go the way of those of any further run.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from headrace.core.arrow.batch import one_batch, taken
from headrace.core.metric_states import STATES, States, merge, stored
from headrace.core.model_ports import Accumulator
from headrace.core.rejected import ERROR_FIELDS, UNREAD
from headrace.core.target_ports import Sink, Writer
from headrace.core.work import CommitRecord, Faults, Ledger, Shard, StagedFile, Task
from headrace.errors import LedgerMismatch, OutputSchemaChanged, UnreadableFile
from headrace.output.commit import ShardCommitter, bind_sink
from headrace.output.journal_state import Revoked, RunEntry, successors
from headrace.output.names import place_of
from headrace.output.verification import bytes_of
from headrace.plan.accounts import mismatch, wrong_in_record
from headrace.sinks.files import Arrow
from headrace.sources.memory import table_of

_REASON = ("_error", "_error_type", "_step")


@dataclass(frozen=True)
class Aside:
    """A committed shard, and its rejected rows in their order."""

    record: CommitRecord
    rows: pa.Table

    @property
    def placed(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Of which rows it is known where they stood."""
        if sum(self.record.ledger.added) or "_place" not in self.rows.schema.names:
            return np.zeros(self.rows.num_rows, np.bool_)
        placed: np.ndarray[Any, np.dtype[np.bool_]] = self.rows["_place"].is_valid().to_numpy()
        return placed


@dataclass(frozen=True)
class Retried:
    """What became of rejected rows of a shard that were tried again, in a run of their own: its records of them.

    ``which``: their numbers among the rejected rows of their shard; ``first``: the number of the first in that run.
    """

    which: np.ndarray[Any, np.dtype[np.int64]]
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
                found[int(self.which[row["_row"] - self.first])] = row
        return found

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Read the rows that succeeded, in their order."""
        for path in self._paths(parts=True):
            yield from Arrow().rows_back(path)

    def _paths(self, *, parts: bool) -> Iterator[Path]:
        files = (file for record in self.records for file in record.files if file.is_part == parts)
        run, output = self.committer.plan.run, self.committer.output
        return (output.root / place_of(run, file, output.place) for file in files)


def mended(
    aside: Aside,
    retried: Retried,
    committer: ShardCommitter,
    sink: Sink,
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
    which = retried.which.tolist()
    again = [number for number in which if number not in failed]
    before = aside.rows.select(_REASON).to_pylist()
    task = Task(shard, old.attempt + 1)
    places = aside.rows["_place"].take(pa.array(again, pa.int64())).to_pylist()
    files = _part(old, retried, committer, sink, task, places, schema)
    files += _rejects(sink, task, aside.rows, again, failed)
    ledgers = [record.ledger for record in retried.records]
    ledger = _ledger(old.ledger, [before[i]["_step"] for i in which], labels)
    record = CommitRecord(
        shard.index,
        task.attempt,
        old.revision,  # that of the other rows: a refresh makes all of them again
        files,
        sum(ledgers, ledger),
        sum((each.timings for each in retried.records), replace(old.timings, each=())),
        old.passed,
        _states(old, retried, committer, metrics),
        sum((each.faults for each in retried.records), _faults(old.faults, [before[i] for i in which])),
    )
    if wrong := wrong_in_record(record, labels):
        raise LedgerMismatch(mismatch(f"in part {shard.label()} of the input, {wrong}"))
    return record


def keeps_order(sink: Sink) -> bool:
    """Say whether rows that are read from one file after the other come in the order of the input."""
    return sink.target is None and not sink.partition_by


# ------------------------------------------------------------ in the places of others


def replacing(committer: ShardCommitter, shards: Sequence[int]) -> tuple[Sink, dict[int, Shard]]:
    """Return the sink for records that take the places of those of some shards, and the shard of each.

    Where readers have seen a shard, that is a further one; else it is the same.
    """
    output, plan, runs, unread = (
        committer.output,
        committer.plan,
        committer.state.runs,
        _first_unread(committer),
    )
    output.make(plan.run)
    if runs[-1].ended:
        runs = [*runs, RunEntry(len(runs) + 1, 0, 0.0, 0)]
    found = {shard: plan.shards[shard] for shard in shards if shard >= unread}
    found |= successors(plan.shards, [shard for shard in shards if shard < unread])
    return bind_sink(committer.sink, output, plan, committer.durability, runs), found


def replace_shards(committer: ShardCommitter, records: Mapping[int, CommitRecord]) -> None:
    """Let records, of what ``replacing`` returned, take the places of those of shards: all of them, or none."""
    committer.gated = True  # they are hidden until all of it is looked at
    state, unread = committer.state, _first_unread(committer)
    again = [record for record in committer.committed() if record.shard in records and record.shard >= unread]
    seen = successors(committer.plan.shards, [shard for shard in records if shard < unread])
    try:
        committer.note(*(Revoked(record.shard) for record in again), synced=False)
        if seen:
            committer.grow((), list(seen.values()), list(seen), together=True)
        state.recount(record for record in committer.committed() if record not in again)
        for record in records.values():
            committer.accept(record)
        committer.revealing.publisher.arrive()
        committer.commit_accepted()
    except BaseException:
        committer.abandon()
        raise
    state.recount(committer.committed())
    kept = {file for record in records.values() for file in record.files}
    committer.revealing.publisher.drop(file for record in again for file in record.files if file not in kept)


def _first_unread(committer: ShardCommitter) -> int:
    unread = committer.revealing.aside and not committer.state.finished
    return committer.state.runs[-1].shard if unread else len(committer.plan.shards)


# ------------------------------------------------------------ files


def _part(
    old: CommitRecord,
    retried: Retried,
    committer: ShardCommitter,
    sink: Sink,
    task: Task,
    places: Sequence[int],
    schema: pa.Schema,
) -> tuple[StagedFile, ...]:
    """Write the part, or one beside it, where rows have no order; return all parts of the shard."""
    parts, stored = tuple(file for file in old.files if file.is_part), sink.format.as_stored(schema)
    if not places:
        return parts
    if not keeps_order(sink):
        beside = replace(task, behind=len(parts) if task.shard.index == old.shard else 0)
        return parts + _written(
            sink.open(beside, schema), (_typed(each, schema) for each in retried.batches())
        )

    def typed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return (_typed(batch, schema) for batch in batches) if stored is sink.format else batches

    new = list(typed(sink.format.rows_stored(retried.batches(), schema)))
    with ExitStack() as opened:
        run, place = committer.plan.run, committer.output.place
        paths = [opened.enter_context(place.opened(place_of(run, file, place))) for file in parts]
        rows = typed(chain.from_iterable(map(_rows_of, [sink] * len(parts), parts, paths)))
        writer = sink.in_format(stored).open(task, schema)
        return _written(writer, _merged(rows, pa.Table.from_batches(new), places))


def _rows_of(sink: Sink, file: StagedFile, path: Path) -> Iterator[pa.RecordBatch]:
    """Read a part back, which has to be what was written: what is copied gets a checksum of its own."""
    if bytes_of(path) != (file.size, file.crc32):
        raise UnreadableFile(
            f"{file.name} of the output is not what was written, so no row is added to it. Nothing was changed: "
            "`headrace verify` looks at all files. Restore the file from a copy, or make the output again with "
            "mode='overwrite'."
        )
    rows = sink.format.rows_back(path)
    assert rows is not None  # who asks for it has looked
    yield from rows


def _merged(old: Iterator[pa.RecordBatch], new: pa.Table, places: Sequence[int]) -> Iterator[pa.RecordBatch]:
    """Put new rows among old ones: as many old rows come before each as its place says."""
    at = start = 0
    for batch in old:
        stop = bisect_left(places, at + batch.num_rows, start)
        if stop > start:
            here = np.asarray(places[start:stop], np.int64) - at
            order = np.argsort(np.concatenate([np.arange(batch.num_rows) * 2 + 1, here * 2]), kind="stable")
            both = pa.concat_tables([pa.Table.from_batches([batch]), new.slice(start, stop - start)])
            yield taken(one_batch(both), order)
        else:
            yield batch
        at, start = at + batch.num_rows, stop
    if places[-1] > at:
        raise LedgerMismatch(mismatch(f"a row stood behind row {places[-1]:,} of a part that has {at:,}"))
    yield from new.slice(start).to_batches()


def _written(writer: Writer, batches: Iterator[pa.RecordBatch]) -> tuple[StagedFile, ...]:
    try:
        for batch in batches:
            writer.write(batch)
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
    sink: Sink, task: Task, rows: pa.Table, again: Sequence[int], failed: dict[int, dict[str, Any]]
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
    return _written(sink.open_rejected(task, left.schema), iter(left.to_batches()))


# ------------------------------------------------------------ counts


def _ledger(old: Ledger, steps: Sequence[str], labels: Sequence[str]) -> Ledger:
    """Return a ledger without rows that were rejected in these steps, as if they had never been read.

    Steps may have one name, a corrected function has another one than the step had, and rows that ended their worker
    were set aside unread: what is counted decides.

    >>> old = Ledger(9, 7, 2, ((8, 8), (8, 7)), (0, 1), 0, (0, 0), (0, 0), (0, 0))
    >>> left = _ledger(old, ["read", "predict(f)"], ["map(f)", "predict(f)"])
    >>> left.read, left.rejected, left.steps, left.rejects
    (7, 0, ((7, 7), (7, 7)), (0, 0))
    """
    counts, aside = [list(pair) for pair in old.steps], list(old.rejects)
    for step in sorted(steps, key=lambda each: each not in labels):
        named = [
            i for i, label in enumerate(labels) if label == step or (step not in labels and step != UNREAD)
        ]
        at = next((i for i in named if aside[i]), None)
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
