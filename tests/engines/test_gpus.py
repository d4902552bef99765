"""Which GPUs workers see: their own and no others. No GPU is needed to tell."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.core.engine_ports import PoolSpec, WorkerContext
from headrace.engines.local import machine
from headrace.engines.local.pool import LocalEngine, LocalPool
from headrace.errors import ResourcesUnavailable, WorkerDied

Devices = tuple[str, ...] | None


class Sees:
    """What a worker saw when the plan was unpickled there, what it sees now, and what it was told."""

    def __init__(self, context: WorkerContext, before: str | None) -> None:
        self._told = context.devices
        self._before = before

    def sees(self) -> tuple[str | None, str | None, Devices]:
        return self._before, os.environ.get("CUDA_VISIBLE_DEVICES"), self._told

    def die(self) -> None:
        os._exit(3)


class Telltale:
    """Makes ``Sees``; when it is unpickled, it looks at what a library would see that is imported then."""

    def __init__(self) -> None:
        self.before: str | None = "made in the driver"

    def __reduce__(self) -> Any:
        return _unpickled, ()

    def __call__(self, context: WorkerContext) -> Sees:
        return Sees(context, self.before)


def _unpickled() -> Telltale:
    made = Telltale()
    made.before = os.environ.get("CUDA_VISIBLE_DEVICES")
    return made


@pytest.fixture
def start() -> Iterator[Callable[..., LocalPool]]:
    """Start a pool with so many GPUs for each worker, on a machine with two."""
    engine = LocalEngine(warm=1, devices=("3", "GPU-5a"))

    def start(num_gpus: float | None, size: int = 1, most: int | None = None) -> LocalPool:
        return engine.start(
            PoolSpec("stage 1", Telltale(), size, num_gpus=num_gpus, most=most), lambda *note: None
        )

    yield start
    engine.close(kill=True)


def seen(pool: LocalPool) -> list[str]:
    """Return what each worker sees, in the order of their numbers."""
    found = []
    for worker in sorted(pool.loads()):
        before, now, told = pool.submit("sees", worker=worker).result()
        assert before == now == (",".join(told) if told is not None else None)
        found.append(str(now))
    return found


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.parametrize(
    ("num_gpus", "size", "expected"),
    [
        (1, 2, ["3", "GPU-5a"]),
        (2, 1, ["3,GPU-5a"]),
        (0.5, 4, ["3", "GPU-5a", "3", "GPU-5a"]),
        (0.5, 2, ["3", "3"]),
        (1.5, 1, ["3,GPU-5a"]),
        (0, 2, ["", ""]),
        (None, 2, ["None", "None"]),
    ],
)
def test_each_worker_sees_its_own(
    start: Callable[..., LocalPool], num_gpus: float | None, size: int, expected: list[str]
) -> None:
    assert seen(start(num_gpus, size)) == expected


def test_pools_of_one_engine_have_different_ones(start: Callable[..., LocalPool]) -> None:
    first, second = start(1), start(1)
    assert seen(first) + seen(second) == ["3", "GPU-5a"]
    with pytest.raises(ResourcesUnavailable, match=r"1 × 0\.5 GPUs are not free: there are 2"):
        start(0.5)
    second.close()
    assert seen(start(0.5, 2)) == ["GPU-5a", "GPU-5a"]


def test_what_a_pool_may_grow_to_is_kept_free(start: Callable[..., LocalPool]) -> None:
    growing = start(0.5, 1, most=3)
    assert seen(start(0.5)) == ["GPU-5a"]
    growing.resize(3)
    assert seen(growing) == ["3", "GPU-5a", "3"]
    growing.resize(9)
    assert len(growing.loads()) == 3, "there is no room for more"
    growing.resize(1)
    growing.resize(3)
    assert sorted(seen(growing)) == ["3", "3", "GPU-5a"]


def test_a_replacement_sees_what_the_dead_worker_saw(start: Callable[..., LocalPool]) -> None:
    pool = start(1, 2)
    for _ in range(2):
        victim, other = sorted(pool.loads(), key=lambda each: pool.submit("sees", worker=each).result()[1])
        with pytest.raises(WorkerDied):
            pool.submit("die", worker=victim).result()
        while len(pool.loads()) < 2 or victim in pool.loads():
            time.sleep(0.01)
        (new,) = set(pool.loads()) - {other}
        assert pool.submit("sees", worker=new).result()[1] == "3"


# ---------------------------------------------------------------- what the machine has


@pytest.fixture
def nvidia(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two GPUs, as the driver of NVIDIA lists them."""
    monkeypatch.setattr(machine, "_NVIDIA", tmp_path)
    for name in ("0000:01:00.0", "0000:02:00.0"):
        (tmp_path / name).mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("visible", "names"),
    [
        (None, ("0", "1")),
        ("", ()),
        ("-1", ()),
        ("1", ("1",)),
        (" 1 , 0", ("1", "0")),
        ("0,-1,1", ("0",)),
        ("0,7,1", ("0",)),
        ("1,1", ("1",)),
        ("NoDevFiles", ()),
        ("GPU-8932f937,GPU-11aa", ("GPU-8932f937", "GPU-11aa")),
        ("MIG-a,MIG-b,MIG-c", ("MIG-a", "MIG-b", "MIG-c")),
    ],
)
def test_devices_are_those_that_the_driver_may_use(
    nvidia: Path, monkeypatch: pytest.MonkeyPatch, visible: str | None, names: tuple[str, ...]
) -> None:
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert machine.devices() == names
    assert machine.capacity().gpus == len(names)


# ---------------------------------------------------------------- whole runs


def see(batch: dict[str, Any]) -> dict[str, Any]:
    return {"id": batch["id"], "seen": [os.environ.get("CUDA_VISIBLE_DEVICES", "all")] * len(batch["id"])}


def see_too(batch: dict[str, Any]) -> dict[str, Any]:
    return {"first": batch["seen"], **see(batch)}


def numbers() -> hr.Dataset:
    return hr.range(20_000).with_options(engine="local", progress=False, shard_rows=1024)


def test_a_plan_that_names_gpus_places_its_workers(nvidia: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-1,GPU-2,GPU-3")
    data = numbers().map_batches(see, num_cpus=1).map_batches(see_too, num_gpus=1, batch_size=64)
    assert "cores and 3 GPUs" in data.explain() and "3 workers with 1 thread, 1 GPU each" in data.explain()
    rows = data.take_all()
    assert {row["first"] for row in rows} == {""}, "who asked for no GPU sees none where others hold some"
    assert {row["seen"] for row in rows} <= {"GPU-1", "GPU-2", "GPU-3"}


def test_a_plan_that_names_no_gpus_sees_what_the_driver_sees(
    nvidia: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert {row["seen"] for row in numbers().map_batches(see).take_all()} == {"all"}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert {row["seen"] for row in numbers().map_batches(see).take_all()} == {"1"}


def test_the_inline_engine_sees_all(nvidia: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    data = (
        numbers().with_options(engine="inline").map_batches(see, num_cpus=1).map_batches(see_too, num_gpus=1)
    )
    (row,) = data.take(1)
    assert (row["first"], row["seen"]) == ("1,0", "1,0")
