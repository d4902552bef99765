"""``refresh="rejected"``: the rows that a run has set aside are tried again, and take their places.

They are an input of their own, a split for each shard that they are of, which an ordinary run puts through the same
steps. It writes beside the output's journal, where a killed driver's rows are found again. What came of it is then
put among the rows of the output, which is a further run like any other.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.core.arrow.batch import one_batch, schema_from
from headrace.core.arrow.lossless import cast as lossless
from headrace.core.arrow.objects import object_indices
from headrace.core.arrow.values import ConversionError, from_result
from headrace.core.arrow.views import make_view
from headrace.core.failures import name_of, words
from headrace.core.files import safe_files
from headrace.core.files.safe_files import KEPT
from headrace.core.human import plural
from headrace.core.rejected import ERROR_FIELDS, UNREAD
from headrace.core.target_ports import Format
from headrace.core.terminal import warn
from headrace.core.work import Shard
from headrace.errors import ArgumentError, InputChanged, StepError
from headrace.options import RunOptions
from headrace.output.job import OpenRequest
from headrace.output.mending import Aside, Retried, keeps_order, mended, replace_shards, replacing
from headrace.output.names import place_of
from headrace.output.resume import open_job
from headrace.plan.logical import Plan
from headrace.plan.partitioning import Partitioning
from headrace.plan.steps.base import union_in
from headrace.plan.steps.selection import Unseen
from headrace.session.context import RunContext
from headrace.session.rejected_file import PLACE, places_of, repaired_rows
from headrace.sinks.files import Arrow, ArrowEncoder, FileSink
from headrace.sources.memory import RejectedSource, table_of
from headrace.version import __version__

if TYPE_CHECKING:
    from headrace.core.source_ports import Source
    from headrace.output.commit import ShardCommitter
    from headrace.output.job import Job

RETRIED = "retried"
_PLACES = pa.schema([field for field in ERROR_FIELDS if field.name in PLACE])
_BATCH = 4096
_OURS = tuple(field.name for field in ERROR_FIELDS)

Numbers: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
Drive = Callable[["Job", RunContext], None]


def check_retry(plan: Plan, options: RunOptions) -> None:
    """Refuse where rejected rows cannot be tried again so that the output is what it would be without them."""
    if options.refresh != "rejected":
        raise ArgumentError(
            "fix=: it repairs rejected rows that are tried again, so it needs refresh='rejected'."
        )
    sink = plan.sink
    assert sink is not None
    asked = {"mode": options.mode != "resume" and sink.target is None, "incremental": options.incremental}
    asked |= {"key": bool(options.key), "on_change": options.on_change == "restart"}
    if other := next((name for name, found in asked.items() if found), ""):
        raise ArgumentError(
            f"refresh='rejected' with {other}={getattr(options, other)!r}: it tries the rejected rows of the output "
            "again, and does nothing else. Leave the other out."
        )
    for step in plan.steps:
        made = step.makes_rows and step.changes_row_count
        if made or step.row_limit is not None or isinstance(step, Unseen) or union_in((step,)) is not None:
            raise ArgumentError(
                f"refresh='rejected' with {step.label()}: what a row becomes there depends on others, or is not one "
                "row. So rows cannot be tried again alone. hr.read_rejected(OUT) reads them, as an input of "
                "their own."
            )
    back = type(sink.format).rows_back is not Format.rows_back and sink.format.file_names() is None
    if keeps_order(sink) and not back:
        raise ArgumentError(
            f"refresh='rejected': {sink.format.kind} files cannot be read back as they were written, so no row can "
            "get a place among those that are there. hr.read_rejected(OUT) reads the rejected rows, as an input of "
            "their own for another output."
        )


def retry(job: Job, options: RunOptions, drive: Drive) -> tuple[int, int]:
    """Try the rejected rows of a job again, whose shards are all committed; return how many succeeded, of how many.

    ``drive`` carries out a run. What is made is committed, and not revealed yet.
    """
    committer, source = job.committer, job.plan.source
    asides = _asides(committer)
    if not asides:
        return 0, 0
    if options.traits.is_cluster and committer.output.place.copied:
        raise ArgumentError(
            "refresh='rejected' with an output in a store: workers on other machines do not see where the rows are "
            "kept meanwhile. Run it with engine='local'."
        )
    path = committer.folder / KEPT / "tried.arrow"
    safe_files.make_folder(path.parent, 0o700)
    tried = _chosen(asides, source, options.fix, _done(committer), path)
    asides, which = (
        [aside for aside, numbers in zip(asides, tried, strict=True) if len(numbers)],
        [numbers for numbers in tried if len(numbers)],
    )
    if not asides:
        return 0, 0
    ends = np.cumsum([len(numbers) for numbers in which]).tolist()
    settled = committer.state.schema
    again = replace(
        job.plan,
        source=RejectedSource(path, ends, source.forms()),
        sink=FileSink(str(committer.folder / KEPT / "retried"), Arrow()),
        output_schema=None if settled is None else schema_from(settled),
        requirements=(),
    )
    with _driven(again, options, drive) as done:
        if settled is None and done.committer.state.schema is not None:
            committer.settle(done.committer.state.schema)
        return _mend(job, asides, which, ends, done)


def _asides(committer: ShardCommitter) -> list[Aside]:
    """Read the rejected rows of all shards, in the order of the input."""
    shards, run, place, found = committer.plan.shards, committer.plan.run, committer.output.place, []
    for record in committer.committed():
        for file in record.files:
            if not file.is_part and record.shard < len(shards):
                with place.opened(place_of(run, file, place)) as path:
                    found.append(Aside(record, table_of(path)))
    return sorted(found, key=lambda aside: shards[aside.record.shard].place)


def _done(committer: ShardCommitter) -> pa.Table:
    """Read where rows stand that were rejected and got their places: a file of repaired rows may have them still."""
    path = committer.folder / RETRIED
    return table_of(path) if path.exists() else _PLACES.empty_table()


# ------------------------------------------------------------ which rows, and what is in them now


def _chosen(asides: Sequence[Aside], source: Source, fix: Any, done: pa.Table, path: Path) -> list[Numbers]:
    """Return which rows of each shard are tried; write their columns of the input into a file, piece by piece."""
    schema = source.schema()
    if unknown := [schema.names[i] for i in object_indices(schema)]:
        raise ArgumentError(
            f"refresh='rejected': the column {unknown[0]} of the input holds Python objects, of which rejected rows "
            "have only the text. Run again with mode='overwrite'."
        )
    for aside in asides:
        names = [name for name in aside.rows.schema.names if name not in _OURS]
        if names != [name for name in schema.names if name not in _OURS] or len(names) < len(schema.names):
            raise InputChanged(
                f"The rejected rows have the columns {', '.join(names)}, and the input has "
                f"{', '.join(schema.names)}. Read the input as it was, or run again with mode='overwrite'."
            )
    rows = pa.concat_tables([aside.rows for aside in asides], promote_options="permissive")
    placed = np.concatenate([aside.placed for aside in asides])
    if not placed.all():
        lost = int((~placed).sum())
        words = (
            f"{plural(lost, 'rejected row')} cannot be tried again: it is not known where they stood, as an earlier "
            "version set them aside, or as a function does not return one row per row. mode='overwrite' makes all "
            "rows again."
        )
        if lost == len(placed):
            raise ArgumentError(f"refresh='rejected': {words}")
        warn(words)
    edited, given = None, np.ones(rows.num_rows, np.bool_)
    if isinstance(fix, str | os.PathLike):
        edited, given = repaired_rows(os.fspath(fix), rows, schema, set(places_of(done)))
    tried, at = np.zeros(rows.num_rows, np.bool_), 0
    with _rewritten(path, schema) as write:
        for start in range(0, rows.num_rows, _BATCH):
            piece, here = one_batch(rows.slice(start, _BATCH)), given[start : start + _BATCH]
            if edited is not None:
                inputs, at = edited.slice(at, here.sum()), at + int(here.sum())
            else:
                inputs = pa.Table.from_batches([piece]) if fix is None else _fixed(piece, fix, schema)
            empty = np.ones(inputs.num_rows, np.bool_)
            for name in schema.names:
                empty &= inputs[name].is_null().to_numpy()
            unread = pc.equal(piece.column("_step"), UNREAD).to_numpy(zero_copy_only=False)
            chosen = placed[start : start + _BATCH][here] & ~(unread[here] & empty)
            tried[start + np.flatnonzero(here)] = chosen
            typed = _typed(inputs.filter(pa.array(chosen)), schema, "The repaired rows")
            write(one_batch(typed))
    bounds = np.cumsum([0, *(aside.rows.num_rows for aside in asides)])
    return [np.flatnonzero(tried[a:b]) for a, b in pairwise(bounds)]


@contextlib.contextmanager
def _rewritten(path: Path, schema: pa.Schema) -> Iterator[Callable[[pa.RecordBatch], None]]:
    """Put a file in the place of another one, whole; yield what writes rows into it."""
    whole = path.with_suffix(".new")
    whole.unlink(missing_ok=True)
    with safe_files.new_file(whole) as file, contextlib.closing(ArrowEncoder(file, schema)) as encoder:

        def write(batch: pa.RecordBatch) -> None:
            try:
                encoder.write(batch)
            except OSError as error:
                raise safe_files.write_failed(error, whole, "write") from error

        yield write
    os.replace(whole, path)


def _fixed(batch: pa.RecordBatch, fix: Callable[[Any], Any], schema: pa.Schema) -> pa.Table:
    """Call the user's function with rejected rows, and return the columns of the input."""
    name = getattr(fix, "__name__", type(fix).__name__)
    view, known = make_view(batch, "numpy", tried=False, writable=True)
    try:
        made = fix(view)
    except Exception as error:
        raise StepError(f"fix={name} raised {name_of(error)}: {words(error)}.") from error
    try:
        result = from_result(made, known)
    except ConversionError as error:
        raise ArgumentError(f"fix={name}: {error}.") from error
    others = [each for each in result.schema.names if each not in (*schema.names, *_OURS)]
    if result.num_rows != batch.num_rows or others:
        what = (
            f"the column {others[0]}, which the input does not have"
            if others
            else f"{result.num_rows:,} rows"
        )
        raise ArgumentError(
            f"fix={name} returned {what}, for a batch of {batch.num_rows:,} rows. It has to return each row, "
            "with columns of the input."
        )
    columns = [(result if each in result.schema.names else batch).column(each) for each in schema.names]
    return _typed(pa.table(columns, names=schema.names), schema, f"fix={name}")


