"""What is refused before anything runs, and what a run says of its query."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace import errors
from headrace.aggregate import Sum
from headrace.annex.queries.engines import ENGINES, Answer
from headrace.annex.queries.source import queried
from headrace.testing import failpoints

duckdb = pytest.importorskip("duckdb")

# ---------------------------------------------------------------- what is refused

RIDES = hr.from_arrow(pa.table({"id": [1, 2], "zone": [0, 1]}))
ZONES = hr.from_arrow(pa.table({"zone": [0, 1], "name": ["a", "b"]}))


@pytest.mark.parametrize("engine", ["duckdb", "polars"])
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("SELECT * FROM ride", "ride"),
        ("SELECT bo FROM rides", "bo"),
        ("SELEC * FROM rides", "sql: "),
        ("SELECT 1; SELECT 2", "sql: "),
        ("DROP TABLE rides", "has to be one SELECT"),
        ("COPY rides TO '/tmp/x.csv'", "has to be one SELECT"),
        ("SELECT * FROM rides, read_csv('/etc/passwd')", "Give it as a dataset"),
    ],
)
def test_a_query_that_cannot_be_answered(engine: str, text: str, words: str) -> None:
    with pytest.raises(errors.PlanError, match=words):
        hr.sql(text, rides=RIDES, query_engine=engine)


def test_files_cannot_be_named() -> None:
    with pytest.raises(errors.PlanError, match="Give it as a dataset"):
        hr.sql("SELECT * FROM rides, '/etc/passwd.csv'", rides=RIDES)


def test_variables_of_the_program_are_not_seen() -> None:
    zones = pa.table({"zone": [1]})
    with pytest.raises(errors.PlanError, match="reads zones, and no dataset of that name"):
        hr.sql("SELECT * FROM rides JOIN zones USING (zone)", rides=RIDES)
    assert zones.num_rows == 1


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"rides": "rides.parquet"}, "rides is str, and no dataset"),
        ({"rides": RIDES, "zones": ZONES}, "zones= is given, and the query does not name it"),
        ({"rides": RIDES, "query_engine": "duckdbx"}, "Did you mean 'duckdb'"),
        ({"rides": RIDES.accumulate(m=hr.Mean("id"))}, "Put accumulate behind sql"),
        ({"rides": RIDES.require(rows=hr.at_least(1))}, "Put it after sql"),
    ],
)
def test_what_is_given(given: dict[str, Any], words: str) -> None:
    with pytest.raises(errors.ArgumentError, match=words):
        hr.sql("SELECT * FROM rides", **given)


def test_names_that_the_engine_takes_for_one() -> None:
    with pytest.raises(errors.PlanError, match="'x' and 'X', which DuckDB takes for one"):
        hr.sql("SELECT * FROM t", t=hr.from_arrow(pa.table({"x": [1], "X": [2]})))
    with pytest.raises(errors.PlanError, match="two columns named 'zone' and 'zone'"):
        hr.sql("SELECT * FROM rides JOIN zones ON rides.zone = zones.zone", rides=RIDES, zones=ZONES)


def test_names_of_a_result_that_differ_by_case_are_refused() -> None:
    """DuckDB writes the second one under another name, so that it was read as nulls."""
    upper = RIDES.rename_columns({"id": "Name"})
    with pytest.raises(errors.PlanError, match="'Name' and 'name', which DuckDB takes for one"):
        upper.join(ZONES, on="zone")
    with pytest.raises(errors.PlanError, match="'zone' and 'Zone', which DuckDB takes for one"):
        RIDES.groupby("zone").aggregate(Sum("id", alias_name="Zone"))


def test_a_column_without_a_name_is_refused_and_can_be_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(",x\n0,3\n1,1\n")
    frame = hr.read_csv(tmp_path / "a.csv")
    with pytest.raises(errors.PlanError, match=r"have the name ''.*rename_columns\(\{'': 'index'\}\)"):
        frame.sort("x")
    assert frame.rename_columns({"": "index"}).sort("x").take(1) == [{"index": 1, "x": 1}]


def test_a_text_may_end_with_a_comment_and_a_dataset_has_columns() -> None:
    assert hr.sql("SELECT count(*) AS n FROM rides -- all of them", rides=RIDES).take_all() == [{"n": 2}]
    nothing = hr.from_arrow(pa.table({"a": [1]}).select([]))
    with pytest.raises(errors.PlanError, match="t has no columns"):
        hr.sql("SELECT * FROM t", t=nothing)


def test_an_engine_that_cannot_keep_to_memory_is_refused() -> None:
    data = hr.sql("SELECT * FROM rides", rides=RIDES, query_engine="polars").with_options(memory_limit="1GiB")
    with pytest.raises(errors.ArgumentError, match="polars takes as much memory"):
        data.count()


def test_a_query_is_of_one_machine(tmp_path: Path) -> None:
    data = hr.sql("SELECT * FROM rides", rides=RIDES).with_options(fleet=True, progress=False)
    with pytest.raises(errors.ArgumentError, match="lies on one machine"):
        data.write_parquet(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_rows_that_fail_before_a_query_count_for_what_is_required(tmp_path: Path) -> None:
    def picky(row: dict[str, Any]) -> dict[str, Any]:
        return {"id": 1 // (row["id"] - 1)}

    data = hr.sql("SELECT * FROM rides", rides=RIDES.with_options(on_error="reject").map(picky))
    data = data.with_options(engine="inline", progress=False, on_error="reject")
    with pytest.warns(UserWarning, match="1 row of rides failed before"):
        with pytest.raises(errors.RequirementNotMet, match="1 of 2 rows"):
            data.require(rejected=hr.at_most(0)).write_parquet(tmp_path / "out")
        data.require(rejected=hr.at_most(0.5)).write_parquet(tmp_path / "out")
    with pytest.raises(errors.RequirementNotMet, match="1 of 2 rows"):
        data.require(rejected=hr.at_most(0.4)).write_parquet(tmp_path / "out")


def test_values_are_not_shown_if_they_shall_not_be() -> None:
    data = hr.sql("SELECT name::INT AS x FROM zones", zones=ZONES)
    with pytest.raises(errors.SourceError, match="'a'"):
        data.count()
    with pytest.raises(errors.SourceError, match="show_data=False") as raised:
        data.with_options(show_data=False).count()
    assert "'a'" not in str(raised.value)


# ---------------------------------------------------------------- what a run says, and what else one does with it


def test_a_run_says_what_its_query_did(tmp_path: Path) -> None:
    data = hr.sql("SELECT * FROM rides JOIN zones USING (zone)", rides=RIDES, zones=ZONES)
    told = data.explain()
    assert "query    duckdb" in told and "rides: Memory; written first: read" in told
    assert "shards   known when the input is made" in told
    result = data.with_options(engine="inline", progress=False).write_parquet(tmp_path / "out")
    assert "made first: 2 rows of rides and 2 rows of zones became 2 rows in" in result.summary
    assert result.summary.startswith("4 rows in what was made first, 2 rows in, 2 out")
    assert (result.ledger.gathered, result.ledger.read, result.ledger.written) == (4, 2, 2)
    assert json.loads((tmp_path / "out" / "_SUCCESS").read_text())["ledger"]["gathered"] == 4
    assert "They come of what was made first, of 4 rows" in Path(str(result.report)).read_text()
    again = data.with_options(engine="inline", progress=False).write_parquet(tmp_path / "out")
    assert again.resumed and again.ledger == result.ledger
    record = Path(str(result.report)).with_name("events.jsonl").read_text()
    assert '"input made"' in record and "made     2 rows of rides" in record


def test_a_query_behind_another_is_told_of_both(tmp_path: Path) -> None:
    """Each has its line and its rows, also where the run between them had ended; so have rows that failed."""

    def picky(row: dict[str, Any]) -> dict[str, Any]:
        return {**row, "id": 1 // (row["id"] - 1)}

    rides = RIDES.with_options(on_error="reject", engine="inline", progress=False, observers=[]).map(picky)
    inner = rides.join(ZONES, on="zone").map_batches(lambda batch: batch)
    with pytest.warns(UserWarning, match="1 row of data failed before"):
        data = inner.sort("name")
        with failpoints({"query.inputs": "ENOSPC@2"}), pytest.raises(errors.OutputWriteFailed):
            data.write_parquet(tmp_path / "out")
        result = data.write_parquet(tmp_path / "out")
    assert (result.ledger.gathered, result.ledger.read) == (1 + 2 + 1, 1)
    queries = json.loads((tmp_path / "out" / "_SUCCESS").read_text())["queries"]
    assert [each["inputs"] for each in queries] == [{"data": 1, "other": 2}, {"data": 1}]
    assert "made first: 1 row of data and 2 rows of other became 1 row" in result.summary
    assert "made first: 1 row of data became 1 row" in result.summary
    (place,) = queries[0]["rejected"]
    assert hr.read_rejected(place).count() == 1


def test_a_query_of_unions_and_zips_of_what_is_made_first() -> None:
    down, up = hr.range(3).sort("id", descending=True), hr.range(2).sort("id")
    assert [row["id"] for row in down.union(up).sort("id").take_all()] == [0, 0, 1, 1, 2]
    beside = hr.range(3).map(lambda row: {"x": 2 * row["id"]}).zip(down).with_options(progress=False)
    assert beside.sort("id").take_all() == [{"x": 4 - 2 * i, "id": i} for i in range(3)]
    assert beside.take(1) == [{"x": 0, "id": 2}]


def test_chains_unions_and_numbers(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": range(10)}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"x": range(10, 20)}), tmp_path / "b.parquet")
    files = hr.read_parquet([tmp_path / "b.parquet", tmp_path / "a.parquet"])
    for data in (files, files.map_batches(lambda batch: batch)):
        for engine in ("duckdb", "polars"):
            rows = queried("SELECT x, _row FROM t ORDER BY _row", {"t": data}, numbered=True, engine=engine)
            assert [row["_row"] for row in rows.take_all()] == list(range(20))
            assert [row["x"] for row in rows.take(2)] == [10, 11]
    first = hr.sql("SELECT x FROM t ORDER BY x DESC LIMIT 3", t=files)
    second = hr.sql("SELECT sum(x)::BIGINT AS x FROM t", t=first)
    both = second.union(first, hr.from_items([{"x": -1}])).with_options(engine="inline", progress=False)
    assert [row["x"] for row in both.take_all()] == [54, 19, 18, 17, -1]
    assert both.write_parquet(tmp_path / "out").rows == 5
    assert not (tmp_path / "out" / "_headrace" / "queries").exists()


@pytest.mark.parametrize(
    "text",
    [
        "SELECT x, k FROM t ORDER BY k",
        "SELECT k, sum(x) AS x FROM t GROUP BY k ORDER BY k",  # which is cast, to be written
        "WITH u AS (SELECT * FROM t ORDER BY k) SELECT x, k FROM u WHERE x % 2 = 0",
    ],
)
def test_the_order_of_a_query_is_kept_by_all_threads(tmp_path: Path, text: str) -> None:
    keys = np.random.default_rng(0).permutation(600_000)
    pq.write_table(
        pa.table({"x": range(len(keys)), "k": keys}), tmp_path / "t.parquet", row_group_size=20_000
    )
    data = hr.sql(text, t=hr.read_parquet(tmp_path / "t.parquet"))
    found = data.with_options(engine="inline", progress=False).to_arrow()["k"].to_numpy()
    assert len(found) >= 300_000 and (np.diff(found) > 0).all()


@pytest.mark.parametrize("engine", ["duckdb", "polars"])
def test_names_of_files_are_no_patterns_and_order_stays(tmp_path: Path, engine: str) -> None:
    folder = tmp_path / "it's [1]*?"
    folder.mkdir()
    for name in ("a[0]*", "a0", "a01"):
        pq.write_table(pa.table({"x": range(1000)}), folder / f"{name}.parquet")
    text = "SELECT x % 700 AS k, sum(x) AS s FROM t GROUP BY k ORDER BY s DESC, k"
    data = hr.sql(text, t=hr.read_parquet(folder), query_engine=engine)
    sums = [row["s"] for row in data.with_options(engine="inline", progress=False).take_all()]
    assert sums == sorted(sums, reverse=True) and sum(sums) == 3 * sum(range(1000))
    assert data.with_options(engine="inline", progress=False).write_parquet(tmp_path / "out[0]").rows == 700


def test_rows_that_fail_before_a_query_are_kept_aside(tmp_path: Path) -> None:
    def picky(row: dict[str, Any]) -> dict[str, Any]:
        return {"id": 1 // (row["id"] - 1)}

    data = hr.sql("SELECT count(*) AS n FROM rides", rides=RIDES.with_options(on_error="reject").map(picky))
    data = data.with_options(engine="inline", progress=False, on_error="reject")
    with pytest.warns(UserWarning, match="1 row of rides failed before"):
        result = data.write_parquet(tmp_path / "out")
    (place,) = tmp_path.glob("out/_headrace/queries/*/input-0")
    assert hr.read_rejected(place).count() == 1
    assert f"1 row failed before, see {place}" in result.summary
    assert hr.read_parquet(tmp_path / "out").take_all() == [{"n": 1}]


class Slow:
    """An engine of somebody else's: it finds the one row that it always answers with."""

    name, version, bounded = "slow", "1", True

    def refusal(self, kind: pa.DataType) -> str:
        return "" if pa.types.is_int64(kind) else "it knows numbers only"

    def reads(self, given: Any) -> bool:
        return True

    def schema(self, query: Any) -> pa.Schema:
        return pa.schema({"rows": pa.int64()})

    def answer(self, query: Any, work: Any) -> Any:
        read = {name: each.rows for name, each in work.inputs.items()}
        pq.write_table(pa.table({"rows": [sum(read.values())]}), work.result)
        return Answer(read, 1)


def test_an_engine_of_somebody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENGINES.ours, "slow", Slow)  # type: ignore[index]
    assert hr.sql("count rides", rides=RIDES, query_engine="slow").take_all() == [{"rows": 2}]
    with pytest.raises(errors.PlanError, match="'name' of zones is string, and it knows numbers only"):
        hr.sql("count zones", zones=ZONES, query_engine="slow")
    monkeypatch.setattr(Slow, "answer", lambda *_: Answer({"rides": 3}, 1))
    with pytest.raises((errors.LedgerMismatch, errors.OutputWriteFailed)):
        hr.sql("count rides", rides=RIDES, query_engine="slow").count()
