"""Clusters of several nodes, on this machine: nodes that come and go, that differ, that do not suffice."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import headrace as hr
from annex.llm.test_budget import Hostile, check_rate
from annex.ray.ray_nodes import MARKS, STORE, node_elsewhere
from headrace.errors import ResourcesUnavailable, UnsafeCluster

if importlib.util.find_spec("ray") is None:
    pytest.skip("Ray is not installed", allow_module_level=True)

from headrace.annex.llm.turns import LATE_SECONDS, LONGEST_TURN
from headrace.annex.ray.rates import UNUSED

pytestmark = MARKS


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head without cores, a node with two that stays, and whoever tests add."""
    import ray
    from ray.cluster_utils import Cluster

    before = os.environ.get("RAY_AUTH_MODE")
    os.environ["RAY_AUTH_MODE"] = "disabled"
    # Without this, nodes that are dead count as alive for 15 s.
    soon = {"health_check_initial_delay_ms": 500, "health_check_period_ms": 500}
    has = {"num_cpus": 0, "object_store_memory": STORE, "_system_config": soon}
    made = Cluster(initialize_head=True, head_node_args=has)
    made.add_node(num_cpus=2, object_store_memory=STORE)
    ray.init(address=made.address, log_to_driver=False)
    yield made
    ray.shutdown()
    made.shutdown()
    del os.environ["RAY_AUTH_MODE"]
    if before is not None:
        os.environ["RAY_AUTH_MODE"] = before


@pytest.fixture
def add_node(cluster: Any) -> Iterator[Callable[..., Any]]:
    """Add a node, which is gone after the test."""
    added = []

    def add(**has: Any) -> Any:
        node = cluster.add_node(object_store_memory=STORE, **has)
        added.append(node)
        return node

    yield add
    for node in added:
        with contextlib.suppress(Exception):
            cluster.remove_node(node, allow_graceful=False)


def node_id() -> str:
    """The node that this worker is on."""
    import ray

    return str(ray.get_runtime_context().get_node_id())


class Marks:
    """Leaves a mark for each batch: which step worked on which node."""

    def __init__(self, folder: Path, seconds: float = 0.02) -> None:
        self.folder = folder
        self.seconds = seconds
        folder.mkdir()

    def step(self, name: str, until: str = "") -> Callable[[dict[str, Any]], dict[str, Any]]:
        """A step that takes a little while; or waits ``until`` it may go on."""

        def work(batch: dict[str, Any]) -> dict[str, Any]:
            if not len(batch["id"]):  # it is tried without rows, for its columns
                return {**batch, name: batch["id"] * 2}
            with open(self.folder / f"{name}-{node_id()}", "a") as file:
                file.write("x")
            time.sleep(self.seconds)  # so that there is a while in which something can happen
            while until and not (self.folder / until).exists():
                time.sleep(self.seconds)
            return {**batch, name: batch["id"] * 2}

        return work

    def go(self, name: str) -> None:
        (self.folder / name).touch()

    def batches(self, name: str, node: str) -> int:
        file = self.folder / f"{name}-{node}"
        return file.stat().st_size if file.exists() else 0

    def nodes(self, name: str) -> set[str]:
        return {file.name.removeprefix(f"{name}-") for file in self.folder.glob(f"{name}-*")}


@pytest.fixture
def marks(tmp_path: Path) -> Marks:
    return Marks(tmp_path / "marks")


def on_ray(data: hr.Dataset, **options: Any) -> hr.Dataset:
    return data.with_options(**{"engine": hr.Ray(pool_timeout=40), "progress": False, **options})


@pytest.fixture
def aside() -> Iterator[ThreadPoolExecutor]:
    """Where a run goes on while the test changes the cluster, which Ray allows in the main thread only."""
    with ThreadPoolExecutor(1) as pool:
        yield pool


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def ids(folder: Path) -> list[int]:
    found: list[int] = pq.read_table(folder)["id"].to_pylist()
    return found


@pytest.mark.parametrize("stages", [1, 2])
def test_a_node_dies(
    cluster: Any,
    add_node: Callable[..., Any],
    aside: ThreadPoolExecutor,
    marks: Marks,
    tmp_path: Path,
    stages: int,
) -> None:
    victim = add_node(num_cpus=2)
    cluster.wait_for_nodes()
    data = hr.range(20_000).map_batches(marks.step("a"), batch_size=200, concurrency=2, num_cpus=1)
    if stages == 2:
        data = data.map_batches(marks.step("b"), batch_size=200, concurrency=(2, 2), num_cpus=0.9)
    last = "b" if stages == 2 else "a"
    run = aside.submit(on_ray(data, shard_rows=2_000).write_parquet, tmp_path / "out")
    until(lambda: marks.batches(last, victim.node_id) > 2 or marks.batches("a", victim.node_id) > 10)
    cluster.remove_node(victim, allow_graceful=False)
    result = run.result(60)
    assert result.rows == result.ledger.read == 20_000
    assert ids(tmp_path / "out") == list(range(20_000))


