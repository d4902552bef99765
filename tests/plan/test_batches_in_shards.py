"""A shard holds whole batches of a size that the user said, or at least one, whatever the source and the rows are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

import headrace as hr
from crossed import few
from headrace.options import RunOptions
from headrace.session.execution_plan import ExecutionPlan

FITTING = ("images", "binary", "memory", "wide", "range")  # their splits can end where batches do
COUNTED = (*FITTING, "parquet")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, hr.Dataset]:
    folder = tmp_path_factory.mktemp("in")
    for name in ("images", "binary", "csv"):
        (folder / name).mkdir()
    for n in range(24):
        Image.new("RGB", (7, 7), (n, n, n)).save(folder / "images" / f"{n:02d}.png")
    for n in range(90):
        (folder / "binary" / f"{n:02d}").write_bytes(b"x" * (n % 7 + 1))
    for n in range(3):
        (folder / "csv" / f"{n}.csv").write_text("a,b\n" + "1,2\n" * 4000)
    pq.write_table(pa.table({"x": np.arange(3_000)}), folder / "small.parquet", row_group_size=37)
    return {
        "images": hr.read_images(str(folder / "images"), size=(700, 700)),
        "binary": hr.read_binary_files(str(folder / "binary")),
        "csv": hr.read_csv(str(folder / "csv")),
        "parquet": hr.read_parquet(str(folder / "small.parquet")),
        "memory": hr.from_arrow(pa.table({"x": np.arange(5_000)})),
        "wide": hr.from_numpy(np.zeros((60, 40_000))),
        "range": hr.range(20_000),
    }


def same(batch: Any) -> Any:
    return batch


def kept(row: Any) -> bool:
    return True


@settings(max_examples=few(24), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_shards_hold_whole_batches_or_at_least_one(
    inputs: dict[str, hr.Dataset], data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(sorted(inputs)))
    sizes = data.draw(st.lists(st.sampled_from([1, 3, 8, 10, 64, 300]), min_size=1, max_size=2))
    declared = data.draw(st.booleans())
    plan = inputs[name]
    if data.draw(st.booleans()):
        plan = plan.filter(kept)
    for size in sizes:
        plan = plan.map_batches(same, batch_size=size, **({"num_cpus": 1} if declared else {}))
    shard_rows = data.draw(st.sampled_from([None, 1, 50, 1_000]))
    workers = data.draw(st.sampled_from([1, 2, 16]))
    options = RunOptions(workers=workers, shard_rows=shard_rows)
    partitioning = ExecutionPlan(plan._plan, options).partitioning
    *shards, last = partitioning.shards(plan._plan.source)
    if name in COUNTED:
        assert all(shard.rows >= max(sizes) for shard in shards)
    if name in FITTING:
        assert not any(shard.rows % np.lcm.reduce(sizes) for shard in shards)
    assert last.splits


def test_batches_of_heavy_rows_have_the_size_that_was_said(inputs: dict[str, hr.Dataset]) -> None:
    lengths: list[int] = []

    def noted(batch: Any) -> Any:
        lengths.append(len(batch["image"]))
        return {"n": np.zeros(len(batch["image"]))}

    images = inputs["images"].map_batches(noted, batch_size=8)
    assert images.with_options(engine="inline", workers=2).to_arrow().num_rows == 24
    assert lengths == [8, 8, 8]


def test_shards_of_an_undeclared_step_are_not_smaller_than_without_a_size(
    inputs: dict[str, hr.Dataset],
) -> None:
    def count(data: hr.Dataset) -> int:
        options = RunOptions(workers=2)
        return len(ExecutionPlan(data._plan, options).shards)

    for name, data in inputs.items():
        usual = count(data.map_batches(same))
        assert count(data.map_batches(same, batch_size=1)) <= usual + 1, name  # splits differ a little
