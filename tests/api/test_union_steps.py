"""``union`` of datasets that have steps: rows, order, accounts, and types, against plain Python."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from crossed import few
from headrace.core.arrow.widening import filled_rows
from headrace.errors import (
    ArgumentError,
    OutputWriteFailed,
    PlanChanged,
    SchemaMismatch,
    StepError,
    UnknownColumn,
)
from headrace.testing import failpoints

QUIET: dict[str, Any] = {"engine": "inline", "progress": False}
Row = dict[str, Any]
Step = tuple[Callable[[hr.Dataset], hr.Dataset], Callable[[list[Row]], list[Row]]]


class Picky:
    """Cannot do what one row in seven needs."""

    def __call__(self, row: Row) -> Row:
        if row["id"] % 7 == 3:
            raise ValueError("no")
        return row


def doubled(batch: dict[str, Any]) -> dict[str, Any]:
    return {**batch, "id": batch["id"] * 2}


def steps_of(draw: random.Random) -> Step:
    """Return a step, and what it does to rows."""
    k = draw.randint(1, 5)
    kinds: list[Step] = [
        (
            lambda ds: ds.map(lambda row: {**row, "id": row["id"] + k}),
            lambda rows: [{**row, "id": row["id"] + k} for row in rows],
        ),
        (
            lambda ds: ds.filter(lambda row: row["id"] % (k + 1) != 0),
            lambda rows: [row for row in rows if row["id"] % (k + 1) != 0],
        ),
        (
            lambda ds: ds.filter(expr=f"id != {k}"),
            lambda rows: [row for row in rows if row["id"] != k],
        ),
        (
            lambda ds: ds.flat_map(lambda row: [row] * (row["id"] % 3)),
            lambda rows: [row for row in rows for _ in range(row["id"] % 3)],
        ),
        (
            lambda ds: ds.map_batches(doubled, batch_size=draw.choice([None, k])),
            lambda rows: [{**row, "id": row["id"] * 2} for row in rows],
        ),
        (
            lambda ds: ds.map(lambda row: {**row, f"t{k}": f"{k}:{row['id']}"}),
            lambda rows: [{**row, f"t{k}": f"{k}:{row['id']}"} for row in rows],
        ),
        (
            lambda ds: ds.map(Picky, concurrency=1),
            lambda rows: [row for row in rows if row["id"] % 7 != 3],
        ),
        (lambda ds: ds.select_columns(["id"]), lambda rows: [{"id": row["id"]} for row in rows]),
    ]
    return draw.choice(kinds)


def tree(draw: random.Random, depth: int) -> tuple[hr.Dataset, list[Row]]:
    """Return a dataset of unions within unions, and the rows of the same program in plain Python."""
    if depth == 0 or draw.random() < 0.3:
        n = draw.choice([0, 1, 5, 40])
        data = hr.range(n) if draw.random() < 0.5 else hr.from_arrow(pa.table({"id": range(n)}))
        rows = [{"id": i} for i in range(n)]
    else:
        parts = [tree(draw, depth - 1) for _ in range(draw.randint(1, 3))]
        if len(parts) == 1:
            parts *= 2  # with itself
        data, rows = (
            parts[0][0].union(*(part for part, _ in parts[1:])),
            [row for _, each in parts for row in each],
        )
    for _ in range(draw.randint(0, 3)):
        verb, model = steps_of(draw)
        data, rows = verb(data), model(rows)
    return data, rows


@pytest.mark.filterwarnings("ignore:.* rows failed and are left out")
@pytest.mark.filterwarnings("ignore:The output has no row, and .* cannot be run without rows")
@settings(max_examples=few(6))
@given(st.integers(0, 10**9))
def test_any_tree_of_unions_is_the_plain_program(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    draw = random.Random(seed)
    data, rows = tree(draw, 2)
    data = data.with_options(on_error="reject", shard_rows=draw.choice([3, 10, None]), **QUIET)
    wanted = filled_rows(rows)
    out = tmp_path_factory.mktemp("out") / "o"
    result = data.write_parquet(out)
    found = pq.read_table(out) if result.rows else None
    assert (result.rows, result.ledger.written) == (len(rows), len(rows))
    if found is not None:
        every = {name: row for row in wanted for name in row}
        assert set(every) <= set(found.column_names), (
            "columns that only datasets without rows have may come, too"
        )
        assert found.select(list(every)).to_pylist() == [{n: row[n] for n in every} for row in wanted]
    ledger = result.ledger
    assert ledger.read == ledger.written + ledger.rejected + sum(ledger.dropped) - sum(ledger.added)
    assert not hr.verify(out).findings
    if seed % 4 == 0:
        assert data.count() == len(rows)
        taken = data.take(7)
        assert [{k: v for k, v in row.items() if v is not None} for row in taken] == rows[:7]


def renamed(batch: dict[str, Any]) -> dict[str, Any]:
    return {"id": batch["id"], "name": np.array([str(i) for i in batch["id"]], object)}


def halved(row: Row) -> Row:
    return {"id": row["id"] + 0.5, "y": True}


def odd(row: Row) -> bool:
    return bool(row["id"] % 2)


def twice(row: Row) -> Row:
    return {**row, "id": row["id"] * 2}


def test_functions_see_their_own_columns_and_the_output_has_all(tmp_path: Path) -> None:
    """No function gets a column, or a type, of another dataset; what is written is one schema."""
    seen: list[list[str]] = []

    def look(batch: dict[str, Any]) -> dict[str, Any]:
        seen.append(sorted(batch))
        return {"id": batch["id"], "x": batch["x"] + 1}

    a = hr.from_arrow(pa.table({"id": range(4), "x": range(4)})).map_batches(look)
    b = hr.from_arrow(pa.table({"id": range(3), "x": ["s"] * 3})).map(halved)  # x is a text here
    data = a.union(b, hr.range(2)).with_options(**QUIET)
    result = data.write_parquet(tmp_path / "out")
    table = pq.read_table(tmp_path / "out")
    assert table.schema.equals(pa.schema([("id", pa.float64()), ("x", pa.int64()), ("y", pa.bool_())]))
    assert table["id"].to_pylist() == [0, 1, 2, 3, 0.5, 1.5, 2.5, 0, 1]
    assert table["x"].to_pylist() == [1, 2, 3, 4, *[None] * 5]
    assert {tuple(each) for each in seen} == {("id", "x")}
    assert result.ledger.steps == ((4, 4), (3, 3), (9, 9)) and result.ledger.past == (5, 6, 0)
    assert data.schema().equals(table.schema) and data.columns() == ["id", "x", "y"]
    assert data.to_pandas()["id"].tolist() == table["id"].to_pylist()
    assert data.filter(expr="id > 2").count() == 2
    with pytest.raises(UnknownColumn, match=r"Dataset 3 of the union: select_columns.*asks for column 'y'"):
        data.select_columns(["y"]).take(1)
    clash = hr.range(2).map(twice).union(hr.range(2).map(lambda row: {"id": "x"})).with_options(**QUIET)
    assert [row["id"] for row in clash.take_all()] == [0, 2, "x", "x"], "in memory, values stay as they are"
    with pytest.raises(
        SchemaMismatch, match="union: column 'id' is int64 in 'dataset 1' but string in 'dataset 2'"
    ):
        clash.write_parquet(tmp_path / "clash")


def test_columns_that_are_known_are_those_of_a_plain_union() -> None:
    """Where no function makes columns, each step behind sees all columns, in one order, with one type and form."""
    a = hr.from_arrow(pa.table({"id": range(3), "flag": [True] * 3})).filter(odd)
    b = hr.from_arrow(pa.table({"km": [1.5], "other": [1], "id": [7]})).drop_columns(["other"])
    data = a.union(b).with_options(**QUIET)
    assert data.columns() == ["id", "flag", "km"] and data.count() == 2
    kinds = data.map_batches(lambda batch: {n: [f"{n} {v.dtype}"] for n, v in batch.items()}).take_all()
    assert [sorted(row.values()) for row in kinds] == [["flag object", "id int64", "km float64"]] * 2
    plain = a.materialize().union(b.materialize())
    assert data.take_all() == plain.take_all() and data.schema().equals(plain.schema())
    assert (hr.range(3).rename_columns({"id": "n"}).union(hr.range(4).drop_columns([])).count()) == 7
    with pytest.raises(SchemaMismatch, match=r"union: column 'id' is int64 in 'dataset 1' but string"):
        a.union(hr.from_items([{"id": "x"}]).filter(odd))


def test_a_sample_takes_the_rows_that_it_takes_alone() -> None:
    left, right = hr.range(300).train_test_split(0.3, seed=3)
    assert sorted(row["id"] for row in left.union(right).take_all()) == list(range(300))
    part = hr.range(50).union(hr.range(50)).random_sample(0.5, seed=1)
    both = part.union(hr.range(1)).with_options(**QUIET)
    assert both.take_all() == [*part.take_all(), {"id": 0}]
    again = part.random_sample(0.5, seed=1).count()
    assert 0 < again < part.count(), "a second sample is drawn anew"


def test_what_is_about_all_rows_comes_behind(tmp_path: Path) -> None:
    a = hr.range(10).map(twice)
    with pytest.raises(ArgumentError, match=r"dataset 2 has limit\(3\).*Put limit after union"):
        a.union(hr.range(9).limit(3))
    with pytest.raises(ArgumentError, match=r"dataset 1 has accumulate\(n\).*Put accumulate after union"):
        a.accumulate(n=hr.Count()).union(a)
    result = (
        a.union(a)
        .accumulate(n=hr.Count(), s=hr.Sum("id"))
        .with_options(**QUIET)
        .write_parquet(tmp_path / "o")
    )
    assert dict(result.metrics) == {"n": 20, "s": 180}
    assert [row["id"] for row in a.union(a).limit(12).take_all()] == [*range(0, 20, 2), 0, 2]


def write_two(folder: Path) -> None:
    for name, ids in (("a", range(2000)), ("b", range(500))):
        (folder / name).mkdir()
        pq.write_table(
            pa.table({"id": ids, name: [name] * len(ids)}), folder / name / "1.parquet", row_group_size=250
        )


def test_a_run_goes_on_and_notices_a_change_in_one_dataset(tmp_path: Path) -> None:
    write_two(tmp_path)

    def write(step: Any, **options: Any) -> hr.Result:
        a, b = hr.read_parquet(tmp_path / "a").map_batches(renamed), hr.read_parquet(tmp_path / "b").map(step)
        data = a.union(b.filter(odd)).map(twice).with_options(shard_rows=250, **QUIET)
        return data.write_parquet(tmp_path / "out", **options)

    with failpoints({"journal.sync": "ENOSPC@5"}), pytest.raises(OutputWriteFailed):
        write(twice)
    with pytest.raises(PlanChanged, match=r"The code of map\(.*lambda>\) of dataset 2"):
        write(lambda row: row)
    result = write(twice)
    assert (result.rows, result.resumed) == (2000, True), "twice gives even numbers, of which none is odd"
    assert pq.read_table(tmp_path / "out")["id"].to_pylist() == list(range(0, 4000, 2))
    with pytest.raises(PlanChanged, match="its steps were map_batches → map → filter"):
        hr.read_parquet(tmp_path / "a").map_batches(renamed).union(
            hr.read_parquet(tmp_path / "b").map(twice)
        ).with_options(shard_rows=250, **QUIET).write_parquet(tmp_path / "out")


def fails_at_seven(row: Row) -> Row:
    if row["id"] % 100 == 7:
        raise ValueError("seven")
    return {"id": row["id"]}


def test_stages_of_several_datasets_on_workers(tmp_path: Path) -> None:
    """Pools of one dataset let rows of the others pass; rejected rows have the columns of their own dataset."""
    write_two(tmp_path)
    a = (
        hr.read_parquet(tmp_path / "a")
        .map(fails_at_seven, num_cpus=1)
        .map_batches(doubled, batch_size=33, concurrency=1)
    )
    b = (
        hr.read_parquet(tmp_path / "b")
        .rename_columns({"b": "text"})
        .map_batches(doubled, batch_size=20, num_cpus=0.5)
    )
    data = a.union(b, hr.range(50)).with_options(
        on_error="reject", shard_rows=300, workers=2, progress=False, memory_limit="2GB"
    )
    result = data.write_parquet(tmp_path / "out")
    table = pq.read_table(tmp_path / "out")
    kept = [i for i in range(2000) if i % 100 != 7]
    assert table["id"].to_pylist() == [*(2 * i for i in kept), *(2 * i for i in range(500)), *range(50)]
    assert table["text"].to_pylist() == [None] * len(kept) + ["b"] * 500 + [None] * 50
    assert (result.rejected, result.ledger.read, result.ledger.rejects) == (20, 2550, (20, 0, 0, 0, 0))
    assert result.ledger.steps[:2] == ((2000, 1980), (1980, 1980))
    assert result.ledger.past == (550, 550, 2030, 2030, 0)
    rejected = hr.read_rejected(tmp_path / "out").to_arrow()
    assert rejected["id"].to_pylist() == [*range(7, 2000, 100)]
    assert set(rejected["a"].to_pylist()) == {"a"} and set(rejected["b"].to_pylist()) == {None}
    assert not hr.verify(tmp_path / "out").findings
    text = str(data.explain())
    assert "dataset 2  Parquet, 1 file, 500 rows\n         reads 2 of 2 columns: id, b\n" in text
    assert "read → rename_columns({'b': 'text'}) → map_batches(doubled) → union" in text
    with pytest.raises(StepError, match=r"map\(fails_at_seven\).*a/1\.parquet, row 7"):
        data.with_options(on_error="raise", engine="inline").take_all()


def test_rejected_rows_of_datasets_whose_types_differ(tmp_path: Path) -> None:
    a = hr.from_arrow(pa.table({"id": [3, 4], "x": [1, 2]})).map(Picky)
    b = hr.from_arrow(pa.table({"id": [10, 4], "x": [["s"], ["t"]]})).map(Picky)
    data = a.select_columns(["id"]).union(b.select_columns(["id"])).with_options(on_error="reject", **QUIET)
    result = data.write_parquet(tmp_path / "out")
    assert (result.rows, result.rejected) == (2, 2)
    rejected = hr.read_rejected(tmp_path / "out").take_all()
    assert [(row["id"], row["x"]) for row in rejected] == [(3, "1"), (10, "['s']")]


def test_only_needed_columns_are_read_of_each_dataset() -> None:
    a = hr.from_arrow(pa.table({"id": [1], "big": [1]})).map_batches(doubled, columns=["id"])
    b = hr.from_arrow(pa.table({"k": [2], "big": ["x"]})).rename_columns({"k": "id"})
    text = str(a.union(b).select_columns(["id"]).with_options(**QUIET).explain())
    assert "reads 1 of 2 columns: id" in text and "reads 1 of 2 columns: k" in text
    assert a.union(b).select_columns(["id"]).take_all() == [{"id": 2}, {"id": 2}]
    assert a.union(b).with_column("n", pc.field("id") + 1).select_columns(["n"]).take_all() == [{"n": 3}] * 2