def test_nodes_die_again_and_again(
    cluster: Any, add_node: Callable[..., Any], aside: ThreadPoolExecutor, marks: Marks, tmp_path: Path
) -> None:
    """Each is at work when it dies, and another takes its place; nothing is lost, and no shard is blamed."""
    data = hr.range(30_000).map_batches(marks.step("a"), batch_size=200, concurrency=(1, 2), num_cpus=1)
    data = data.map_batches(marks.step("b", "over"), batch_size=500, concurrency=(1, 4), num_cpus=0.5)
    run = aside.submit(on_ray(data, shard_rows=1_000, max_attempts=1).write_parquet, tmp_path / "out")
    for _ in range(3):
        victim = add_node(num_cpus=3)
        until(lambda: bool(marks.batches("a", victim.node_id) or marks.batches("b", victim.node_id)))  # noqa: B023
        cluster.remove_node(victim, allow_graceful=False)
    marks.go("over")
    result = run.result(60)
    assert result.rows == result.ledger.read == 30_000
    assert ids(tmp_path / "out") == list(range(30_000))


def test_nodes_come_while_it_runs(
    cluster: Any, add_node: Callable[..., Any], aside: ThreadPoolExecutor, marks: Marks, tmp_path: Path
) -> None:
    data = hr.range(40_000).map_batches(marks.step("a", "b"), batch_size=2_000, concurrency=(1, 4))
    run = aside.submit(on_ray(data, shard_rows=1_000).write_parquet, tmp_path / "out")
    until(lambda: bool(marks.nodes("a")))
    add_node(num_cpus=2)
    until(lambda: len(marks.nodes("a")) == 2)
    marks.go("b")
    assert run.result(60).rows == 40_000


def test_a_node_that_is_about_to_go_is_left(
    cluster: Any, add_node: Callable[..., Any], aside: ThreadPoolExecutor, marks: Marks, tmp_path: Path
) -> None:
    """A spot machine that is taken back, say: what it works on is ended, and nothing is lost or done twice."""
    import ray

    leaving = add_node(num_cpus=2)
    cluster.wait_for_nodes()
    data = hr.range(30_000).map_batches(marks.step("a"), batch_size=100, concurrency=4)
    run = aside.submit(on_ray(data, shard_rows=1_000).write_parquet, tmp_path / "out")
    until(lambda: marks.batches("a", leaving.node_id) > 3)
    client = ray._private.worker.global_worker.gcs_client
    preempted, soon = 2, int((time.time() + 120) * 1_000)
    assert client.drain_node(leaving.node_id, preempted, "taken back", soon)[0]
    assert run.result(60).rows == 30_000
    assert ids(tmp_path / "out") == list(range(30_000))
    batches = sum(marks.batches("a", node) for node in marks.nodes("a"))
    assert batches == 300, "some were done twice"
    assert marks.batches("a", leaving.node_id) < 150


def test_it_waits_for_the_first_node_that_suffices(
    cluster: Any, add_node: Callable[..., Any], aside: ThreadPoolExecutor, marks: Marks, tmp_path: Path
) -> None:
    """One node has what stands for a GPU, and joins when it is asked for."""
    data = hr.range(4_000).map_batches(marks.step("a"), batch_size=500, num_cpus=0.5, concurrency=1)
    data = data.map_batches(marks.step("b"), batch_size=500, num_gpus=1, num_cpus=0)
    run = aside.submit(on_ray(data).write_parquet, tmp_path / "out")
    add_node(num_cpus=0, num_gpus=1)
    assert run.result(60).rows == 4_000
    assert len(marks.nodes("a")) == len(marks.nodes("b")) == 1
    assert marks.nodes("a").isdisjoint(marks.nodes("b"))


def test_pools_that_are_larger_than_the_cluster(cluster: Any, marks: Marks, tmp_path: Path) -> None:
    data = hr.range(10_000).map_batches(marks.step("a"), batch_size=500, concurrency=8)
    data = data.map_batches(marks.step("b"), batch_size=500, concurrency=7)
    assert on_ray(data).write_parquet(tmp_path / "out").rows == 10_000
    assert ids(tmp_path / "out") == list(range(10_000))


class Doubles:
    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {**batch, "double": batch["id"] * 2}


def test_actors_on_all_cores_leave_none_to_read_with(cluster: Any, tmp_path: Path) -> None:
    """Ray Data 2.60 hangs over this plan: its actors wait for rows, and the reads for a core."""
    hr.range(1_000).with_options(engine="local", progress=False).write_parquet(tmp_path / "in")
    data = hr.read_parquet(tmp_path / "in").map_batches(Doubles, concurrency=2, num_cpus=1)
    assert on_ray(data).write_parquet(tmp_path / "out").rows == 1_000


