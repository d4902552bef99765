"""Workers on a Ray of this machine; `make test-ray` runs these, `make test` does not."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import headrace as hr
from annex.ray.ray_nodes import MARKS
from headrace.core.engine_ports import Engine
from headrace.errors import (
    ArgumentError,
    EngineError,
    ResourcesUnavailable,
    StepError,
    UnsafeCluster,
)
from headrace.testing import EngineContract

if importlib.util.find_spec("ray") is None:
    pytest.skip("Ray is not installed", allow_module_level=True)

pytestmark = MARKS


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    """A Ray of this machine, with more cores than there may be: what is tested waits more than it works."""
    import ray

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(
            "RAY_AUTH_MODE", "disabled"
        )  # a process has one for good, and clusters of tests have this
        ray.init(address="local", num_cpus=8, include_dashboard=False, log_to_driver=False)
        yield
        ray.shutdown()


class TestRay(EngineContract):
    def make(self) -> Engine:
        from headrace.annex.ray.pool import RayEngine

        return RayEngine(pool_timeout=30)


def double(batch: dict[str, Any]) -> dict[str, Any]:
    return {**batch, "double": batch["id"] * 2}


class Adds:
    def __init__(self, table: np.ndarray[Any, Any]) -> None:
        self._table = table

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        assert not batch["id"].flags.writeable
        return {
            **batch,
            "sum": batch["double"] + self._table[batch["id"]],
            "process": np.full(len(batch["id"]), os.getpid()),
        }


def fails_on_seven(batch: dict[str, Any]) -> dict[str, Any]:
    if 7 in batch["id"]:
        raise ValueError("seven")
    return batch


def on_ray(data: hr.Dataset, **options: Any) -> hr.Dataset:
    return data.with_options(**{"engine": "ray", "progress": False, **options})


def test_one_stage(tmp_path: Path) -> None:
    result = on_ray(hr.range(20_000).map_batches(double, concurrency=2)).write_parquet(tmp_path / "out")
    assert result.rows == 20_000
    table = pq.read_table(tmp_path / "out")
    assert table["id"].to_pylist() == list(range(20_000))
    assert table["double"].to_pylist() == list(range(0, 40_000, 2))
    again = on_ray(hr.range(20_000).map_batches(double, concurrency=2)).write_parquet(tmp_path / "out")
    assert again.rows == 20_000 and again.run == result.run


def test_three_stages_and_a_big_value(tmp_path: Path) -> None:
    table = np.arange(1_000_000)
    data = (
        hr.range(50_000)
        .map_batches(double, num_cpus=0.5, concurrency=2)
        .map_batches(Adds, fn_constructor_args=(table,), batch_size=1_000, concurrency=2)
        .filter(lambda row: row["id"] % 2 == 0, num_cpus=0.25, concurrency=1)
    )
    result = on_ray(data, shard_rows=5_000).write_parquet(tmp_path / "out")
    assert result.rows == 25_000
    found = pq.read_table(tmp_path / "out")
    assert found["sum"].to_pylist() == [3 * i for i in range(0, 50_000, 2)]
    assert os.getpid() not in set(found["process"].to_pylist())


def test_rows_are_read_in_order() -> None:
    data = on_ray(hr.range(30_000).map_batches(double, concurrency=2))
    seen = [i for batch in data.iter_batches(batch_size=999) for i in batch["id"].tolist()]
    assert seen == list(range(30_000))
    assert data.count() == 30_000


def test_errors_and_rejected_rows_are_as_on_one_machine(tmp_path: Path) -> None:
    data = hr.range(1_000).map_batches(fails_on_seven, concurrency=2)
    with pytest.raises(StepError, match="seven"):
        on_ray(data).write_parquet(tmp_path / "raised")
    result = on_ray(data, on_error="reject").write_parquet(tmp_path / "rejected")
    assert (result.rows, result.rejected) == (999, 1)


def test_a_worker_that_dies_over_a_row(tmp_path: Path) -> None:
    mark = str(tmp_path / "mark")

    def dies_once(batch: dict[str, Any]) -> dict[str, Any]:
        if 4_000 in batch["id"] and not os.path.exists(mark):
            open(mark, "w").close()
            os._exit(1)
        return batch

    data = hr.range(10_000).map_batches(dies_once, batch_size=500, concurrency=2)
    assert on_ray(data).write_parquet(tmp_path / "out").rows == 10_000
    assert os.path.exists(mark)
    assert pq.read_table(tmp_path / "out")["id"].to_pylist() == list(range(10_000))


def test_a_relative_output_is_where_the_driver_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert on_ray(hr.range(100).map_batches(double, concurrency=1)).write_parquet("out").rows == 100
    assert (tmp_path / "out" / "_SUCCESS").exists()


def test_what_ray_is_told_besides(tmp_path: Path) -> None:
    args = {"runtime_env": {"env_vars": {"A_NAME": "known"}}}
    data = hr.range(10).map_batches(lambda batch: {"name": [os.environ["A_NAME"]]}, concurrency=1)
    rows = on_ray(data, engine=hr.Ray(remote_args=args), shard_rows=10).take_all()
    assert rows[0]["name"] == "known"
    with pytest.raises(ArgumentError, match="num_cpus"):
        hr.Ray(remote_args={"num_cpus": 3})


def test_what_ray_is_told_of_a_step(tmp_path: Path) -> None:
    def names(batch: dict[str, Any]) -> dict[str, Any]:
        return {**batch, "name": [os.environ.get("A_NAME", "")] * len(batch["id"])}

    def others(batch: dict[str, Any]) -> dict[str, Any]:
        return {**batch, "other": [os.environ.get("A_NAME", "")] * len(batch["id"])}

    def told(name: str) -> dict[str, Any]:
        return {"runtime_env": {"env_vars": {"A_NAME": name}}}

    data = hr.range(4).map_batches(names, concurrency=1, ray_remote_args=told("step"))
    data = data.map_batches(others, concurrency=1)
    rows = on_ray(data, engine=hr.Ray(remote_args=told("all"))).take_all()
    assert {(row["name"], row["other"]) for row in rows} == {("step", "all")}
    data = hr.range(4).map_batches(names, concurrency=1, ray_remote_args={"resources": {"disk": 1}})
    with pytest.raises(ResourcesUnavailable, match=r"disk: 1.*The cluster has"):
        on_ray(data, engine=hr.Ray(pool_timeout=1)).write_parquet(tmp_path / "out")
    with pytest.raises(ArgumentError, match="resorces"):
        on_ray(hr.range(4).map_batches(names, ray_remote_args={"resorces": 1})).take_all()


def test_explain_says_what_holds_on_a_cluster() -> None:
    data = hr.range(8).map_batches(double, concurrency=(1, 3), ray_remote_args={"resources": {"disk": 1}})
    told, limited = on_ray(data).explain(), on_ray(data, memory_limit="4GiB").explain()
    assert "engine   ray: 1 to 3 workers with 1 thread, resources={'disk': 1} each" in told
    assert "for blocks between stages; Ray watches that of its nodes" in told
    assert "for blocks between stages; 4 GiB for workers on each node" in limited
    assert "no effect" not in told


def test_the_address_of_another_cluster_than_the_one_that_is_connected() -> None:
    data = hr.range(10).map_batches(double).with_options(engine="ray://192.0.2.77:10001", progress=False)
    with pytest.raises(EngineError, match=r"192\.0\.2\.77:10001.* connected to the Ray cluster at .*another"):
        data.take_all()


def test_a_cluster_that_asks_who_connects() -> None:
    from headrace.annex.ray import cluster

    assert cluster.amounts_in_words({"CPU": 4.0, "GPU": 0, "memory": 1 << 30}) == "CPU: 4, memory: 1 GiB"
    assert cluster.remote_nodes("ray://localhost:10001") == []
    assert cluster.remote_nodes("ray://192.0.2.77:10001") == ["192.0.2.77"]
    asks = os.environ.get("RAY_AUTH_MODE") == "token"  # which is how Ray 2.60 starts by itself
    if asks:
        cluster.check_authentication(["192.0.2.77"])
    else:
        with pytest.raises(UnsafeCluster, match="RAY_AUTH_TOKEN"):
            cluster.check_authentication(["192.0.2.77"])


def write_all_the_same(array: np.ndarray[Any, Any]) -> float:
    """Write as torch and other libraries do, which do not ask whether they may."""
    import ctypes

    (ctypes.c_double * 1).from_address(array.ctypes.data)[0] += 1.0
    return float(array[0])


class Writes:
    def __init__(self, table: np.ndarray[Any, Any]) -> None:
        self._table = table

    def write(self) -> tuple[int, float]:
        return os.getpid(), write_all_the_same(self._table)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        process, wrote = self.write()
        return {"process": [process], "wrote": [wrote]}


def test_a_model_that_writes_to_its_weights_changes_those_of_nobody_else() -> None:
    data = hr.range(8).map_batches(
        Writes, fn_constructor_args=(np.zeros(1_000_000),), batch_size=1, concurrency=2
    )
    found: dict[int, list[float]] = {}
    for row in on_ray(data, shard_rows=4).take_all():
        found.setdefault(row["process"], []).append(row["wrote"])
    for wrote in found.values():
        assert sorted(wrote) == list(range(1, len(wrote) + 1))


def test_a_row_that_ends_its_workers_at_once_is_set_aside(tmp_path: Path) -> None:
    def ends(row: dict[str, Any]) -> dict[str, Any]:
        if row["id"] == 5:
            os._exit(9)
        return row

    data = on_ray(hr.range(200).map(ends, concurrency=1), on_error="reject")
    result = data.write_parquet(tmp_path / "out")
    assert (result.rows, result.rejected) == (199, 1)
