"""``zip`` of datasets that have steps, which are made first: pairs, names and refusals, against plain Python."""

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
    OutputWriteFailed,
    PlanChanged,
    StepError,
    TooManyErrors,
    UnknownColumn,
)
from headrace.testing import failpoints

Model = list[Row]


def in_pieces(batch: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a batch in several, that are as many rows together."""
    half = len(batch["id"]) // 2
    for part in (slice(0, half), slice(half, None)):
        if len(batch["id"][part]):
            yield {name: values[part] for name, values in batch.items()}


def each(rows: Model, change: Callable[[Row], Row]) -> Model:
    return [change(row) for row in rows]


Step = tuple[Callable[[hr.Dataset], hr.Dataset], Callable[[Model], Model]]


def steps_of(draw: random.Random) -> Step:
    """Return a step that keeps how many rows there are, and what it does to them."""
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
        row: Row = {}
        for part in rows:
            for name, value in part.items():
                new, number = name, 0
                while new in row:
                    number += 1
                    new = f"{name}_{number}"
                row[new] = value
        made.append(row)
    return made


def leaf(draw: random.Random, n: int) -> tuple[hr.Dataset, Model]:
    """Return ``n`` rows that are read, or left by steps that change how many there are."""
    kind = draw.randint(0, 3)
    if kind == 0:
        return hr.from_arrow(pa.table({"id": range(n), "x": ["t"] * n})), [
            {"id": i, "x": "t"} for i in range(n)
        ]
    if kind == 1:
        return hr.range(2 * n).filter(lambda row: row["id"] % 2), [{"id": 2 * i + 1} for i in range(n)]
    if kind == 2:
        half = hr.range(n // 2).map(twice)
        return half.union(hr.range(n - n // 2)), [
            *({"id": 2 * i} for i in range(n // 2)),
            *({"id": i} for i in range(n - n // 2)),
        ]
    return hr.range(n + 5).limit(n), [{"id": i} for i in range(n)]


def tree(draw: random.Random, n: int, depth: int) -> tuple[hr.Dataset, Model]:
    """Return a dataset of zips within zips, and the rows of the same program in plain Python."""
    if depth == 0 or draw.random() < 0.4:
        data, rows = leaf(draw, n)
    else:
        parts = [tree(draw, n, depth - 1) for _ in range(draw.randint(1, 2))]
        if len(parts) == 1:
            parts *= 2  # with itself
        data = parts[0][0].zip(*(part for part, _ in parts[1:]))
        rows = beside([each for _, each in parts])
    for _ in range(draw.randint(0, 2)):
        verb, model = steps_of(draw)
        data, rows = verb(data), model(rows)
    return data, rows


@pytest.mark.filterwarnings("ignore:.* rows? failed and (are|is) left out")
@settings(max_examples=few(4))
@given(st.integers(0, 10**9))
def test_any_tree_of_zips_is_the_plain_program(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    draw = random.Random(seed)
    data, rows = tree(draw, draw.choice([2, 5, 40]), 2)
    if draw.random() < 0.3:
        data, rows = data.map(Picky, concurrency=1), [row for row in rows if row["id"] % 7 != 3]
    if draw.random() < 0.3:
        data, rows = data.filter(lambda row: row["id"] % 3 != 0), [row for row in rows if row["id"] % 3 != 0]
    data = data.with_options(on_error="reject", shard_rows=draw.choice([3, 10, None]), **QUIET)
    out = tmp_path_factory.mktemp("out") / "o"
    result = data.write_parquet(out)
    assert (result.rows, result.ledger.written) == (len(rows), len(rows))
    if rows:
        assert pq.read_table(out).to_pylist() == rows
    ledger = result.ledger
    assert ledger.read == ledger.written + ledger.rejected + sum(ledger.dropped) and not sum(ledger.added)
    assert not hr.verify(out).findings
    assert not (out / "_headrace" / "queries").exists()
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


def pair_fails_at_seven(row: Row) -> Row:
    if row["id_1"] % 100 == 7:
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


def test_datasets_are_made_first_and_a_row_that_fails_is_never_left_out(tmp_path: Path) -> None:
    """Without it, rows behind it would stand beside others. Behind the zip, it is set aside with its pair."""
    write_two(tmp_path)
    a = hr.read_parquet(tmp_path / "a")
    b = hr.read_parquet(tmp_path / "b").drop_columns(["spare"])
    doubled_a = a.map_batches(doubled, batch_size=33, concurrency=1)
    data = (
        doubled_a.zip(b.map_batches(in_pieces, batch_size=20, num_cpus=0.5))
        .map(pair_fails_at_seven, num_cpus=1)
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
    assert "made first: 5,000 rows of dataset 1 of the zip became 5,000 rows" in result.summary
    rejected = hr.read_rejected(tmp_path / "out").to_arrow()
    assert [2 * i for i in rejected["id_1"].to_pylist()] == rejected["id"].to_pylist()
    assert not hr.verify(tmp_path / "out").findings
    text = str(data.explain())
    assert (
        "first    dataset 1 of the zip: read → map_batches(doubled) → write; kept until the run ends" in text
    )

    fails = a.map(fails_at_seven).zip(b).with_options(on_error="reject", **QUIET)
    with (
        pytest.warns(UserWarning, match="50 rows of dataset 1 of the zip failed before"),
        pytest.raises(
            TooManyErrors, match=r"zip: 50 rows of dataset 1 failed in read → map\(fails_at_seven\)"
        ),
    ):
        fails.write_parquet(tmp_path / "none")
    (place,) = (tmp_path / "none" / "_headrace" / "queries" / "0").iterdir()
    assert hr.read_rejected(place).to_arrow()["id"].to_pylist() == [*range(7, 5000, 100)]
    assert fails.take(3) == [{**row, "id_1": i, "b": f"b{i}"} for i, row in enumerate(a.take(3))]
    with pytest.raises(StepError, match="seven"):
        fails.take(20)
    with pytest.raises(StepError, match=r"map\(fails_at_seven\).*a/00000\.parquet, row 7"):
        fails.with_options(on_error="raise").take_all()


@pytest.mark.filterwarnings("ignore:1 row of dataset")
def test_as_many_rows_that_fail_on_both_sides_are_no_wrong_pairs(tmp_path: Path) -> None:
    def picky(bad: int) -> hr.Dataset:
        return hr.range(10).map(lambda row: {"id": row["id"] // (row["id"] != bad)})

    data = picky(3).zip(picky(6)).with_options(on_error="reject", **QUIET)
    for run in (data.count, data.take_all, lambda: data.write_parquet(tmp_path / "o")):
        with pytest.raises(TooManyErrors, match="of dataset 1 failed in read → map"):
            run()
    with pytest.raises(StepError, match="ZeroDivisionError"):
        data.take(9)


def test_a_run_goes_on_with_what_was_made(tmp_path: Path) -> None:
    """What is whole is not made again; other code, or other files, are another run."""
    write_two(tmp_path, 900)
    calls = tmp_path / "calls"

    def noted(batch: dict[str, Any]) -> dict[str, Any]:
        with calls.open("a") as file:
            file.write(f"{len(batch['id'])}\n")
        return batch

    def write(step: Any = noted, **options: Any) -> hr.Result:
        a, b = hr.read_parquet(tmp_path / "a").map_batches(step), hr.read_parquet(tmp_path / "b")
        data = a.zip(b).map_batches(plus, batch_size=50).with_options(shard_rows=200, **QUIET)
        return data.write_parquet(tmp_path / "out", **options)

    with failpoints({"journal.sync": "ENOSPC@7"}), pytest.raises(OutputWriteFailed):
        write()
    made = calls.read_text()
    assert sum(map(int, made.split())) == 900
    with pytest.raises(PlanChanged, match=r"the code of map_batches\(twice\)"):
        write(twice)
    result = write()
    assert (result.rows, result.resumed, calls.read_text()) == (900, True, made)
    assert pq.read_table(tmp_path / "out")["sum"].to_pylist() == [2 * i for i in range(900)]
    assert write().resumed and calls.read_text() == made


def test_numbers_of_rows_are_compared_when_they_are_known(tmp_path: Path) -> None:
    kept = hr.range(30).filter(lambda row: row["id"] % 3 == 0)
    assert kept.zip(hr.range(10)).with_options(**QUIET).take_all()[-1] == {"id": 27, "id_1": 9}
    for run in (
        lambda data: data.take_all(),
        lambda data: data.count(),
        lambda data: data.write_parquet(tmp_path / "o"),
    ):
        with pytest.raises(ArgumentError, match="numbers of rows: 10, 11"):
            run(kept.zip(hr.range(11)).with_options(**QUIET))
    with pytest.raises(ArgumentError, match="numbers of rows: 4, 3"):
        hr.range(4).map(twice).zip(hr.range(9).limit(3))  # which no row has to be made for
    with pytest.raises(ArgumentError, match=r"dataset 2 has accumulate\(n\).*Put accumulate after zip"):
        hr.range(5).zip(hr.range(5).accumulate(n=hr.Count()))
    (tmp_path / "a.csv").write_text("x\n7\n8\n")
    read = hr.range(2).zip(hr.read_csv(tmp_path / "a.csv")).with_options(**QUIET)
    assert read.take_all() == [{"id": 0, "x": 7}, {"id": 1, "x": 8}], (
        "a file that has to be read to be counted"
    )


def test_what_cannot_work_is_refused_at_once() -> None:
    with pytest.raises(UnknownColumn, match=r"select_columns\(\['y'\]\) asks for column 'y'"):
        hr.range(3).zip(hr.range(3).select_columns(["y"]))
    data = hr.range(3).zip(hr.range(3).with_column("y", pc.field("id") * 2)).with_options(**QUIET)
    assert data.select_columns(["y"]).take_all() == [{"y": 0}, {"y": 2}, {"y": 4}]
    with pytest.raises(UnknownColumn, match=r"asks for column 'z'.*id, id_1, y"):
        data.select_columns(["z"]).take(1)
    assert str(data).splitlines()[1].split() == ["column", "type"] or "id_1" in str(data)


def test_columns_that_are_chosen_or_renamed_are_read_where_they_lie(tmp_path: Path) -> None:
    write_two(tmp_path)
    a, b = hr.read_parquet(tmp_path / "a"), hr.read_parquet(tmp_path / "b")
    data = a.rename_columns({"id": "k"}).drop_columns(["spare"]).zip(b.select_columns(["b", "id"]))
    data = data.with_options(shard_rows=900, **QUIET)
    assert data.columns() == ["k", "a", "b", "id"]
    text = str(data.select_columns(["id", "a"]).explain())
    assert "columns  reads 2 of 4: a, id" in text and "first" not in text
    result = data.write_parquet(tmp_path / "out")
    assert pq.read_table(tmp_path / "out").to_pylist() == [
        {"k": i, "a": f"a{i}", "b": f"b{i}", "id": i} for i in range(5000)
    ]
    assert result.ledger.gathered == 0
    with pytest.raises(PlanChanged, match="the input: columns was"):
        a.zip(b.select_columns(["b", "id"])).with_options(shard_rows=900, **QUIET).write_parquet(
            tmp_path / "out"
        )


def test_arrays_and_forms_go_along() -> None:
    arrays = hr.from_numpy(np.arange(24).reshape(4, 2, 3)).map_batches(
        lambda batch: {"data": batch["data"] * 2}
    )
    flags = hr.from_arrow(pa.table({"flag": [True, None, False, None]})).map(lambda row: row)
    data = flags.zip(arrays).with_options(**QUIET)
    kinds = data.map_batches(lambda batch: {n: [f"{v.dtype} {v.shape}"] for n, v in batch.items()}).take_all()
    assert kinds == [{"flag": "object (4,)", "data": "int64 (4, 2, 3)"}]
    odd = flags.map(lambda row: {"o": complex(row["flag"] or 0)}).zip(arrays).with_options(**QUIET)
    assert odd.take(1)[0]["o"] == complex(1)
    with pytest.raises(BadReturn, match="which files cannot hold"):
        odd.take_all()
