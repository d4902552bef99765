"""``zip`` of datasets that have steps: pairs, names, accounts and refusals, against plain Python."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import pairwise
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
from api.test_union_steps import QUIET, Picky, Row, doubled, twice
from crossed import few
from headrace.errors import (
    ArgumentError,
    BadReturn,
    StepError,
    UnknownColumn,
)

Model = list[Row | None]
"""The rows of one side; None for one that was rejected."""


def in_pieces(batch: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a batch in several, that are as many rows together."""
    half = len(batch["id"]) // 2
    for part in (slice(0, half), slice(half, None)):
        if len(batch["id"][part]):
            yield {name: values[part] for name, values in batch.items()}


def each(rows: Model, change: Callable[[Row], Row | None]) -> Model:
    return [None if row is None else change(row) for row in rows]


Step = tuple[Callable[[hr.Dataset], hr.Dataset], Callable[[Model], Model]]


def steps_of(draw: random.Random) -> Step:
    """Return a step that keeps each row in its place, and what it does to rows."""
    k, new = draw.randint(1, 5), f"r{draw.randint(0, 10**9)}"
    kinds: list[Step] = [
        (
            lambda ds: ds.map(lambda row: {**row, "id": row["id"] + k}),
            lambda rows: each(rows, lambda row: {**row, "id": row["id"] + k}),
        ),
        (
            lambda ds: ds.map_batches(doubled, batch_size=draw.choice([None, k])),
            lambda rows: each(rows, lambda row: {**row, "id": row["id"] * 2}),
        ),
        (lambda ds: ds.map_batches(in_pieces, batch_size=draw.choice([None, k])), lambda rows: rows),
        (
            lambda ds: ds.map_batches(lambda batch: {"id": batch["id"]}, columns=["id"]),
            lambda rows: each(rows, lambda row: {"id": row["id"]}),
        ),
        (
            lambda ds: ds.predict(
                lambda batch: batch["id"] + 0.5, inputs=["id"], output=f"p{k}", replace=True, batch_size=k
            ),
            lambda rows: each(rows, lambda row: {**row, f"p{k}": row["id"] + 0.5}),
        ),
        (
            lambda ds: ds.with_column(f"w{k}", pc.field("id") + k),
            lambda rows: each(rows, lambda row: {**row, f"w{k}": row["id"] + k}),
        ),
        (
            lambda ds: ds.map(Picky, concurrency=1),
            lambda rows: each(rows, lambda row: None if row["id"] % 7 == 3 else row),
        ),
        (lambda ds: ds.select_columns(["id"]), lambda rows: each(rows, lambda row: {"id": row["id"]})),
        (
            lambda ds: ds.rename_columns({"id": new}).with_column("id", pc.field(new)),
            lambda rows: each(
                rows, lambda row: {new if n == "id" else n: v for n, v in row.items()} | {"id": row["id"]}
            ),
        ),
    ]
    return draw.choice(kinds)


def beside(sides: list[Model]) -> Model:
    """Put rows side by side in plain Python."""
    made: Model = []
    for rows in zip(*sides, strict=True):
        row: Row | None = {}
        for part in rows:
            if part is None or row is None:
                row = None
                continue
            for name, value in part.items():
                new, number = name, 0
                while new in row:
                    number += 1
                    new = f"{name}_{number}"
                row[new] = value
        made.append(row)
    return made


def tree(draw: random.Random, n: int, depth: int) -> tuple[hr.Dataset, Model]:
    """Return a dataset of zips within zips, and the rows of the same program in plain Python."""
    rows: Model
    if depth == 0 or draw.random() < 0.3:
        data = (
            hr.range(n) if draw.random() < 0.5 else hr.from_arrow(pa.table({"id": range(n), "x": ["t"] * n}))
        )
        rows = [{"id": i} if data.columns() == ["id"] else {"id": i, "x": "t"} for i in range(n)]
    else:
        parts = [tree(draw, n, depth - 1) for _ in range(draw.randint(1, 3))]
        if len(parts) == 1:
            parts *= 2  # with itself
        data = parts[0][0].zip(*(part for part, _ in parts[1:]))
        rows = beside([each for _, each in parts])
    for _ in range(draw.randint(0, 3)):
        verb, model = steps_of(draw)
        data, rows = verb(data), model(rows)
    return data, rows


