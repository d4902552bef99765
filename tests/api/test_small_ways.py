"""Small ways of Ray Data: local shuffles, rows per file, repartition, the context."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.errors import ArgumentError, OutputWriteFailed
from headrace.testing import failpoints

QUIET: dict[str, Any] = {"engine": "inline", "progress": False}


def shuffled(data: hr.Dataset, **given: Any) -> list[list[int]]:
    return [batch["id"].tolist() for batch in data.iter_batches(**given)]


def test_rows_are_shuffled_within_a_buffer() -> None:
    data = hr.range(1000).with_options(**QUIET)
    found = shuffled(data, batch_size=30, local_shuffle_buffer_size=100, local_shuffle_seed=1)
    flat = [each for batch in found for each in batch]
    assert sorted(flat) == list(range(1000)) and flat != sorted(flat)
    assert [len(batch) for batch in found] == [30] * 33 + [10]
    assert max(abs(each - at) for at, each in enumerate(flat)) < 1000 and max(found[0]) < 200
    assert min(found[-1]) < 900, "a row may wait for long"
    cut = data.map_batches(lambda batch: batch, batch_size=7)
    assert shuffled(cut, batch_size=30, local_shuffle_buffer_size=100, local_shuffle_seed=1) == found
    assert shuffled(data, batch_size=30, local_shuffle_buffer_size=100, local_shuffle_seed=2) != found
    dropped = shuffled(data, batch_size=30, local_shuffle_buffer_size=2000, drop_last=True)
    assert [len(batch) for batch in dropped] == [30] * 33
    once = shuffled(data, batch_size=30, local_shuffle_buffer_size=1)
    assert sorted(each for batch in once for each in batch) == list(range(1000))


def test_tensors_are_shuffled_too() -> None:
    torch = pytest.importorskip("torch")
    batches = hr.range(50).iter_torch_batches(
        batch_size=9, local_shuffle_buffer_size=20, local_shuffle_seed=3
    )
    ids = torch.cat([batch["id"] for batch in batches]).tolist()
    assert ids != sorted(ids) and sorted(ids) == list(range(50))
    wrapped = hr.range(50).to_torch(batch_size=9, local_shuffle_buffer_size=20, local_shuffle_seed=3)
    assert torch.cat([batch["id"] for batch in wrapped]).tolist() == ids


@pytest.mark.parametrize(
    "given",
    [
        {"batch_size": None, "local_shuffle_buffer_size": 5},
        {"local_shuffle_buffer_size": 0},
        {"local_shuffle_buffer_size": "a"},
        {"local_shuffle_buffer_size": 5, "local_shuffle_seed": "a"},
    ],
)
def test_shuffles_that_there_are_not(given: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match=r"batch_size|local_shuffle"):
        hr.range(3).iter_batches(**given)


@pytest.mark.parametrize("write", ["write_parquet", "write_csv", "write_json"])
def test_no_file_has_more_rows(write: str, tmp_path: Path) -> None:
    data = hr.range(5000).with_options(shard_rows=2000, **QUIET)
    result = getattr(data, write)(tmp_path / "out", max_rows_per_file=150)
    files = sorted(tmp_path.glob("out/part-*"))
    read = {"write_parquet": hr.read_parquet, "write_csv": hr.read_csv, "write_json": hr.read_json}[write]
    rows = [read(file).count() for file in files]
    assert max(rows) == 150 and sum(rows) == result.rows == 5000 and len(rows) > 34
    assert [row["id"] for row in read(tmp_path / "out").take_all()] == list(range(5000))
    assert hr.verify(tmp_path / "out").good
    assert getattr(data, write)(tmp_path / "out", max_rows_per_file=150).run == result.run
    with pytest.raises(hr.errors.PlanChanged, match="max_rows_per_file"):
        getattr(data, write)(tmp_path / "out", max_rows_per_file=100)


def test_files_of_one_shard_are_committed_together(tmp_path: Path) -> None:
    data = hr.range(5000).with_options(shard_rows=2000, **QUIET)
    for point in ("publish.rename@2", "stage.sync@4", "stage.closed@3"):
        where, _, at = point.partition("@")
        out = tmp_path / where
        with failpoints({where: f"ENOSPC@{at}"}), pytest.raises(OutputWriteFailed):
            data.write_parquet(out, max_rows_per_file=700)
        assert data.write_parquet(out, max_rows_per_file=700).rows == 5000
        assert pq.read_table(out).column("id").to_pylist() == list(range(5000))
        assert not list(out.rglob("*.staged"))
    names = [path.name for path in sorted(out.glob("part-*"))]
    assert [name.rpartition("-")[0] for name in names[:2]] == ["part-00000-00000", "part-00000-00001"]
    again = data.map_batches(lambda batch: {"id": batch["id"][:0]})
    assert again.write_parquet(tmp_path / "none", max_rows_per_file=5).rows == 0
    assert pq.read_table(tmp_path / "none").num_rows == 0
    data.write_parquet(out, max_rows_per_file=5000, mode="overwrite")
    assert pq.read_table(out).num_rows == 5000 and len([*out.glob("part-*")]) < len(names)


def test_about_so_many_rows(tmp_path: Path) -> None:
    hr.range(100_000).with_options(**QUIET).write_parquet(tmp_path / "out", min_rows_per_file=40_000)
    rows = [pq.read_metadata(file).num_rows for file in sorted(tmp_path.glob("out/part-*"))]
    assert len(rows) == 3 and rows[0] >= 39_000
    for given in (
        {"min_rows_per_file": 0},
        {"max_rows_per_file": "a"},
        {"min_rows_per_file": 9, "max_rows_per_file": 3},
    ):
        with pytest.raises(ArgumentError, match="rows_per_file"):
            hr.range(3).write_parquet(tmp_path / "no", **given)  # type: ignore[arg-type]


def test_repartition_changes_nothing() -> None:
    with pytest.warns(UserWarning, match=r"repartition\(7\) has no effect") as said:
        data = hr.range(3).repartition(7)
    assert data.count() == 3 and len(said) == 1


def test_the_context() -> None:
    from headrace.compat import ray

    context = ray.data.DataContext.get_current()
    context.target_max_block_size = 5
    assert ray.data.DataContext.get_current().target_max_block_size == 5
    context.execution_options.preserve_order = True
    context.execution_options = ray.data.ExecutionOptions(verbose_progress=False)
    with pytest.warns(UserWarning, match=r"ray\.data\.DataContext\.target_size has no effect here"):
        context.target_size = 5
    context.enable_progress_bars = False
    try:
        assert ray.data.range(3)._options.progress is False
    finally:
        context.enable_progress_bars = True
    context.max_errored_blocks = 2
    try:
        options = ray.data.range(3)._options
        assert (options.on_error, options.max_errors) == ("reject", 2)
    finally:
        context.max_errored_blocks = 0
    context.execution_options.resource_limits.cpu = 1
    try:
        assert ray.data.range(3)._options.workers == 1
    finally:
        context.execution_options.resource_limits.cpu = None
    with pytest.raises(ArgumentError, match="ExecutionResources"):
        context.execution_options.resource_limits = {"cpu": 1}
