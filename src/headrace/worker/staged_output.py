"""The files that one attempt stages: its part, and its rejected rows."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, cast

import msgspec
import pyarrow as pa

from headrace.core.foreign import errors_of_sink, opened
from headrace.core.ports import JoinedWriter, JoiningSink, Sink, UploadingSink, Writer
from headrace.core.work import SideFile, StagedFile, Task
from headrace.errors import SinkError
from headrace.plan.physical import Program
from headrace.worker.meter import Meter
from headrace.worker.prefetch import AsyncWriter
from headrace.worker.reading import InputCheck
from headrace.worker.rejected import write_rejected

if TYPE_CHECKING:
    from headrace.core.uploading.uploader import Uploader


def by_itself(program: Program) -> tuple[Uploader | None, Program]:
    """Return what uploads the parts of a worker that does not see where its driver stages, and its program then."""
    uploads = program.uploads
    if uploads is None or program.sink is None or (uploads.sees and os.path.exists(uploads.sees)):
        return None, program
    if not hasattr(program.sink, "staged_in"):
        raise SinkError(
            f"{type(program.sink).__name__} has no method staged_in(folder), which workers on other machines need to "
            "write into a folder of their own. Derive it from headrace.sinks.files.FileSink, which has the method."
        )
    from headrace.core.uploading.uploader import Uploader

    uploader = Uploader(uploads)
    sink = cast("UploadingSink", program.sink).staged_in(uploader.staging)
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
            sink = cast("JoiningSink", self._sink())
            self._begin(sink.open_joined(self._task, schema, copied, old_times))
        return cast("JoinedWriter", self._writer)

    def end(self, inputs: InputCheck) -> None:
        """No more rows come: encode the rest, unless the finishing thread does; write the rejected rows."""
        if self._writer is not None and not self._program.overlapped:
            self._close_part()
        if self._meter.rejects and self._program.sink is not None:
            with self._meter.timing("write"):
                for split in {reject.split for reject in self._meter.rejects}:
                    inputs.begin(split)  # they are read again
                self._rejects_writer = write_rejected(self._program, self._task, self._meter.rejects)

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