@pytest.mark.filterwarnings("ignore:.* rows? failed and (are|is) left out")
@settings(max_examples=few(15))
@given(st.integers(0, 10**9))
def test_any_tree_of_zips_is_the_plain_program(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    draw = random.Random(seed)
    data, model = tree(draw, draw.choice([1, 5, 40]), 2)
    rows = [row for row in model if row is not None]
    if draw.random() < 0.3:
        data, rows = data.filter(lambda row: row["id"] % 3 != 0), [row for row in rows if row["id"] % 3 != 0]
    if draw.random() < 0.3:
        data, rows = data.union(data), rows * 2
    data = data.with_options(on_error="reject", shard_rows=draw.choice([3, 10, None]), **QUIET)
    out = tmp_path_factory.mktemp("out") / "o"
    result = data.write_parquet(out)
    assert (result.rows, result.ledger.written) == (len(rows), len(rows))
    if rows:
        assert pq.read_table(out).to_pylist() == rows
    ledger = result.ledger
    assert ledger.read == ledger.written + ledger.rejected + sum(ledger.dropped) and not sum(ledger.added)
    assert not hr.verify(out).findings
    if seed % 4 == 0:
        assert data.count() == len(rows) and data.take(7) == rows[:7]
        names = draw.sample([*rows[0]], draw.randint(1, len(rows[0]))) if rows else []
        if names:
            assert data.select_columns(names).take_all() == [{n: row[n] for n in names} for row in rows]
            assert data.columns() == [*rows[0]]


def write_two(folder: Path, rows: int = 5000) -> None:
    """Write two data sets of equally many rows, in files and row groups of different sizes."""
    for name, group, cuts in (("a", 100, [0, rows // 3, rows]), ("b", 170, [0, rows])):
        (folder / name).mkdir()
        for start, stop in pairwise(cuts):
            ids = range(start, stop)
            table = pa.table({"id": ids, name: [f"{name}{i}" for i in ids], "spare": ids})
            pq.write_table(table, folder / name / f"{start:05}.parquet", row_group_size=group)


def plus(batch: dict[str, Any]) -> dict[str, Any]:
    return {**batch, "sum": batch["id"] + batch["id_1"]}


def fails_at_seven(row: Row) -> Row:
    if row["id"] % 100 == 7:
        raise ValueError("seven")
    return row


def test_functions_see_the_columns_of_their_own_dataset() -> None:
    seen: list[tuple[str, ...]] = []

    def look(batch: dict[str, Any]) -> dict[str, Any]:
        seen.append(tuple(batch))
        return {"id": batch["id"], "new": batch["id"] + 1}

    a = hr.from_arrow(pa.table({"id": range(4), "x": range(4)})).map_batches(look)
    b = hr.from_arrow(pa.table({"id": ["s"] * 4, "x": [None] * 4})).map_batches(look_at_text)
    data = a.zip(b, hr.range(4).select_columns(["id"])).with_options(**QUIET)
    assert data.take_all() == [
        {"id": i, "new": i + 1, "id_1": "s", "x": None, "n": 1, "id_2": i} for i in range(4)
    ]
    assert {*seen} == {("id", "x")}
    assert data.columns() == data.schema().names == ["id", "new", "id_1", "x", "n", "id_2"]
    assert data.count() == 4 and len(data.take(2)) == 2
    assert data.map_batches(lambda batch: {"all": [str([*batch])]}).take(1) == [
        {"all": "['id', 'new', 'id_1', 'x', 'n', 'id_2']"}
    ]
    assert data.zip(data).columns()[-2:] == ["n_1", "id_2_1"]


def look_at_text(batch: dict[str, Any]) -> dict[str, Any]:
    assert [*batch] == ["id", "x"]
    return {**batch, "n": np.ones(len(batch["id"]), int)}


def test_stages_and_pools_of_one_dataset_and_of_the_other(tmp_path: Path) -> None:
    """Where a row of one dataset is rejected, the pair is: no other row takes its place."""
    write_two(tmp_path)
    a = (
        hr.read_parquet(tmp_path / "a")
        .map(fails_at_seven, num_cpus=1)
        .map_batches(doubled, batch_size=33, concurrency=1)
    )
    b = (
        hr.read_parquet(tmp_path / "b")
        .drop_columns(["spare"])
        .map_batches(in_pieces, batch_size=20, num_cpus=0.5)
    )
    data = (
        a.zip(b)
        .map_batches(plus, batch_size=50)
        .accumulate(total=hr.Sum("sum"))
        .with_options(
            on_error="reject", shard_rows=900, engine="local", workers=2, progress=False, memory_limit="2GB"
        )
    )
    result = data.write_parquet(tmp_path / "out")
    kept = [i for i in range(5000) if i % 100 != 7]
    assert pq.read_table(tmp_path / "out").to_pylist() == [
        {"id": 2 * i, "a": f"a{i}", "spare": i, "id_1": i, "b": f"b{i}", "sum": 3 * i} for i in kept
    ]
    assert (result.rows, result.rejected, result.metrics["total"]) == (4950, 50, 3 * sum(kept))
    rejected = hr.read_rejected(tmp_path / "out").to_arrow()
    assert rejected["id_1"].to_pylist() == rejected["id"].to_pylist() == [*range(7, 5000, 100)]
    assert rejected["b"].to_pylist() == [f"b{i}" for i in range(7, 5000, 100)]
    assert not hr.verify(tmp_path / "out").findings
    text = str(data.explain())
    assert "read → zip(2 datasets) → map(fails_at_seven) of dataset 1 → blocks" in text
    assert "map_batches(in_pieces) of dataset 2: a function, batches of 20 rows as numpy" in text
    with pytest.raises(
        StepError, match=r"map\(fails_at_seven\).*a/00000\.parquet, row 7, beside .*b/00000\.parquet, row 7"
    ):
        data.with_options(on_error="raise", engine="inline").take_all()


def test_a_function_that_returns_another_number_of_rows_is_told(tmp_path: Path) -> None:
    """In each batch, even where all batches together would have as many rows."""

    def moved(batch: dict[str, Any]) -> dict[str, Any]:
        ids = batch["id"]
        return {"id": ids[ids % 10 != 7]} if len(ids) > 1 or ids[0] % 10 == 7 else {"id": ids}

    data = hr.range(30).map_batches(moved, batch_size=10).zip(hr.range(30)).with_options(**QUIET)
    for run in (data.count, data.take_all, lambda: data.write_parquet(tmp_path / "o")):
        with pytest.raises(
            BadReturn, match=r"map_batches\(.*moved\) returned.*0 rows for 1, and zip.*write that dataset"
        ):
            run()
    kept = data.with_options(on_error="reject").write_parquet(tmp_path / "kept")
    rows = pq.read_table(tmp_path / "kept").to_pylist()
    assert kept.rows == len(rows) and all(row["id"] == row["id_1"] for row in rows), "no wrong pair"
    assert kept.rows + kept.rejected == 30
    longer = hr.range(4).map_batches(lambda batch: {"id": np.repeat(batch["id"], 2)}).zip(hr.range(4))
    with pytest.raises(BadReturn, match="8 rows for 4"):
        longer.with_options(**QUIET).take_all()


@pytest.mark.parametrize(
    ("step", "says"),
    [
        (
            lambda ds: ds.filter(lambda row: True),
            r"filter\(.*\), which may change how many rows there are",
        ),
        (lambda ds: ds.filter(expr="id > 1"), r"filter\(\(id > 1\)\), which may change"),
        (lambda ds: ds.flat_map(lambda row: [row]), r"flat_map\(.*\), which may change"),
        (lambda ds: ds.limit(3), r"limit\(3\), which may change"),
        (lambda ds: ds.random_sample(0.5), r"random_sample\(0.5, seed=0\), which may change"),
        (
            lambda ds: ds.accumulate(n=hr.Count()),
            r"accumulate\(n\), and metrics count.*Put accumulate after zip",
        ),
        (
            lambda ds: ds.map(twice).union(ds),
            "a union of datasets with steps.*write that dataset as Parquet first",
        ),
    ],
)
def test_steps_that_change_which_rows_there_are_come_behind(step: Any, says: str) -> None:
    with pytest.raises(ArgumentError, match=f"zip: dataset 2 (has|is) {says}"):
        hr.range(5).zip(step(hr.range(5)))


def test_what_does_not_fit_is_refused_at_once() -> None:
    with pytest.raises(UnknownColumn, match=r"select_columns\(\['y'\]\) asks for column 'y'"):
        hr.range(3).zip(hr.range(3).select_columns(["y"]))
    data = hr.range(3).zip(hr.range(3).with_column("y", pc.field("id") * 2)).with_options(**QUIET)
    assert data.select_columns(["y"]).take_all() == [{"y": 0}, {"y": 2}, {"y": 4}]
    with pytest.raises(UnknownColumn, match=r"asks for column 'z'.*id, id_1, y"):
        data.select_columns(["z"]).take(1)
    assert hr.range(0).map(twice).zip(hr.range(0)).with_options(**QUIET).take_all() == []


def test_only_needed_columns_are_read_where_names_are_known(tmp_path: Path) -> None:
    write_two(tmp_path)
    a, b = hr.read_parquet(tmp_path / "a"), hr.read_parquet(tmp_path / "b")
    known = (
        a.rename_columns({"id": "k"}).zip(b.with_column("n", pc.field("id") + 1)).select_columns(["n", "a"])
    )
    text = str(known.with_options(**QUIET).explain())
    assert "columns  reads 3 of 6: id, a, id_1" in text  # `k` is renamed, so it is read
    assert known.with_options(**QUIET).take(2) == [{"n": 1, "a": "a0"}, {"n": 2, "a": "a1"}]
    made = a.map_batches(doubled, columns=["id"]).zip(b.select_columns(["b"]))
    assert "columns  reads 2 of 6: id, b" in str(made.with_options(**QUIET).explain())
    assert made.with_options(**QUIET).take(1) == [{"id": 0, "b": "b0"}]
    assert made.with_options(**QUIET).select_columns(["b"]).count() == 5000


def test_arrays_objects_and_forms_go_along() -> None:
    arrays = hr.from_numpy(np.arange(24).reshape(4, 2, 3)).map_batches(
        lambda batch: {"data": batch["data"] * 2}
    )
    flags = hr.from_arrow(pa.table({"flag": [True, None, False, None]})).map(
        lambda row: {**row, "o": complex(row["flag"] or 0)}
    )
    data = flags.zip(arrays).with_options(**QUIET)
    kinds = data.map_batches(lambda batch: {n: [f"{v.dtype} {v.shape}"] for n, v in batch.items()}).take_all()
    assert kinds == [{"flag": "object (4,)", "o": "object (4,)", "data": "int64 (4, 2, 3)"}]
    assert data.take(1)[0]["o"] == complex(1)
