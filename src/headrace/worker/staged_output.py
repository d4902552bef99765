"""The files that one attempt stages: its part, and its rejected rows."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import groupby
from typing import TYPE_CHECKING, Any
from typing import cast as of_type

import msgspec
import numpy as np
import pyarrow as pa

from headrace.core.arrow.batch import column_taken, one_batch, taken
from headrace.core.arrow.lossless import cast, lossless
from headrace.core.arrow.objects import as_texts, is_objects
from headrace.core.failures import errors_of_sink, opened
from headrace.core.parquet.chunks import Chunks
from headrace.core.rejected import ERROR_FIELDS, rejected_schema
from headrace.core.source_ports import Source
from headrace.core.target_ports import JoinedWriter, Sink, Writer
from headrace.core.work import Reject, SideFile, Split, StagedFile, Task
from headrace.plan.physical import Program
from headrace.worker.meter import Meter
from headrace.worker.reading import InputCheck, SplitReader
from headrace.worker.rows import PlacesInPart

if TYPE_CHECKING:
    from headrace.core.uploader import Uploader

_DEPTH = 3  # batches that are encoded or wait for it
REJECTED_ROWS = 4_096  # in a batch


def by_itself(program: Program) -> tuple[Uploader | None, Program]:
    """Return what uploads the parts of a worker that does not see where its driver stages, and its program then."""
    uploads = program.uploads
    if uploads is None or program.sink is None or (uploads.sees and os.path.exists(uploads.sees)):
        return None, program
    from headrace.core.uploader import Uploader

    uploader = Uploader(uploads)
    sink = program.sink.staged_in(uploader.staging)
    return uploader, msgspec.structs.replace(
        program, sink=sink, states=uploader.states if program.states else "", durability="process"
    )


class StagedOutput:
    """Opens, closes and syncs them; ``files`` are those of the part when it is closed, and in the end all."""

    def __init__(self, program: Program, task: Task, meter: Meter) -> None:
        self._program = program
        self._task = task
        self._meter = meter
        self._writer: Writer | None = None
        self._rejects_writer: Writer | None = None
        self.files: tuple[StagedFile, ...] = ()

    @property
    def is_open(self) -> bool:
        """True if there is a file that ``finish`` has to close or to sync."""
        return self._writer is not None or self._rejects_writer is not None

    def write(self, batch: pa.RecordBatch, schema: pa.Schema) -> None:
        """Write rows to the part, which is opened with the first."""
        with self._meter.timing("write"):
            if self._writer is None:
                self._check(schema)
                sink, show = self._sink(), self._program.policy.show_data
                self._begin(opened(sink, self._task, schema, show_data=show))
            assert self._writer is not None
            self._writer.write(batch)

    def joined(
        self, schema: pa.Schema, copied: Mapping[str, str], old_times: Collection[str]
    ) -> JoinedWriter:
        """Open the part for rows of which some columns are copied."""
        if self._writer is None:
            self._check(schema)
            self._begin(self._sink().open_joined(self._task, schema, copied, old_times))
        return of_type("JoinedWriter", self._writer)

    def end(self, inputs: InputCheck, places: PlacesInPart) -> None:
        """No more rows come: encode the rest, unless the finishing thread does; write the rejected rows."""
        if self._writer is not None and not self._program.overlapped:
            self._close_part()
        if self._meter.rejects and self._program.sink is not None:
            with self._meter.timing("write"):
                for split in {reject.split for reject in self._meter.rejects}:
                    inputs.begin(split)  # they are read again
                places.end(self._meter.rejects)
                self._rejects_writer = write_rejected(self._program, self._task, self._meter.rejects, places)

    def finish(self) -> None:
        """Close and sync the files; runs in a thread of its own."""
        if self._writer is not None:
            if self._program.overlapped:
                self._close_part()
            self._writer.sync()
        if self._rejects_writer is not None:
            self.files += self._rejects_writer.close()
            self._rejects_writer.sync()

    def upload(self, uploader: Uploader, states: Sequence[bytes | SideFile]) -> None:
        """Upload what was staged, and big states of metrics; ``files`` are then where they were uploaded to."""
        with self._meter.timing("write"):
            self.files = uploader.upload(self.files)
            uploader.upload_states(states)

    def abort(self) -> None:
        """Remove the staged files."""
        for writer in (self._writer, self._rejects_writer):
            if writer is not None:
                writer.abort()
        self._writer = self._rejects_writer = None

    def _sink(self) -> Sink:
        assert self._program.sink is not None
        return self._program.sink

    def _check(self, schema: pa.Schema) -> None:
        """Have the sink look at the schema, in the attempts that may settle it."""
        if self._task.attempt == 0 and self._task.schema is None:
            with errors_of_sink(self._sink(), self._task, show_data=self._program.policy.show_data):
                self._sink().check_schema(schema)

    def _begin(self, writer: Writer) -> None:
        self._writer = AsyncWriter(writer) if self._program.overlapped else writer

    def _close_part(self) -> None:
        assert self._writer is not None
        with self._meter.timing("write"):
            self.files = self._writer.close()


class AsyncWriter:
    """A writer that encodes in a thread of its own; an error there surfaces at a later call."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._thread = ThreadPoolExecutor(1, "headrace-encode")
        self._queued: deque[Future[None]] = deque()

    def write(self, batch: pa.RecordBatch) -> None:
        """Queue the next rows."""
        self._queue(self._writer.write, batch)

    def write_group(self, file: Chunks, number: int, batches: Sequence[pa.RecordBatch]) -> None:
        """Queue a row group; see ``JoinedWriter``."""
        self._queue(of_type("JoinedWriter", self._writer).write_group, file, number, batches)

    def _queue(self, write: Callable[..., None], *args: Any) -> None:
        if len(self._queued) >= _DEPTH:
            self._queued.popleft().result()
        self._queued.append(self._thread.submit(write, *args))

    def close(self) -> tuple[StagedFile, ...]:
        """Wait for the queued rows, then end the part."""
        while self._queued:
            self._queued.popleft().result()
        self._thread.shutdown()
        return self._writer.close()

    def sync(self) -> None:
        """See ``Writer.sync``."""
        self._writer.sync()

    def abort(self) -> None:
        """Drop everything."""
        self._thread.shutdown(cancel_futures=True)
        self._writer.abort()