def test_what_the_cluster_never_has(cluster: Any, marks: Marks, tmp_path: Path) -> None:
    data = hr.range(10).map_batches(lambda batch: batch, num_gpus=2, memory=1 << 30)
    with pytest.raises(ResourcesUnavailable, match=r"GPU: 2, memory: 1 GiB.*The cluster has . nodes"):
        on_ray(data, engine=hr.Ray(pool_timeout=1)).write_parquet(tmp_path / "out")
    data = hr.range(400_000).map_batches(marks.step("a", "never"), concurrency=(5, 8))
    with pytest.raises(ResourcesUnavailable, match="needs 5"):
        on_ray(data, engine=hr.Ray(pool_timeout=2), shard_rows=10_000).write_parquet(tmp_path / "other")


def test_the_driver_is_killed_and_one_machine_goes_on(cluster: Any, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            import sys, time
            import headrace as hr

            def slowly(batch):
                if "slow" in sys.argv[1:] or SLOW:
                    time.sleep(0.05)
                return {"id": batch["id"], "double": batch["id"] * 2}

            SLOW = len(sys.argv) > 1
            data = hr.range(40_000).map_batches(slowly, batch_size=500, concurrency=2, version="1")
            result = data.with_options(progress=False, shard_rows=1_000).write_parquet("out")
            print(result.rows, result.resumed)
            """
        )
    )
    environment = {**os.environ, "RAY_ADDRESS": cluster.address, "PYTHONPATH": os.pathsep.join(sys.path)}
    driver = subprocess.Popen(
        [sys.executable, str(script), "slow"],
        cwd=tmp_path,
        env={**environment, "HEADRACE_ENGINE": "ray"},
        stderr=subprocess.DEVNULL,
    )
    until = time.monotonic() + 60
    while len(list(tmp_path.glob("out/part-*"))) < 3:
        assert time.monotonic() < until and driver.poll() is None
        time.sleep(0.01)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env={**environment, "HEADRACE_ENGINE": "local"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.split() == ["40000", "True"], done.stderr
    assert ids(tmp_path / "out") == list(range(40_000))


def test_a_node_that_does_not_see_the_output(cluster: Any, tmp_path: Path) -> None:
    """A node whose mounts hide the folder, as another machine's own disk would be."""
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    with node_elsewhere(cluster.address, hidden):
        data = hr.range(10).map_batches(lambda batch: batch, concurrency=1)
        engine = hr.Ray(pool_timeout=40, remote_args={"resources": {"elsewhere": 1}})
        with pytest.raises(ResourcesUnavailable, match="do not see the output folder"):
            on_ray(data, engine=engine).write_parquet(hidden / "out")
        assert on_ray(data, engine=engine).write_parquet(tmp_path / "out").rows == 10


def test_nodes_have_one_rate(cluster: Any, tmp_path: Path) -> None:
    """Each node has a limiter of its own, by which it might send all of the rate."""
    import ray

    sent, own = list[float](), tmp_path / "own"
    own.mkdir(mode=0o700)
    with (
        node_elsewhere(cluster.address, None, 1, {"XDG_RUNTIME_DIR": str(own)}),
        Hostile(random.Random(7), {"answer": 1.0}) as server,
    ):
        until(lambda: "elsewhere" in ray.cluster_resources())
        server.on_request = lambda: (
            sent.append(time.monotonic()),
            until(lambda: any(own.rglob("limiter-*"))),
        )
        model = hr.llm.Endpoint(server.url, "m", requests_per_minute=600, max_in_flight=8)
        model = model.with_options(sampling={"max_tokens": 20})
        rows = hr.from_items([{"i": f"{i} b c"} for i in range(120)]).prompt("{i}", model, concurrency=3)
        rows.with_options(engine="ray", shard_rows=2, progress=False).write_parquet(tmp_path / "out")
    assert hr.read_parquet(tmp_path / "out").with_options(engine="inline").count() == 120 == len(sent)
    check_rate(sent, 10, LONGEST_TURN + LATE_SECONDS + UNUSED)


def test_a_cluster_elsewhere_that_lets_in_anybody(cluster: Any) -> None:
    from headrace.annex.ray import cluster as ours

    assert ours.remote_nodes(cluster.address) == []  # all nodes are on this machine
    ours.check_authentication([])
    with pytest.raises(UnsafeCluster, match="RAY_AUTH_TOKEN"):
        ours.check_authentication(["192.0.2.77"])


def test_a_worker_that_takes_too_much_for_its_node_is_ended(cluster: Any, tmp_path: Path) -> None:
    """It keeps something of each batch: workers are replaced before the node has no memory left."""
    kept: list[bytes] = []

    def keeps(batch: dict[str, Any]) -> dict[str, Any]:
        kept.append(b"x" * (8 << 20))
        time.sleep(0.05)
        return batch

    data = hr.range(40_000).map_batches(keeps, batch_size=500)
    result = on_ray(data, shard_rows=2_000, memory_limit=700 << 20).write_parquet(tmp_path / "out")
    assert ids(tmp_path / "out") == list(range(40_000))
    assert "retired to stay within memory_limit" in str(result)
