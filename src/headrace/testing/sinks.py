"""What every format of files, and whatever else is written to, promises, as tests."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import warnings
import zlib
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.core import failpoints as points
from headrace.core.target_ports import Format, Moment, Sink
from headrace.core.work import CommitRecord, Durability, Ledger, Shard, StagedFile, Task
from headrace.errors import HeadraceError, OutputWriteFailed, RequirementNotMet
from headrace.output.names import run_of
from headrace.output.places.place import place_at
from headrace.sinks.files import FileSink
from headrace.testing.fakes import failpoints
from headrace.testing.steps import check, same

if TYPE_CHECKING:
    from headrace.dataset.dataset import Dataset
    from headrace.result import Result


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
        points.activate({})

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
        points.activate({point: code})
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
        points.activate({"stage.write": "ENOSPC"})
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


# ------------------------------------------------------------ whatever is written to

FILES, ROWS = 4, 5
Row = tuple[int, int]

POINTS = (
    *("run.opened", "stage.closed", "journal.append", "journal.synced", "publish.rename", "publish.renamed"),
    *("finish.manifest", "finish.success", "finish.closed"),
)


class TargetContract:
    """Subclass it with ``write`` and ``read``.

    Rows have the columns ``id`` and ``value``, both int64; each of the four input files has five, and is a shard.
    """

    at_once: bool = False
    """Readers see none of the rows of a run, or all of them."""

    incremental: bool = True
    """Further runs of the output add the rows of new input files."""

    points: tuple[str, ...] = ()
    """Failpoints that only writing to this passes."""

    def write(self, data: Dataset, place: Path, **options: Any) -> Result:
        """Write rows to a target in the folder ``place``; ``options`` are some of ``mode`` and ``incremental``."""
        raise NotImplementedError

    def read(self, place: Path) -> list[dict[str, Any]]:
        """Return the rows that readers find now, in any order; none where there is nothing yet."""
        raise NotImplementedError

    def arrive(self, place: Path, number: int, factor: int = 3) -> list[Row]:
        """Add an input file, and return its rows."""
        rows = [(n, n * factor) for n in range(number * ROWS, (number + 1) * ROWS)]
        (place / "in").mkdir(parents=True, exist_ok=True)
        columns = {name: [row[k] for row in rows] for k, name in enumerate(("id", "value"))}
        pq.write_table(pa.table(columns), place / "in" / f"{number:03}.parquet")
        return rows

    def arrived(self, place: Path, factor: int = 3) -> list[Row]:
        return [row for number in range(FILES) for row in self.arrive(place, number, factor)]

    def publish(self, output: str, place: Path) -> Result:
        """Publish ``output``, which was kept back; with what ``hr.publish`` needs to reach a table in ``place``."""
        import headrace as hr

        return hr.publish(output, because="a test asks for it")

    def run(
        self, place: Path, faults: dict[str, str] | None = None, required: int = 0, **options: Any
    ) -> Result:
        """Write the rows of all input files; ``required``: only if there are so many."""
        import headrace as hr

        data = hr.read_parquet(str(place / "in"))
        data = data.require(rows=hr.at_least(required)) if required else data
        with failpoints(faults or {}):
            data = data.with_options(engine="inline", progress=False, shard_rows=ROWS)
            return self.write(data, place, **options)

    def found(self, place: Path) -> list[Row]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of an output that is not finished
            return sorted((int(row["id"]), int(row["value"])) for row in self.read(place))

    def test_rows_are_there_once(self, tmp_path: Path) -> None:
        rows = self.arrived(tmp_path)
        first = self.run(tmp_path)
        same(first.rows, len(rows), "the rows of the result")
        same(self.found(tmp_path), rows, "the rows that readers find")
        again = self.run(tmp_path)
        same((again.run, again.resumed), (first.run, True), "the run that has nothing to do")
        same(self.found(tmp_path), rows, "the rows that readers find after a run that has nothing to do")

    @pytest.mark.parametrize("passage", [1, 3])
    def test_a_fault_at_any_moment_neither_loses_nor_doubles(self, tmp_path: Path, passage: int) -> None:
        for number, point in enumerate((*POINTS, *self.points)):
            place = tmp_path / str(number)
            rows = self.arrived(place)
            with contextlib.suppress(HeadraceError, OSError):
                self.run(place, {point: f"EIO@{passage}"})
            seen = Counter(self.found(place))
            check(
                seen <= Counter(rows),
                f"after a fault at {point}, readers find rows that are not there: {seen}",
            )
            if self.at_once:
                check(len(seen) in (0, len(rows)), f"after a fault at {point}, readers find {len(seen)} rows")
            if point == "run.opened" and passage == 1:
                check(not seen, f"before anything is committed, readers find {seen}")
            self.run(place)
            same(self.found(place), rows, f"the rows that readers find after a fault at {point}")

    def test_other_rows_take_their_place(self, tmp_path: Path) -> None:
        self.arrived(tmp_path)
        self.run(tmp_path)
        rows = self.arrived(tmp_path, factor=7)
        for point in ("journal.synced", "publish.renamed", "finish.manifest", *self.points, "finish.success"):
            with contextlib.suppress(HeadraceError, OSError):
                self.run(tmp_path, {point: "EIO"}, mode="overwrite")
        self.run(tmp_path, mode="overwrite")
        same(self.found(tmp_path), rows, "the rows that readers find")

    def test_new_input_is_added(self, tmp_path: Path) -> None:
        if not self.incremental:
            pytest.skip("its runs do not follow one another")
        rows = self.arrived(tmp_path)
        self.run(tmp_path, incremental=True)
        for number, point in enumerate(
            ("swap.recorded", "publish.rename", "swap.pointed", *self.points), FILES
        ):
            rows += self.arrive(tmp_path, number)
            with contextlib.suppress(HeadraceError, OSError):
                self.run(tmp_path, {point: "EIO"}, incremental=True)
            self.run(tmp_path, incremental=True)
            same(self.found(tmp_path), rows, f"the rows that readers find after a fault at {point}")

    def test_nothing_is_seen_of_what_is_not_as_required(self, tmp_path: Path) -> None:
        rows = self.arrived(tmp_path)
        for point in ("run.opened", "journal.synced", "finish.withheld"):
            with contextlib.suppress(HeadraceError, OSError):
                self.run(tmp_path, {point: "EIO"}, required=len(rows) + 1)
            same(self.found(tmp_path), [], f"the rows that readers find after a fault at {point}")
        for required in (len(rows) + 1, len(rows) + 2):
            with pytest.raises(RequirementNotMet) as raised:
                self.run(tmp_path, required=required)
            same(self.found(tmp_path), [], "the rows that readers find where a requirement is not met")
        for point in ("recover.opened", "swap.recorded", "publish.rename", *self.points, "finish.success"):
            with failpoints({point: "EIO"}), contextlib.suppress(HeadraceError, OSError):
                self.publish(raised.value.output, tmp_path)
            check(
                set(self.found(tmp_path)) <= set(rows), f"after a fault at {point}, readers find other rows"
            )
        same(self.publish(raised.value.output, tmp_path).rows, len(rows), "the rows that were published")
        same(self.found(tmp_path), rows, "the rows that readers find once they are published")
        same(self.run(tmp_path, required=len(rows) + 2).rows, len(rows), "the rows of the same run again")
        same(self.found(tmp_path), rows, "the rows that readers find in the end")

    def test_what_is_as_required_is_seen_at_the_end(self, tmp_path: Path) -> None:
        rows = self.arrived(tmp_path)
        with contextlib.suppress(HeadraceError, OSError):
            self.run(tmp_path, {"stage.closed": "EIO@3"}, required=len(rows))
        same(self.found(tmp_path), [], "the rows that readers find before the end")
        self.run(tmp_path, required=len(rows))
        same(self.found(tmp_path), rows, "the rows that readers find")

    def test_no_rows(self, tmp_path: Path) -> None:
        (tmp_path / "in").mkdir()
        pq.write_table(
            pa.table({"id": pa.array([], pa.int64()), "value": pa.array([], pa.int64())}),
            tmp_path / "in/a.parquet",
        )
        same(self.run(tmp_path).rows, 0, "the rows of the result")
        same(self.found(tmp_path), [], "the rows that readers find")