# ---------------------------------------------------------------- rejected rows


def write_rejected(program: Program, task: Task, rejects: Sequence[Reject], places: PlacesInPart) -> Writer:
    """Write what an attempt rejected, in the order of the source; the caller closes the writer."""
    assert program.sink is not None
    schema = rejected_schema(program.source.schema())
    writer = program.sink.open_rejected(task, schema)
    place = {split: at for at, split in enumerate(task.shard.splits)}
    try:
        ordered = sorted(rejects, key=lambda reject: (place.get(reject.split, len(place)), reject.row))
        for split, of_split in groupby(ordered, key=lambda reject: reject.split):
            for batch in _batches(program.source, split, list(of_split), schema, task.attempt + 1, places):
                writer.write(batch)
    except BaseException:
        writer.abort()
        raise
    return writer


def _batches(
    source: Source,
    split: Split,
    rejects: list[Reject],
    schema: pa.Schema,
    attempts: int,
    in_part: PlacesInPart,
) -> Iterator[pa.RecordBatch]:
    """Yield the rejected rows of one split. Their columns are read from the source again, whatever was projected."""
    numbers = np.concatenate([np.arange(each.row, each.row + each.count) for each in rejects])
    whose = np.repeat(np.arange(len(rejects)), [each.count for each in rejects])
    exact = np.array([each.row + each.count - 1 == each.last for each in rejects])[whose]
    originals = _Originals(source, split, np.unique(numbers[exact]))
    places = _RowLocations(source, split)
    for at in range(0, len(numbers), REJECTED_ROWS):
        part = slice(at, at + REJECTED_ROWS)
        columns = originals.columns(np.where(exact[part], numbers[part], -1), schema)
        chosen = [rejects[i] for i in whose[part]]
        files, rows = places.of(numbers[part], exact[part])
        ours = [
            [each.fault.message for each in chosen],
            [each.fault.kind for each in chosen],
            [each.fault.step for each in chosen],
            files,
            rows,
            [attempts] * len(chosen),
            [in_part.of(each) if known else None for each, known in zip(chosen, exact[part], strict=True)],
        ]
        columns += [pa.array(values, field.type) for values, field in zip(ours, ERROR_FIELDS, strict=True)]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