def _typed(table: pa.Table, schema: pa.Schema, who: str) -> pa.Table:
    """Give columns the types of the input, if no value is another then."""
    columns = []
    for field in schema:
        column = table[field.name]
        try:
            chunks = [lossless(chunk, field.type) for chunk in column.chunks]
        except pa.ArrowException as error:
            raise ArgumentError(
                f"{who}: the column {field.name} is {field.type} in the input, and {column.type} with values that do "
                f"not fit: {error}."
            ) from error
        if column.null_count and not field.nullable:
            raise ArgumentError(
                f"{who}: the column {field.name} of the input has no nulls, and a row has one now."
            )
        columns.append(pa.chunked_array(chunks, field.type))
    return pa.table(columns, schema=schema)


# ------------------------------------------------------------ the run


class _OfEachSplit(Partitioning, frozen=True):
    """A shard for each split."""

    def shards(self, source: Source) -> list[Shard]:
        return [Shard(i, (split,)) for i, split in enumerate(source.splits())]


@contextlib.contextmanager
def _driven(plan: Plan, options: RunOptions, drive: Drive) -> Iterator[Job]:
    """Carry out the run of the rows, or find what an earlier driver did of it; its job is open meanwhile."""
    on_error = "null" if options.on_error == "null" else "reject"
    options = options.updated({"on_error": on_error, "max_errors": None, "refresh": None, "fix": None})
    request = OpenRequest(
        "overwrite", "continue", "process", _OfEachSplit((), False, 0, 0, False, 1), __version__
    )
    with RunContext.open(replace(plan, sink=None), options) as context, open_job(plan, request) as job:
        drive(job, context)
        job.committer.commit_accepted()
        yield job


