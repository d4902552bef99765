"""``random_sample`` and ``train_test_split``: the same rows, whoever asks and however the input is cut."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.errors import ArgumentError, OutputWriteFailed, StepError
from headrace.testing import failpoints


def ids(data: hr.Dataset) -> list[int]:
    return [row["id"] for row in data.take_all()]


def write(folder: Path, name: str, first: int, rows: int, group: int = 500) -> None:
    table = pa.table({"id": np.arange(first, first + rows), "even": np.arange(rows) % 2 == 0})
    pq.write_table(table, folder / f"{name}.parquet", row_group_size=group)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "in"
    made.mkdir()
    write(made, "b", 0, 4000)
    return made


def test_the_same_rows_come_again(folder: Path) -> None:
    data = hr.read_parquet(folder)
    once = ids(data.random_sample(0.2, seed=3))
    assert once == sorted(once) and 700 < len(once) < 900
    cut = data.map_batches(lambda batch: batch, batch_size=7).with_options(shard_rows=1)
    assert ids(cut.random_sample(0.2, seed=3).with_options(engine="local", workers=2)) == once
    assert ids(data.filter(expr="even").random_sample(0.2, seed=3)) == [i for i in once if i % 2 == 0]
    assert ids(data.random_sample(0.2, seed=4)) != once
    assert ids(data.random_sample(0.2)) == ids(data.random_sample(0.2, seed=0))
    assert data.random_sample(0.2, seed=3).count() == len(once), "also where no column is read"
    write(folder, "a", 9000, 100)  # which is read before
    assert [i for i in ids(data.random_sample(0.2, seed=3)) if i < 9000] == once


def test_two_samples_are_independent() -> None:
    data = hr.range(10_000)
    assert 2300 < data.random_sample(0.5).random_sample(0.5).count() < 2700
    assert data.random_sample(0).take_all() == [] and data.random_sample(1).count() == 10_000


def test_each_row_is_on_one_side(folder: Path) -> None:
    write(folder, "c", 4000, 100)
    data = hr.read_parquet(folder)
    train, test = data.train_test_split(0.25, seed=5, shuffle=True)
    assert sorted(ids(train) + ids(test)) == list(range(4100)) and 900 < test.count() < 1150
    assert [repr(each).rpartition("→ ")[2] for each in (train, test)] == ["train", "test"]
    assert ids(test) == ids(data.random_sample(0.25, seed=5))


def test_a_run_that_was_cut_short_goes_on_with_the_same_rows(folder: Path, tmp_path: Path) -> None:
    data = hr.read_parquet(folder).random_sample(0.3, seed=1)
    run = data.with_options(shard_rows=500, engine="inline", progress=False)
    with failpoints({"journal.sync": "ENOSPC@3"}), pytest.raises(OutputWriteFailed):
        run.write_parquet(tmp_path / "out")
    result = run.write_parquet(tmp_path / "out")
    assert pq.read_table(tmp_path / "out").column("id").to_pylist() == ids(data)
    ((came, left),) = result.ledger.steps
    assert (came, left, result.ledger.dropped, result.rows) == (4000, left, (4000 - left,), left)


def test_files_as_rows(tmp_path: Path) -> None:
    for i in range(60):
        (tmp_path / f"{i:02}.bin").write_bytes(b"x")
    data = hr.read_binary_files(tmp_path, include_paths=True).random_sample(0.5)
    once = [row["path"] for row in data.take_all()]
    assert 9 < len(once) < 51  # the names of the files decide, and they are others each time
    (tmp_path / "00.bin").unlink()
    assert [row["path"] for row in data.take_all()] == [path for path in once if not path.endswith("00.bin")]


def test_rows_without_a_place_are_refused() -> None:
    data = hr.range(10)
    with pytest.raises(ArgumentError, match=r"flat_map.*Put random_sample before it"):
        data.flat_map(lambda row: [row]).random_sample(0.5)
    with pytest.raises(StepError, match="Put the sample before that step"):
        data.map_batches(lambda batch: {"id": batch["id"][:2]}).random_sample(0.5).take_all()


@pytest.mark.parametrize("given", [1.5, -0.1, "a", None, True, float("nan")])
def test_parts_that_there_are_not(given: object) -> None:
    with pytest.raises(ArgumentError, match="random_sample"):
        hr.range(3).random_sample(given)  # type: ignore[arg-type]


def test_splits_that_there_are_not() -> None:
    with pytest.raises(ArgumentError, match=r"train_test_split\(1\.5\)"):
        hr.range(9).train_test_split(1.5)
    with pytest.raises(ArgumentError, match="seed='a'"):
        hr.range(9).train_test_split(0.5, seed="a")  # type: ignore[arg-type]