class _Originals:
    """The rows of a split that have certain numbers, as far as they can be read."""

    def __init__(self, source: Source, split: Split, numbers: np.ndarray[Any, np.dtype[np.int64]]) -> None:
        found: list[pa.RecordBatch] = []
        self._numbers: list[int] = []
        reading = SplitReader(source, split, None, tolerant=True)
        while len(numbers) and (read := reading.next()) is not None:
            if not len(read.rows):
                continue
            there = np.concatenate([span.numbers() for span in read.rows.spans])
            at = np.flatnonzero(np.isin(there, numbers))
            if len(at):
                found.append(taken(read.rows.batch, at))
                self._numbers += there[at].tolist()
            if there[-1] >= numbers[-1]:
                break
        self._rows = one_batch(pa.Table.from_batches(found)) if found else None

    def columns(self, numbers: np.ndarray[Any, np.dtype[np.int64]], schema: pa.Schema) -> list[pa.Array]:
        """Return the source's columns of these rows, with nulls where a row could not be read."""
        fields = list(schema)[: -len(ERROR_FIELDS)]
        if self._rows is None:
            return [pa.nulls(len(numbers), field.type) for field in fields]
        at = np.searchsorted(self._numbers, numbers).clip(max=len(self._numbers) - 1)
        places = np.where(np.asarray(self._numbers)[at] == numbers, at, -1)
        there = self._rows.schema.names
        return [
            _as(column_taken(self._rows.column(field.name), places), field.type)
            if field.name in there
            else pa.nulls(len(numbers), field.type)
            for field in fields
        ]


def _as(column: pa.Array, type_: pa.DataType) -> pa.Array:
    """Return a column of a source, or of one dataset of a union, as files of rejected rows have it."""
    if is_objects(column.type):
        return as_texts(column)
    if lossless(column.type, type_):
        return column if column.type.equals(type_) else cast(column, type_)
    return pa.array([None if value is None else str(value) for value in column.to_pylist()], type_)


class _RowLocations:
    """File and row number of rows of a split, of the words in which the source tells them."""

    def __init__(self, source: Source, split: Split) -> None:
        self._source = source
        self._split = split

    def of(
        self, numbers: np.ndarray[Any, np.dtype[np.int64]], exact: np.ndarray[Any, np.dtype[np.bool_]]
    ) -> tuple[list[str], list[int | None]]:
        """Return files and row numbers. Asking may be slow: where first and last say enough, no others are asked."""
        (file, first), (other, last) = self._place(int(numbers[0])), self._place(int(numbers[-1]))
        between = int(numbers[-1] - numbers[0])
        if file == other and first is not None and last is not None and last - first == between:
            files, rows = [file] * len(numbers), (numbers - numbers[0] + first).tolist()
        else:
            places = [self._place(int(number)) for number in numbers]
            files, rows = [place for place, _ in places], [row for _, row in places]
        return files, [row if known else None for row, known in zip(rows, exact.tolist(), strict=True)]

    def _place(self, number: int) -> tuple[str, int | None]:
        location = self._source.locate(self._split, number)
        if location.number is None:
            return str(location), None
        return location.file, location.number
