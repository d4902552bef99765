"""A table is looked at when a run that had finished is run again, or checked: has it the rows that were added?"""

from __future__ import annotations

import datetime as dt
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.core import failpoints
from headrace.errors import SinkError
from headrace.sources.range import RangeSource

OLD = pa.table({"id": pa.array([-1, -2], pa.int64())})
QUIET: dict[str, Any] = {"engine": "inline", "progress": False, "shard_rows": 25}


def hundred() -> hr.Dataset:
    return hr.Dataset.from_source(RangeSource(100, rows_per_split=25)).with_options(**QUIET)


class Delta:
    what = "Delta"
    reached: dict[str, Any] = {}  # noqa: RUF012 - never changed

    def __init__(self, folder: Path) -> None:
        self.place = folder / "t"
        self.out = self.place / "run"

    def table(self) -> Any:
        import deltalake

        return deltalake.DeltaTable(self.place)

    def make(self, rows: pa.Table = OLD, mode: Any = "append") -> None:
        import deltalake

        deltalake.write_deltalake(self.place, rows, mode=mode)

    def write(self) -> hr.Result:
        return hundred().write_delta(self.place, output="run")

    def drop(self) -> None:
        shutil.rmtree(self.place / "_delta_log")

    def overwrite(self) -> None:
        self.make(OLD, "overwrite")

    def restore(self) -> None:
        self.table().restore(0)

    def delete(self, which: str) -> None:
        self.table().delete(which)

    def delete_all(self) -> None:
        self.table().delete()

    def compact(self) -> None:
        self.table().optimize.compact()

    def clean(self) -> None:
        self.table().vacuum(0, dry_run=False, enforce_retention_duration=False)

    def rows(self) -> int:
        return int(self.table().to_pyarrow_table().num_rows)

    def remove_a_file(self) -> None:
        next(self.out.glob("part-*")).unlink()


class Lance(Delta):
    what = "Lance"

    def table(self) -> Any:
        import lance

        return lance.dataset(str(self.place))

    def make(self, rows: pa.Table = OLD, mode: str = "append") -> None:
        import lance

        lance.write_dataset(rows, str(self.place), mode=mode if self.place.exists() else "create")

    def write(self) -> hr.Result:
        return hundred().write_lance(self.place, output="run")

    def drop(self) -> None:
        shutil.rmtree(self.place / "_versions")
        shutil.rmtree(self.place / "_transactions")

    def restore(self) -> None:
        import lance

        lance.dataset(str(self.place), version=1).restore()

    def delete_all(self) -> None:
        self.table().delete("true")

    def compact(self) -> None:
        self.table().optimize.compact_files()

    def clean(self) -> None:
        self.table().cleanup_old_versions(dt.timedelta(0), delete_unverified=True)

    def rows(self) -> int:
        return int(self.table().count_rows())

    def remove_a_file(self) -> None:
        next((self.place / "data").glob("headrace-*")).unlink()


class Iceberg(Delta):
    what = "Iceberg"

    def __init__(self, folder: Path) -> None:
        self.lake = {
            "name": "x",
            "type": "sql",
            "uri": f"sqlite:///{folder}/c.db",
            "warehouse": f"file://{folder}/w",
        }
        self.reached = {"catalog": self.lake}
        self.out = folder / "w/s/t/data/run"

    def catalog(self) -> Any:
        from pyiceberg.catalog import load_catalog

        catalog = load_catalog(**self.lake)
        catalog.create_namespace_if_not_exists("s")
        return catalog

    def table(self) -> Any:
        return self.catalog().load_table("s.t")

    def make(self, rows: pa.Table = OLD, mode: str = "append") -> None:
        self.catalog().create_table_if_not_exists("s.t", rows.schema).append(rows)

    def write(self) -> hr.Result:
        return hundred().write_iceberg("s.t", catalog=self.lake, output="run")

    def drop(self) -> None:
        self.catalog().drop_table("s.t")

    def overwrite(self) -> None:
        self.table().overwrite(OLD)

    def restore(self) -> None:
        table = self.table()
        with table.manage_snapshots() as snapshots:
            snapshots.set_current_snapshot(table.metadata.snapshots[0].snapshot_id)

    def rows(self) -> int:
        return int(self.table().scan().to_arrow().num_rows)


@pytest.fixture(params=[Delta, Iceberg, Lance])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Delta:
    found: Delta = request.param(tmp_path)
    return found


