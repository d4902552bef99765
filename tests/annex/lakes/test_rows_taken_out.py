"""A table is looked at when a run that had finished is run again, or checked: has it the rows that were added?"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from annex.lakes.growing import PLAIN, TABLES, Table, half, hundred
from headrace.annex.lakes.sink import lost
from headrace.core import failpoints
from headrace.core.table_changes import UNNAMED, Change
from headrace.errors import InputChanged, SinkError

OLD = pa.table({"id": pa.array([-1, -2], pa.int64())})


@pytest.fixture(params=["Delta", "Iceberg", "Lance"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    """A table with rows of others."""
    return made(request.param, tmp_path)


def made(kind: str, folder: Path) -> Table:
    table: Table = TABLES[kind](folder)
    table.add(OLD)
    return table


def write(lake: Table, data: hr.Dataset | None = None) -> hr.Result:
    return lake.write(hundred() if data is None else data, output="run")


def out(lake: Table) -> Path:
    (found,) = (path for path in lake.folder.rglob("run") if (path / "_headrace").exists())
    return found


def checked(lake: Table) -> hr.Verification:
    return hr.verify(out(lake), **lake.told)


def remade(lake: Table) -> None:
    lake.drop()
    lake.add(OLD)


def without_a_file(lake: Table) -> None:
    lance = type(lake).__name__ == "Lance"
    next((lake.folder / "t/data").glob("headrace-*") if lance else out(lake).glob("part-*")).unlink()


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda lake: lake.drop(), "is gone, and with it the 100 rows"),
        (remade, "has never had the 100 rows .* another table was made"),
        (lambda lake: lake.restore(), "has none of the 100 rows .*(RESTORE|Restore|rolled back)"),
        (
            lambda lake: lake.overwrite(OLD),
            r"has none of the 100 rows .*\((WRITE|Overwrite|delete)\)",
        ),
        (lambda lake: lake.delete(), "has none of the 100 rows .*([Dd]elete|DELETE)"),
        (without_a_file, "cannot be read: a file of this run .* is not there"),
    ],
    ids=["dropped", "made anew", "restored", "overwritten", "all rows deleted", "a file removed"],
)
def test_a_table_without_the_rows_is_refused_and_found(
    lake: Table, act: Callable[[Table], None], words: str
) -> None:
    assert write(lake).rows == 100
    act(lake)
    with pytest.raises(
        SinkError, match=rf"{words}.*Nothing was touched: restore the table .*another output="
    ):
        write(lake)
    assert {each.kind for each in checked(lake).findings} & {"table", "missing"}
    if lake.told:
        assert "give catalog= (--catalog on a command line)" in hr.verify(out(lake)).note


def test_rows_that_others_deleted_are_warned_of(lake: Table) -> None:
    write(lake)
    lake.delete("id < 10")
    with pytest.warns(
        UserWarning,
        match=r"has not all of the 100 rows .*\(at least (75|90) .*\((Delete|DELETE|overwrite)\).*another output=",
    ):
        assert write(lake).resumed
    assert len(lake.ids()) == 90
    (finding,) = checked(lake).findings
    assert finding.kind == "table" and "has not all of the 100 rows" in finding.message


def test_rows_in_other_files_are_there(lake: Table) -> None:
    """A table that was compacted, and added to, has the rows; their old files may go."""
    write(lake)
    lake.compact()
    lake.add(OLD)
    assert write(lake).resumed and len(lake.ids()) == 104
    lake.add(pa.table({"id": pa.array([1000], pa.int64())}))
    lake.delete("id = 1000")  # in a file where no row of the run can be
    assert checked(lake).good and not checked(lake).note
    lake.clean()
    found = checked(lake)
    assert found.good and found.rows == 100
    if type(lake).__name__ == "Lance":
        assert "does not go back to the run" in found.note
    else:
        assert "4 parts with 100 rows are not there any more" in found.note
        lake.delete("id = 3")
        assert not checked(lake).good


def test_what_our_own_runs_did_to_the_rows(lake: Table) -> None:
    """One that adds columns takes no row; one that overwrites takes all, as it was asked to."""
    write(lake)
    data = lake.read().with_options(**PLAIN).predict(half, inputs=["id"], output="half")
    lake.write(data, mode="add_columns", output="more")
    assert checked(lake).good and not checked(lake).note
    lake.write(hundred(), mode="overwrite", output="over")
    assert checked(lake).good and "has none of the 100 rows" in checked(lake).note


CHANGES = {
    "append": Change("2", 1, "append", ["b"], ()),
    "compact": Change("3", 2, "rewrite", ["c"], ["a", "b"]),
    "delete here": Change("4", 3, "change", ["c"], ["c"]),
    "delete there": Change("5", 4, "change", ["x"], ["y"]),
    "delete unnamed": Change("6", 5, "change", (), [UNNAMED]),
    "delete all": Change("7", 6, "change", (), ["a", "b", "c"]),
    "overwrite": Change("8", 7, "overwrite", ["z"], ["a"], "another"),
    "columns": Change("9", 8, "change", ["d"], ["a", "c"], "another"),
    "ours": Change("1", 0, "append", ["a"], (), "run"),
}


@pytest.mark.parametrize(
    ("names", "live", "left"),
    [
        ("append compact", {"c": 9}, None),
        ("append columns", {"d": 2}, None),
        ("append compact columns", {"d": 9}, None),
        ("compact, delete there", {"c": 9}, None),
        ("compact, delete here", {"c": 1}, "unknown"),
        ("delete unnamed", {"a": 1}, "some"),
        ("compact, delete unnamed", {"c": 1}, "unknown"),
        ("compact, delete all", {}, "none"),
        ("delete all, append", {"b": 1}, "none"),
        ("overwrite", {"z": 9}, "none"),
        ("overwrite, compact", {"c": 9}, "none"),
    ],
)
@pytest.mark.parametrize("whole", [True, False])
def test_what_became_of_rows_that_are_not_in_their_own_files(
    names: str, live: dict[str, int], left: str | None, whole: bool
) -> None:
    """Without a whole history nothing is known, unless all rows were taken by what is known of it."""
    of = [CHANGES[each] for each in re.findall("|".join(CHANGES), names)]

    def history() -> Iterator[Change]:
        yield from reversed(of)
        if not whole:
            raise InputChanged("it is gone")
        yield CHANGES["ours"]

    found = lost("t", "the rows", "run", {"a": 2}, live, history())
    expected = left if whole or "overwrite" in names else "unknown"
    assert (found.left if found else None) == expected
    assert found is None or found.by_run is ("overwrite" in names)
    assert lost("t", "the rows", "run", {"a": 2}, live, of[::-1]).left == "no table"  # type: ignore[union-attr]


def test_files_in_folders_whose_names_need_marks(tmp_path: Path) -> None:
    lake: Table = TABLES["Delta"](tmp_path)
    data = hundred().with_column("name", lambda batch: ["a b/ü%" if i % 2 else "y" for i in batch["id"]])
    lake.write(data, output="run", partition_by=["name"])
    assert checked(lake).good and not checked(lake).note
    lake.compact()
    lake.clean()
    assert checked(lake).good and "8 parts with 100 rows" in checked(lake).note
    lake.drop()
    assert {each.kind for each in checked(lake).findings} == {"missing", "table"}


@pytest.mark.parametrize("then", ["dropped", "made anew"])
@pytest.mark.parametrize("when", ["between two drivers", "while it runs"])
def test_an_unfinished_run_does_not_make_the_table_anew(lake: Table, then: str, when: str) -> None:
    """Rows that were in it would be missing, and the run would end well."""
    if then == "made anew" and type(lake).__name__ == "Lance":
        pytest.skip("a Lance table has no number of its own")
    lose = lake.drop if then == "dropped" else lambda: remade(lake)

    def act(batch: dict[str, Any]) -> dict[str, Any]:
        if 99 in batch["id"]:
            lose()
        return batch

    data = hundred()
    if when == "while it runs":
        data = data.map_batches(act, version="1")
    else:
        failpoints.activate({"table.filled": "ENOSPC"})
        try:
            with pytest.raises((SinkError, OSError)):
                write(lake)
        finally:
            failpoints.activate({})
        lose()
    with pytest.raises(
        SinkError, match=r"(is gone|replaced by a new table).*since this run began.*another output="
    ):
        write(lake, data)


def test_further_runs_go_on_where_rows_were_deleted_and_not_where_the_table_is_gone(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    lake: Table = TABLES["Delta"](tmp_path)

    def night(number: int) -> hr.Result:
        pq.write_table(pa.table({"id": [number]}), tmp_path / f"in/{number}.parquet")
        data = hr.read_parquet(str(tmp_path / "in")).with_options(**PLAIN)
        return lake.write(data, output="run", incremental=True)

    night(1)
    lake.delete()
    night(2)
    assert lake.ids() == [2]
    lake.drop()
    with pytest.raises(SinkError, match="is gone, and with it the 1 row"):
        night(3)
