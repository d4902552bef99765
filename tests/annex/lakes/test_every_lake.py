"""What tables of all lakes promise: one commit for each run, once, whatever is killed, lost or done by others."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import forked
import headrace as hr
from annex.lakes.growing import PLAIN, TABLES, Table, hundred, rows
from headrace.core.door import loaded
from headrace.errors import HeadraceError, OutputExists, OutputWriteFailed, PlanChanged, SinkError
from headrace.testing import failpoints

KILLED = """
from pathlib import Path
from annex.lakes.growing import TABLES, hundred

TABLES[argv[0]](Path(argv[1])).write(hundred(), mode=argv[2])
"""


class LakeContract:
    """A subclass names the library, and the class whose ``_send`` gives it what is to be committed."""

    library: ClassVar[str]
    sink: ClassVar[str]
    appends_meet: ClassVar[bool] = True
    """Of two that append at the same moment, one has to try again."""

    remembers: ClassVar[bool] = True
    """What commits say outlasts a clean-up."""

    lasting: ClassVar[tuple[str, ...]] = ()
    """Folders whose newest files are synced; a catalogue keeps commits by itself."""

    refusing: ClassVar[tuple[str, ...]] = ("error",)
    """Modes that refuse a table that is there."""

    @pytest.fixture(autouse=True)
    def made(self, tmp_path: Path) -> None:
        pytest.importorskip(self.library)
        self.table: Table = TABLES[type(self).__name__.removeprefix("Test")](tmp_path)
        self.folder = tmp_path

    def others(self, *ids: int) -> None:
        """Have others add rows by their library."""
        self.table.add(pa.table({"id": pa.array(ids, pa.int64())}))

    @property
    def outputs(self) -> list[Path]:
        return list(self.folder.rglob("headrace-output"))

    @pytest.mark.parametrize(
        ("point", "passage", "mode"),
        [
            ("stage.closed", 2, "append"),
            ("publish.renamed", 2, "overwrite"),
            ("table.filled", 1, "append"),
            ("finish.success", 1, "append"),
            ("finish.success", 1, "overwrite"),
        ],
    )
    def test_killed_anywhere_the_rows_are_added_once(self, point: str, passage: int, mode: str) -> None:
        self.others(-1)
        before = self.table.commits()
        given = type(self.table).__name__, self.folder, mode
        assert forked.killed(f"{point}@{passage}", KILLED, *given, also=self.table.imports)
        added, kept = point == "finish.success", [-1] if mode == "append" else []
        assert self.table.ids() == ([*kept, *range(100)] if added else [-1])
        assert self.table.commits() == before + added
        seen = self.table.read()  # while the run is not finished
        assert self.table.write(hundred(), mode=mode).rows == 100
        assert self.table.ids() == [*kept, *range(100)] and self.table.commits() == before + 1
        assert seen.with_options(**PLAIN).count() == len(kept) + 100  # it was not looked at before
        again = self.table.write(hundred(), mode=mode)
        assert (again.resumed, self.table.commits()) == (mode == "append", before + 1 + (mode != "append"))
        assert (self.outputs[0] / "_SUCCESS").exists()

    def test_an_answer_that_was_lost(self, monkeypatch: pytest.MonkeyPatch) -> None:
        sink = loaded(self.sink)
        send = sink._send

        def lost(*args: Any) -> None:
            send(*args)
            raise OSError("connection reset by peer")

        def refused(*args: Any) -> None:
            raise OSError("no space left")

        def worded(*args: Any) -> None:
            raise SinkError("it says what to do")

        monkeypatch.setattr(sink, "_send", lost)
        for number in (1, 2):  # a new table, and one that is there
            assert self.table.write(hundred(), output=f"run-{number}").rows == 100
            assert len(self.table.ids()) == 100 * number and self.table.commits() == number
        monkeypatch.setattr(sink, "_send", worded)
        with pytest.raises(SinkError, match=r"^it says what to do$"):
            self.table.write(hundred(), output="third")
        monkeypatch.setattr(sink, "_send", refused)
        with pytest.raises(SinkError, match=r"no space left.*none of them.*same command again"):
            self.table.write(hundred(), output="third")
        assert self.table.commits() == 2
        monkeypatch.setattr(sink, "_send", send)
        assert self.table.write(hundred(), output="third").resumed
        assert self.table.ids() == sorted([*range(100)] * 3)

    def test_others_commit_at_the_same_moment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The version that parts were compared with is the one they are added to; somebody faster is waited for."""
        sink, faster = loaded(self.sink), [1, 2]
        send = sink._send

        def late(*args: Any) -> Any:
            if faster:
                self.others(-faster.pop())
            return send(*args)

        monkeypatch.setattr(sink, "_send", late)
        self.table.write(hundred())
        self.table.write(hundred(), output="b")
        assert self.table.ids() == sorted([-2, -1, *range(100), *range(100)]) and not faster
        faster.append(3)
        self.table.write(hundred(), mode="overwrite")  # replaces what came before it, too
        assert self.table.ids() == [*range(100)]
        if self.appends_meet:
            monkeypatch.setattr("headrace.annex.lakes.sink._TRIES", 1)
            faster.append(4)
            with pytest.raises(OutputWriteFailed, match="all the time"):
                self.table.write(hundred(), output="more")
            assert self.table.ids() == [-4, *range(100)]

    def test_drivers_at_the_same_time(self) -> None:
        self.others(-1)
        before, ended = self.table.commits(), list[int]()

        def run(number: int) -> None:
            data = rows({"id": range(number * 10, number * 10 + 10)})
            ended.append(self.table.write(data, output=f"run-{number}").rows)

        threads = [threading.Thread(target=run, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert ended == [10] * 3 and self.table.ids() == [-1, *range(30)]
        assert self.table.commits() == before + 3

    def test_parts_of_the_table_are_never_removed_or_made_again(self) -> None:
        def of(factor: int) -> hr.Dataset:
            return hundred().map_batches(lambda batch: {"id": batch["id"] * factor})

        self.table.write(of(1))
        for data, options, words in (
            (of(2), {"on_change": "restart"}, "in the table already"),
            (hundred().limit(3), {}, "another output="),
        ):
            with pytest.raises(PlanChanged, match=words):
                self.table.write(data, **options)
        self.table.compact()
        if self.remembers:
            self.table.clean()
        for _ in range(1 + self.remembers):
            assert self.table.write(of(1)).resumed  # nothing is added a second time
            assert self.table.ids() == [*range(100)]
            (self.outputs[0] / "_SUCCESS").unlink()

    def test_further_runs_are_commits_of_their_own(self) -> None:
        """The table may be compacted and cleaned up meanwhile, and a run may have failed at its end."""
        (self.folder / "in").mkdir()

        def nightly(number: int, **faults: str) -> hr.Result:
            if not (path := self.folder / f"in/{number}.parquet").exists():
                pq.write_table(pa.table({"id": pa.array([number], pa.int64())}), path)
            data = hr.read_parquet(str(self.folder / "in")).with_options(**PLAIN)
            with failpoints(faults):
                return self.table.write(data, incremental=True)

        self.others(-1)
        first = nightly(1)
        for number in range(2, 5):
            with pytest.raises((HeadraceError, OSError)):
                nightly(number, **{"finish.success" if number == 3 else "swap.pointed": "EIO"})
            assert self.table.ids() == [-1, *range(1, number + (number == 3))]
            result = nightly(number)
            assert self.table.ids() == [-1, *range(1, number + 1)] and result.rows == number
            if number == 3:
                self.table.compact()
                self.table.clean()
        assert [run["rows"] for run in result.runs] == [1] * 4
        assert hr.verify(self.outputs[0], **self.table.told).good
        if self.remembers:
            assert self.table.runs() == [first.run, *(f"{first.run}-{n}" for n in range(2, 5))]

    @pytest.mark.skipif(
        not Path("/proc/self/fd").exists(), reason="it asks the system for names of open files"
    )
    def test_a_commit_lasts_before_it_is_said_to_be_there(self, monkeypatch: pytest.MonkeyPatch) -> None:
        seen: list[tuple[str, bool]] = []

        def sync(fd: int) -> None:
            path = os.readlink(f"/proc/self/fd/{fd}")
            seen.append((Path(path).parent.name, (self.outputs[0] / "_SUCCESS").exists()))

        monkeypatch.setattr("headrace.annex.lakes.tables.sync_fd", sync)
        self.table.write(hundred())
        assert {folder for folder, _ in seen} == {*self.lasting} and not any(late for _, late in seen)
        seen.clear()
        self.table.write(hundred().with_options(durability="process"), output="b")
        assert not seen

    def test_an_overwrite_leaves_older_versions_readable(self) -> None:
        found = []
        for number in range(3):
            self.table.write(rows({"id": [number]}), mode="overwrite")
            found.append(self.table.version())
        read = [self.table.read(version).with_options(**PLAIN).take_all() for version in found]
        assert read == [[{"id": number}] for number in range(3)] and self.table.ids() == [2]
        for mode in self.refusing:
            with pytest.raises(OutputExists, match="mode='append'"):
                self.table.write(rows({"id": [3]}), mode=mode, output="x")


class TestDelta(LakeContract):
    library, sink = "deltalake", "headrace.annex.lakes.delta.sink:DeltaTable"
    lasting = ("_delta_log",)


class TestIceberg(LakeContract):
    library, sink = "pyiceberg.catalog", "headrace.annex.lakes.iceberg.sink:IcebergTable"


class TestLance(LakeContract):
    library, sink = "lance", "headrace.annex.lakes.lance.sink:LanceTable"
    appends_meet, remembers, refusing = False, False, ("error", "create")
    lasting = ("data", "_transactions", "_versions")