def _mend(
    job: Job, asides: Sequence[Aside], which: Sequence[Numbers], ends: Sequence[int], done: Job
) -> tuple[int, int]:
    committer, made = job.committer, list(done.committer.committed())
    places = [shard.place for shard in done.committer.plan.shards]
    made.sort(key=lambda record: places[record.shard])
    retried = [
        Retried(
            numbers,
            end - len(numbers),
            [record for record in made if places[record.shard][0] == i],
            done.committer,
        )
        for i, (numbers, end) in enumerate(zip(which, ends, strict=True))
    ]
    changed = [(old, new) for old, new in zip(asides, retried, strict=True) if new.changes(old)]
    if not changed:
        return 0, ends[-1]
    sink, shards = replacing(committer, [old.record.shard for old, _ in changed])
    schema = committer.state.schema
    records = {
        old.record.shard: mended(
            old,
            new,
            committer,
            cast("FileSink", sink),
            shards[old.record.shard],
            schema=pa.schema([]) if schema is None else schema_from(schema),
            labels=job.labels,
            metrics=job.plan.metrics,
        )
        for old, new in changed
    }
    gone = []
    for old, new in changed:
        failed = new.failed()
        again = pa.array([i for i in new.which if i not in failed], pa.int64())
        gone.append(old.rows.select(PLACE).take(again))
    stream = pa.BufferOutputStream()
    with pa.ipc.new_file(stream, _PLACES) as writer:
        writer.write_table(pa.concat_tables([_done(committer), *gone]).combine_chunks())
    committer.output.save(committer.plan.run, RETRIED, stream.getvalue().to_pybytes())
    replace_shards(committer, records)
    return sum(len(new.which) - len(new.failed()) for _, new in changed), ends[-1]
