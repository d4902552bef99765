"""What every format of files promises, as tests. A subclass says which format and how its files are read back."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.core import failpoints
from headrace.core.ports import Format, Moment, Sink
from headrace.core.work import CommitRecord, Durability, Ledger, Shard, StagedFile, Task
from headrace.errors import OutputWriteFailed
from headrace.output.names import run_of
from headrace.output.places.place import place_at
from headrace.sinks.files import FileSink
from headrace.testing.expect import check, same

SCHEMA = pa.schema([("id", pa.int64()), ("word", pa.string()), ("score", pa.float64())])


def rows(start: int, stop: int) -> pa.RecordBatch:
    """Return rows that tell their own place."""
    numbers = range(start, stop)
    columns = [list(numbers), [f"w{n} ü,\"'" for n in numbers], [n + 0.5 for n in numbers]]
    return pa.RecordBatch.from_arrays(
        [pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA
    )


def task(shard: int = 3, attempt: int = 1) -> Task:
    """Return a task as a worker would get it."""
    return Task(Shard(shard, ()), attempt)


def bound(sink: FileSink, folder: Path, durability: Durability = "power") -> Sink:
    """Make the folders, as the driver does, and bind the sink to a run named ``r1``."""
    staging = folder / "_headrace" / "r1" / "staging"
    staging.mkdir(parents=True, exist_ok=True)
    return sink.bind(run="r1", staging=str(staging), digits=4, durability=durability)


def published(sink: Sink, file: StagedFile) -> Path:
    """Give a staged file its final name, as the driver does, and return where it is."""
    publisher = place_at(sink.root).publisher(sink, "r1", Moment.COMMIT)
    publisher.publish([CommitRecord(0, 1, 0, (file,), Ledger())])
    return Path(sink.root, file.name)


def open_below(folder: Path) -> list[str]:
    """Return the files and folders below ``folder`` that this process has open. Other threads may open others."""
    gc.collect()
    below = os.path.realpath(folder) + os.sep
    found = []
    for name in os.listdir("/proc/self/fd") if sys.platform == "linux" else ():
        with contextlib.suppress(OSError):  # it was closed meanwhile
            found.append(os.readlink(f"/proc/self/fd/{name}"))
    return sorted(path for path in found if path.startswith(below))


class FormatContract:
    """Subclass it with ``make`` and ``read``.

    It writes the columns ``id`` (int64), ``word`` (string, with quotes, commas and ü) and ``score`` (float64),
    without nulls; ``read`` returns a table of these types. After ``many`` rows some have reached the file, before it
    is closed.
    """

    many = 300_000

    def make(self) -> Format:
        """Return a format."""
        raise NotImplementedError

    def within(self, root: Path) -> FileSink:
        """Return a sink that writes to the folder ``root``. Default: in the format, and to no table."""
        return FileSink(str(root), self.make())

    def read(self, path: Path) -> pa.Table:
        """Return the rows of a published part."""
        raise NotImplementedError

    @pytest.fixture
    def sink(self, tmp_path: Path) -> Sink:
        return bound(self.within(tmp_path), tmp_path)

    @pytest.fixture(autouse=True)
    def no_faults_left(self) -> Any:
        yield
        failpoints.activate({})

    def stage(self, sink: Sink, *batches: pa.RecordBatch, **where: int) -> StagedFile:
        writer = sink.open(task(**where), SCHEMA)
        for batch in batches:
            writer.write(batch)
        (file,) = writer.close()
        writer.sync()
        return file

    def staged(self, sink: Sink) -> list[str]:
        return sorted(os.listdir(sink.staging))

    def test_rows_keep_their_order_and_content(self, sink: Sink) -> None:
        file = self.stage(sink, rows(0, 7), rows(7, 7), rows(7, 1000), rows(1000, 1003))
        same(
            self.read(published(sink, file)),
            pa.Table.from_batches([rows(0, 1003)]),
            "what is in the file",
        )
        same(file.rows, 1003, "the rows that the part tells")

    def test_slices_are_written_as_slices(self, sink: Sink) -> None:
        file = self.stage(sink, rows(0, 100).slice(10, 20), rows(0, 100).slice(99))
        found = self.read(published(sink, file))["id"].to_pylist()
        same(found, [*range(10, 30), 99], "the column 'id' of the file")

    def test_size_and_checksum_are_those_of_the_file(self, sink: Sink) -> None:
        file = self.stage(sink, rows(0, 500))
        data = Path(sink.staging, file.staged).read_bytes()
        same((file.size, file.crc32), (len(data), zlib.crc32(data)), "size and checksum that the part tells")

    def test_names(self, sink: Sink) -> None:
        file = self.stage(sink, rows(0, 1), shard=12, attempt=2)
        same(file.name, f"part-0012-r1.{sink.format.suffix}", "the name of the part")
        begins = f"0012-2-{os.getpid()}-"
        named = file.staged.startswith(begins) and file.staged.endswith(".staged")
        check(named, f"a staged file is named {begins}….staged, not {file.staged}")
        again = self.stage(sink, rows(0, 1), shard=12, attempt=2)
        check(again.staged != file.staged, f"two staged files have one name, {file.staged}")

    def test_an_output_knows_its_parts_again(self, sink: Sink) -> None:
        run = "k3f9a2xq"
        name = self.stage(
            sink.bind(run=run, staging=sink.staging, digits=4, durability="process"), rows(0, 1)
        ).name
        same(run_of(name), run, f"the run that is read from the name {name!r}")

    def test_an_attempt_without_rows_leaves_no_file(self, sink: Sink) -> None:
        writer = sink.open(task(), SCHEMA)
        writer.abort()
        same(self.staged(sink), [], "staged files that are left")

    def test_a_part_can_be_empty(self, sink: Sink) -> None:
        file = self.stage(sink)
        same(file.rows, 0, "the rows that the part tells")
        same(self.read(published(sink, file)).num_rows, 0, "the rows in the file")

    @pytest.mark.parametrize("when", ["written", "closed", "synced"])
    def test_abort_leaves_nothing(self, sink: Sink, tmp_path: Path, when: str) -> None:
        before = open_below(tmp_path)
        writer = sink.open(task(), SCHEMA)
        writer.write(rows(0, self.many if when == "written" else 3))
        if when != "written":
            writer.close()
        if when == "synced":
            writer.sync()
        same(len(self.staged(sink)), 1, "the number of staged files before abort()")
        writer.abort()
        writer.abort()
        same(self.staged(sink), [], "staged files that are left")
        del writer
        same(open_below(tmp_path), before, "open descriptors")

    @pytest.mark.parametrize("durability", ["power", "process"])
    def test_no_descriptor_is_left_open(self, tmp_path: Path, durability: Durability) -> None:
        sink = bound(self.within(tmp_path), tmp_path, durability)
        before = open_below(tmp_path)
        self.stage(sink, rows(0, 10))
        same(open_below(tmp_path), before, "open descriptors")

    @pytest.mark.parametrize(
        ("point", "code", "words"),
        [
            ("stage.write", "ENOSPC", "Free some space"),
            ("stage.write", "EIO", "device failed"),
            ("stage.sync", "EIO", "device failed"),
            ("stage.sync", "ENOSPC", "Free some space"),
            ("stage.closed", "EIO", "device failed"),
        ],
    )
    def test_a_fault_in_staging_says_what_to_do(self, sink: Sink, point: str, code: str, words: str) -> None:
        failpoints.activate({point: code})
        writer = sink.open(task(), SCHEMA)
        with pytest.raises(OutputWriteFailed, match=words) as caught:
            writer.write(rows(0, 1000))
            writer.close()
            writer.sync()
        cause = caught.value.__cause__
        check(isinstance(cause, OSError), f"the cause of the error is the system's, not {cause!r}")
        for words in (sink.staging, code):
            check(words in str(caught.value), f"the error must have {words!r} in it: {caught.value}")
        writer.abort()
        same(self.staged(sink), [], "staged files that are left")

    def test_a_failed_part_cannot_be_closed(self, sink: Sink) -> None:
        failpoints.activate({"stage.write": "ENOSPC"})
        writer = sink.open(task(), SCHEMA)
        with pytest.raises(OutputWriteFailed):
            writer.write(rows(0, 1000))
            writer.close()
        with pytest.raises(OutputWriteFailed, match="Free some space"):
            writer.close()
        writer.abort()

    def test_without_lasting_durability_nothing_is_synced(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def never(fd: int) -> None:
            raise AssertionError("synced")

        monkeypatch.setattr(os, "fsync", never)
        sink = bound(self.within(tmp_path), tmp_path, "process")
        self.stage(sink, rows(0, 10))

    def test_a_staging_folder_that_is_gone(self, sink: Sink) -> None:
        os.rmdir(sink.staging)
        writer = sink.open(task(), SCHEMA)
        with pytest.raises(OutputWriteFailed, match="removed or moved"):
            writer.write(rows(0, 1))
        writer.abort()

    def test_describe_is_plain_and_knows_no_folder(self, sink: Sink) -> None:
        told = sink.describe()
        same(told["kind"], sink.format.kind, "the kind in describe()")
        odd = {name: v for name, v in told.items() if not isinstance(v, str | int | bool | None)}
        same(odd, {}, "values in describe() that are no text, number, truth value or None")
        check(sink.root not in str(told), f"describe() names the folder: {told}")
        same(self.within(Path("elsewhere")).describe(), told, "describe() of a sink to another folder")