def remade(lake: Delta) -> None:
    lake.drop()
    lake.make()


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda lake: lake.drop(), "is gone, and with it the 100 rows"),
        (remade, "has never had the 100 rows .* another table was made"),
        (lambda lake: lake.restore(), "has none of the 100 rows .*(RESTORE|[Rr]estore of|rolled back)"),
        (
            lambda lake: lake.overwrite(),
            r"has none of the 100 rows .*(overwrite|Overwrite|102 rows taken out)",
        ),
        (lambda lake: lake.delete_all(), "has none of the 100 rows .*102 rows (deleted|taken out)"),
        (lambda lake: lake.remove_a_file(), "cannot be read: a file of this run .* is not there"),
    ],
    ids=["dropped", "made anew", "restored", "overwritten", "all rows deleted", "a file removed"],
)
def test_a_table_without_the_rows_is_refused_and_found(
    lake: Delta, act: Callable[[Delta], None], words: str
) -> None:
    lake.make()
    assert lake.write().rows == 100
    act(lake)
    with pytest.raises(
        SinkError, match=rf"{words}.*Nothing was touched: restore the table .*another output="
    ):
        lake.write()
    found = hr.verify(lake.out, **lake.reached)
    assert {each.kind for each in found.findings} & {"table", "missing"}
    if lake.what == "Iceberg":
        assert "give catalog= (--catalog on a command line)" in hr.verify(lake.out).note


def test_rows_that_others_deleted_are_counted_in_a_warning(lake: Delta) -> None:
    lake.make()
    lake.write()
    lake.delete("id < 10")
    with pytest.warns(
        UserWarning,
        match=r"has not all of the 100 rows .*(12 rows deleted|25 rows taken out, 15 rows put in).*another output=",
    ):
        again = lake.write()
    assert again.resumed and lake.rows() == 90
    (finding,) = hr.verify(lake.out, **lake.reached).findings
    assert finding.kind == "table" and re.search("12 rows deleted|25 rows taken out", finding.message)


@pytest.mark.parametrize("also", ["appended", "cleaned"])
def test_rows_in_other_files_are_there(tmp_path: Path, also: str) -> None:
    """A table that was compacted, added to and vacuumed has the rows."""
    lake = Delta(tmp_path)
    lake.make()
    lake.write()
    lake.compact()
    lake.make()
    if also == "cleaned":
        lake.clean()
    assert lake.write().resumed and lake.rows() == 104
    assert hr.verify(lake.out).good


def test_a_history_that_does_not_go_back_is_said(tmp_path: Path) -> None:
    lake = Lance(tmp_path)
    lake.make()
    lake.write()
    lake.compact()
    assert lake.write().resumed
    lake.clean()
    with pytest.warns(UserWarning, match="does not go back to the run"):
        assert lake.write().resumed
    assert hr.verify(lake.out).good and "does not go back" in hr.verify(lake.out).note


@pytest.mark.parametrize("then", ["dropped", "made anew"])
@pytest.mark.parametrize("when", ["between two drivers", "while it runs"])
def test_an_unfinished_run_does_not_make_the_table_anew(lake: Delta, then: str, when: str) -> None:
    """Rows that were in it would be missing, and the run would end well."""
    if then == "made anew" and lake.what == "Lance":
        pytest.skip("a Lance table has no number of its own")
    lake.make()
    if when == "while it runs":
        kept = lake.drop if then == "dropped" else lambda: remade(lake)

        def act(batch: dict[str, Any]) -> dict[str, Any]:
            if 99 in batch["id"]:
                kept()
            return batch

        with pytest.raises(
            SinkError, match=r"(is gone|replaced by a new table).*since this run began.*another output="
        ):
            _written(lake, hundred().map_batches(act))
        return
    failpoints.activate({"table.filled": "ENOSPC"})
    try:
        with pytest.raises((SinkError, OSError)):
            lake.write()
    finally:
        failpoints.activate({})
    (lake.drop if then == "dropped" else lambda: remade(lake))()
    with pytest.raises(
        SinkError, match=r"(is gone|replaced by a new table).*since this run began.*another output="
    ):
        lake.write()


def _written(lake: Delta, data: hr.Dataset) -> hr.Result:
    if isinstance(lake, Iceberg):
        return data.write_iceberg("s.t", catalog=lake.lake, output="run")
    return (
        data.write_lance(lake.place, output="run")
        if isinstance(lake, Lance)
        else data.write_delta(lake.place, output="run")
    )


def test_further_runs_go_on_where_rows_were_deleted_and_not_where_the_table_is_gone(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    (tmp_path / "in").mkdir()
    lake = Delta(tmp_path)

    def night(number: int) -> hr.Result:
        pq.write_table(pa.table({"id": [number]}), tmp_path / f"in/{number}.parquet")
        data = hr.read_parquet(str(tmp_path / "in")).with_options(**QUIET)
        return data.write_delta(lake.place, output="run", incremental=True)

    night(1)
    lake.delete_all()
    night(2)
    assert lake.rows() == 1
    lake.drop()
    with pytest.raises(SinkError, match="is gone, and with it the 1 row"):
        night(3)
