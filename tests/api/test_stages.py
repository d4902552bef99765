"""Steps that need different workers: pools of their own, and the same rows in the same order as with one."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import headrace as hr
from crossed import sampled
from headrace.core.engine_ports import Capacity, Devices
from headrace.errors import (
    ArgumentError,
    BadReturn,
    PlanChanged,
    ResourcesUnavailable,
    StepError,
)
from headrace.plan.logical import Plan
from headrace.plan.physical import stages_of
from headrace.session import execution_plan

Batch = dict[str, np.ndarray[Any, Any]]
MACHINE = Capacity(8, 64 << 30, 2)


@pytest.fixture(autouse=True)
def local(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_ENGINE", "local")


class Prepare:
    def __call__(self, batch: Batch) -> Batch:
        ids = batch["id"]
        return {"id": ids, "x": np.stack([ids, ids * 2], 1), "maker": np.full(len(ids), os.getpid())}


class Sum:
    def __call__(self, batch: Batch) -> Any:
        return {"sum": batch["x"].sum(1), "user": np.full(len(batch["x"]), os.getpid())}


def prepared(rows: int = 5000, **options: Any) -> hr.Dataset:
    data = hr.range(rows).map_batches(Prepare, num_cpus=1, batch_size=64)
    return data.predict(Sum, inputs=["x"], concurrency=1, **options)


def rows_in(out: Path) -> pa.Table:
    return pa.concat_tables(pq.read_table(file) for file in sorted(out.glob("part-*")))


# ---------------------------------------------------------------- which steps share a pool


def made(data: hr.Dataset, machine: Capacity = MACHINE, **options: Any) -> list[tuple[list[str], int]]:
    given: dict[str, Any] = {"workers": None, "memory_limit": None} | options
    plan: Plan = data._plan
    return [
        ([step.verb for step in stage.steps], stage.workers) for stage in stages_of(plan, machine, **given)
    ]


def nothing(batch: Any) -> Any:
    return batch


@pytest.mark.parametrize(
    ("chain", "stages"),
    [
        (lambda d: d, [([], 8)]),
        (lambda d: d.map_batches(nothing).predict(nothing), [(["map_batches", "predict"], 8)]),
        (lambda d: d.map_batches(nothing).predict(nothing, num_gpus=1), [(["map_batches"], 8), (["predict"], 2)]),
        (lambda d: d.predict(nothing, num_gpus=1), [(["predict"], 2)]),
        (lambda d: d.select_columns("id").limit(3).predict(nothing, num_gpus=1),
         [(["select_columns", "limit", "predict"], 2)]),
        (lambda d: d.predict(nothing, num_gpus=1).map(nothing), [(["predict", "map"], 2)]),
        (lambda d: d.predict(nothing, num_gpus=0.5), [(["predict"], 4)]),
        (lambda d: d.map_batches(nothing).predict(nothing, concurrency=3), [(["map_batches", "predict"], 3)]),
        (lambda d: d.map_batches(nothing, num_cpus=1).predict(nothing, concurrency=3),
         [(["map_batches"], 8), (["predict"], 3)]),
        (lambda d: d.map_batches(nothing, num_cpus=2).map(nothing, num_cpus=2), [(["map_batches", "map"], 4)]),
        (lambda d: d.map_batches(nothing, concurrency=2).filter(nothing).map(nothing, concurrency=2),
         [(["map_batches", "filter", "map"], 2)]),
        (lambda d: d.predict(nothing, num_gpus=1, output="a").map(nothing)
                    .predict(nothing, num_gpus=1, concurrency=1),
         [(["predict"], 1), (["map"], 8), (["predict"], 1)]),
        (lambda d: d.map_batches(nothing, memory=1 << 30).map(nothing, memory=2 << 30),
         [(["map_batches"], 8), (["map"], 8)]),
        (lambda d: d.predict({"a": nothing, "b": {"model": nothing, "num_gpus": 1}}, inputs=["id"]),
         [(["predict"], 8), (["predict"], 2)]),
        (lambda d: d.map_batches(nothing, num_cpus=1).map(nothing).predict(nothing, num_gpus=2).map(nothing),
         [(["map_batches"], 8), (["map"], 8), (["predict", "map"], 1)]),
    ],
)  # fmt: skip
def test_which_steps_share_a_stage(chain: Any, stages: Any) -> None:
    assert made(chain(hr.range(10))) == stages


@pytest.mark.parametrize(
    ("chain", "message"),
    [
        (lambda d: d.predict(nothing, num_gpus=3), "needs 3 GPUs, and this machine has 2"),
        (lambda d: d.predict(nothing, num_gpus=1, concurrency=3), r"3 × 1 GPUs.*has 2"),
        (
            lambda d: d.predict(nothing, num_gpus=2, output="a").predict(nothing, num_gpus=1),
            r"1 × 2 \+ 1 × 1 GPUs",
        ),
        (
            lambda d: (
                d.predict(nothing, num_gpus=1, concurrency=2, output="a")
                .map(nothing)
                .predict(nothing, num_gpus=1, concurrency=(1, 2))
            ),
            r"2 × 1 \+ 1 × 1 GPUs.*has 2",
        ),
        (
            lambda d: d.predict(nothing, num_gpus=0.6, concurrency=3),
            r"3 × 0\.6 GPUs.*has 2; the part that a worker",
        ),
        (
            lambda d: d.map(nothing, memory=40 << 30).map(nothing, memory=30 << 30),
            r"each of the 2 stages.*70 GiB",
        ),
    ],
)
def test_what_can_never_run_is_refused_with_the_numbers(chain: Any, message: str) -> None:
    with pytest.raises(ResourcesUnavailable, match=message):
        made(chain(hr.range(10)))


def held(data: hr.Dataset, gpus: int) -> list[tuple[int, int]]:
    """Return how few and how many workers each stage with GPUs has."""
    stages = stages_of(data._plan, Capacity(8, 64 << 30, gpus), workers=None, memory_limit=None)
    return [(stage.least, stage.workers) for stage in stages if stage.num_gpus]


def holding(*needs: dict[str, Any]) -> hr.Dataset:
    """Return a dataset with models that hold GPUs, each in a stage of its own."""
    data = hr.range(10)
    for i, each in enumerate(needs):
        data = data.map_batches(nothing, num_cpus=1).predict(nothing, output=f"p{i}", **each)
    return data


@pytest.mark.parametrize(
    ("gpus", "needs", "sizes"),
    [
        (4, [{"num_gpus": 1}, {"num_gpus": 1}], [(2, 2), (2, 2)]),
        (5, [{"num_gpus": 1}, {"num_gpus": 1}], [(3, 3), (2, 2)]),
        (4, [{"num_gpus": 1, "concurrency": 1}, {"num_gpus": 1}], [(1, 1), (3, 3)]),
        (8, [{"num_gpus": 1, "concurrency": (1, 8)}, {"num_gpus": 1, "concurrency": (1, 7)}], [(1, 4), (1, 4)]),
        (8, [{"num_gpus": 1, "concurrency": (1, 2)}, {"num_gpus": 1, "concurrency": (1, 7)}], [(1, 2), (1, 6)]),
        (8, [{"num_gpus": 1, "concurrency": (5, 8)}, {"num_gpus": 1}], [(5, 5), (3, 3)]),
        (2, [{"num_gpus": 0.5}, {"num_gpus": 1}], [(2, 2), (1, 1)]),
        (8, [{"num_gpus": 2}, {"num_gpus": 1}], [(2, 2), (4, 4)]),
        (2, [{"num_gpus": 0.4}], [(4, 4)]),
    ],
)  # fmt: skip
def test_gpus_are_shared_among_the_stages_that_hold_some(
    gpus: int, needs: list[dict[str, Any]], sizes: list[tuple[int, int]]
) -> None:
    assert held(holding(*needs), gpus) == sizes


NEEDS = st.fixed_dictionaries(
    {"num_gpus": st.sampled_from([0.25, 0.3, 0.5, 0.6, 1, 1.5, 2])},
    optional={"concurrency": st.tuples(st.integers(1, 3), st.integers(3, 9))},
)


@given(st.integers(1, 8), st.lists(NEEDS, min_size=1, max_size=4))
def test_no_more_gpus_are_promised_than_there_are(gpus: int, needs: list[dict[str, Any]]) -> None:
    leasts = [each.get("concurrency", (1, 9))[0] for each in needs]
    try:
        sizes = held(holding(*needs), gpus)
    except ResourcesUnavailable:
        devices = Devices(gpus)
        assert any(
            devices.take(each["num_gpus"], least) is None for each, least in zip(needs, leasts, strict=True)
        )
        return
    devices = Devices(gpus)
    for each, least, (low, high) in zip(needs, leasts, sizes, strict=True):
        assert devices.take(each["num_gpus"], high) is not None, "the engine has a place for each"
        assert high >= low >= least
        assert "concurrency" not in each or (low == least and high <= each["concurrency"][1])
    if all("concurrency" not in each and each["num_gpus"] == 1 for each in needs):
        counts = [high for _, high in sizes]
        assert sum(counts) == gpus and max(counts) - min(counts) <= 1


def test_a_look_at_some_rows_needs_the_gpus_of_one_worker() -> None:
    data = hr.range(10).map_batches(nothing, concurrency=4).predict(nothing, num_gpus=1)
    (stage,) = stages_of(data._plan, MACHINE, workers=None, memory_limit=None, fused=True)
    assert stage.num_gpus == 1


def test_memory_bounds_the_pools() -> None:
    data = hr.range(10).map_batches(nothing, memory=10 << 30).predict(nothing, memory=20 << 30)
    assert [workers for _, workers in made(data)] == [4, 1]


def test_models_that_need_different_workers_say_what_they_read() -> None:
    with pytest.raises(ArgumentError, match="say which columns each reads"):
        made(hr.range(10).predict({"a": nothing, "b": {"model": nothing, "concurrency": 1, "num_gpus": 1}}))


def test_images_are_decoded_before_a_device(tmp_path: Path) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    data = hr.read_images(str(tmp_path)).predict(nothing, inputs=["image"], num_gpus=1)
    assert made(data) == [([], 8), (["predict"], 2)]


# ---------------------------------------------------------------- the same rows


def test_rows_come_in_order_from_workers_of_both_stages(tmp_path: Path) -> None:
    result = prepared().write_parquet(tmp_path / "out")
    table = rows_in(tmp_path / "out")
    assert table.column("id").to_pylist() == list(range(5000))
    assert table.column("sum").to_pylist() == [3 * i for i in range(5000)]
    makers, users = set(table.column("maker").to_pylist()), set(table.column("user").to_pylist())
    assert len(users) == 1 and not makers & users and os.getpid() not in makers | users
    assert result.rows == 5000
    assert result.ledger.read == 5000 and result.ledger.steps == ((5000, 5000), (5000, 5000))


@pytest.mark.parametrize(("shard_rows", "batch_size"), [(None, 3), (100, 7), (100_000, 500), (None, "auto")])
def test_it_is_what_one_stage_gives(tmp_path: Path, shard_rows: Any, batch_size: Any) -> None:
    table = pa.table({"id": range(900), "t": [None if i % 5 == 0 else f"t{i}" for i in range(900)]})
    pq.write_table(table, tmp_path / "in.parquet", row_group_size=130)

    def plan(**needs: Any) -> hr.Dataset:
        return (
            hr.read_parquet(tmp_path / "in.parquet")
            .filter(lambda row: row["id"] % 3 > 0, **needs)
            .flat_map(lambda row: [row] * (row["id"] % 4))
            .map_batches(lambda b: {**b, "double": b["id"] * 2}, batch_size=batch_size)
            .predict(lambda b: b["double"] + 1, inputs=["double"], batch_size=batch_size)
            .with_options(shard_rows=shard_rows)
        )

    alone = plan().with_options(engine="inline").to_arrow()
    parted = plan(num_cpus=1).map_batches(lambda b: b, concurrency=2, batch_size=11)
    assert parted.to_arrow().equals(alone)
    assert parted.count() == len(alone)
    ledgers = [
        data.write_parquet(tmp_path / f"out{i}").ledger for i, data in enumerate((plan(), plan(num_cpus=1)))
    ]
    assert ledgers[0] == ledgers[1]


@pytest.mark.parametrize("limit", sampled(500, 1, 999))
def test_what_was_made_ahead_of_a_limit_counts_nowhere(limit: int, tmp_path: Path) -> None:
    def ledger(makers: int, wait: float, name: str) -> Any:
        def slow(batch: Any) -> Any:
            time.sleep(wait)
            return batch

        data = hr.range(20_000).with_options(shard_rows=5_000)
        data = data.map_batches(lambda b: {"id": b["id"]}, concurrency=makers, batch_size=100)
        data = data.filter(lambda row: row["id"] % 2 == 0).map_batches(slow, concurrency=1, batch_size=10)
        return data.limit(limit).write_parquet(tmp_path / name).ledger

    first = ledger(2, 0.0, "first")
    assert first.written == limit
    assert first.steps[-1][1] == limit
    assert first.read < 20_000
    assert ledger(2, 0.002, "slow") == first
    assert ledger(3, 0.0, "more") == first
    assert ledger(1, 0.0, "alone") == ledger(1, 0.002, "slow alone")  # one stage


def test_tensors_and_nested_columns_cross(tmp_path: Path) -> None:
    table = pa.table(
        {
            "id": range(500),
            "words": [["a", None]] * 500,
            "kind": pa.array(["x", None] * 250).dictionary_encode(),
            "when": pa.array([0, None] * 250, pa.timestamp("ns", "Asia/Tokyo")),
        }
    )
    data = hr.from_arrow(table).map_batches(
        lambda t: t.append_column(
            "image", pa.FixedShapeTensorArray.from_numpy_ndarray(np.ones((len(t), 4, 4, 3), np.uint8))
        ),
        batch_format="pyarrow",
        num_cpus=1,
    )
    done = data.predict(lambda b: b["image"].sum((1, 2, 3)), inputs=["image"], concurrency=1).to_arrow()
    assert done.select(table.column_names).equals(table)
    assert done.schema.field("image").type == pa.fixed_shape_tensor(pa.uint8(), [4, 4, 3])
    assert set(done.column("prediction").to_pylist()) == {48}


def test_what_a_model_keeps_of_its_inputs_stays_as_it_was() -> None:
    """Slots are used again only when nobody looks at what is in them."""

    class Remembers:
        def __init__(self) -> None:
            self.seen: list[Any] = []

        def __call__(self, batch: Batch) -> Any:
            self.seen.append((batch["x"], int(batch["x"][0, 0])))
            assert all(kept[0, 0] == first for kept, first in self.seen)
            return batch["x"][:, 0]

    class Wide:
        def __call__(self, batch: Batch) -> Batch:
            return {"id": batch["id"], "x": np.repeat(batch["id"][:, None], 512, 1)}

    data = hr.range(20_000).map_batches(Wide, num_cpus=1, batch_size=500)
    done = data.predict(Remembers, inputs=["x"], concurrency=1, batch_size=700).drop_columns("x").to_arrow()
    assert done.column("prediction").to_pylist() == list(range(20_000))


# ---------------------------------------------------------------- errors and endings


def test_errors_of_every_stage_name_file_and_rows(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": range(3000)}), tmp_path / "in.parquet", row_group_size=500)

    def fails(batch: Batch) -> Any:
        if 2100 in batch["id"]:
            raise ValueError("not this one")
        return batch

    data = hr.read_parquet(tmp_path / "in.parquet").filter(lambda row: row["id"] % 2 == 0, num_cpus=1)
    with pytest.raises(
        StepError, match=r"map_batches\(.*fails\) raised ValueError: not this one.*in\.parquet, row"
    ):
        data.map_batches(fails, num_cpus=1, batch_size=10).predict(
            lambda b: b["id"], concurrency=1
        ).to_arrow()
    late = data.predict(lambda b: fails(b)["id"], inputs=["id"], concurrency=1, batch_size=10)
    with pytest.raises(StepError, match=r"raised ValueError: not this one.*in\.parquet, row 2100: id=2100"):
        late.to_arrow()
    short = data.predict(lambda b: b["id"][:1], inputs=["id"], concurrency=1, batch_size=10)
    with pytest.raises(BadReturn, match="returned 1 row for 10"):
        short.write_parquet(tmp_path / "out")


def test_a_finished_run_does_not_depend_on_its_stages(tmp_path: Path) -> None:
    def plan(**needs: Any) -> hr.Dataset:
        return hr.range(1000).map_batches(Prepare, **needs).predict(Sum, inputs=["x"])

    first = plan(num_cpus=1).write_parquet(tmp_path / "out")
    again = plan().write_parquet(tmp_path / "out")
    assert again.run == first.run and again.resumed
    with pytest.raises(PlanChanged):
        plan(num_cpus=1).drop_columns("x").write_parquet(tmp_path / "out")


def test_a_run_goes_on_with_other_stages(tmp_path: Path) -> None:
    flag = tmp_path / "flag"

    def fails_at_first(batch: Batch) -> Any:
        if batch["id"][-1] > 2500 and not flag.exists():
            raise RuntimeError("half way")
        return batch["id"] * 2

    def plan(first: dict[str, Any], second: dict[str, Any]) -> hr.Dataset:
        data = hr.range(5000).map_batches(Prepare, batch_size=50, **first)
        return data.predict(
            {"a": fails_at_first, "b": {"model": Sum, **second}}, inputs=["id", "x"]
        ).with_options(shard_rows=500)

    with pytest.raises(StepError, match="half way"):
        plan({"num_cpus": 1}, {}).write_parquet(tmp_path / "out")
    flag.touch()
    result = plan({}, {"concurrency": 1}).write_parquet(tmp_path / "out")
    assert result.resumed and result.rows == 5000
    assert result.ledger.steps == ((5000, 5000), (5000, 5000))
    assert rows_in(tmp_path / "out").column("a").to_pylist() == [2 * i for i in range(5000)]


@pytest.mark.parametrize("stage", ["maker", "user"])
def test_a_worker_that_dies_loses_nothing(tmp_path: Path, stage: str) -> None:
    flag = tmp_path / "flag"

    def die_once(batch: Batch) -> None:
        if batch["id"][-1] > 2000 and not flag.exists():
            flag.touch()
            os.kill(os.getpid(), 9)

    def make(batch: Batch) -> Batch:
        if stage == "maker":
            die_once(batch)
        return {"id": batch["id"], "x": np.repeat(batch["id"][:, None], 100, 1)}

    def use(batch: Batch) -> Any:
        if stage == "user":
            die_once(batch)
        return batch["x"].sum(1)

    data = (
        hr.range(5000)
        .map_batches(make, num_cpus=1, batch_size=100)
        .predict(use, concurrency=1, batch_size=150)
    )
    result = data.drop_columns("x").write_parquet(tmp_path / "out")
    assert flag.exists()
    assert (result.rows, result.ledger.read) == (5000, 5000)
    table = rows_in(tmp_path / "out")
    assert table.column("id").to_pylist() == list(range(5000))
    assert table.column("prediction").to_pylist() == [100 * i for i in range(5000)]


# ---------------------------------------------------------------- memory, and pools that grow


def test_blocks_in_flight_stay_within_the_budget(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A step that makes thirty times as much of its input is held back by a slow one behind it."""
    from headrace.driver import block_tasks

    made: list[block_tasks.BlockTasks] = []

    class Watched(block_tasks.BlockTasks):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            made.append(self)

    monkeypatch.setattr(block_tasks, "BlockTasks", Watched)

    def expand(batch: Batch) -> Batch:
        return {"id": batch["id"], "x": np.ones((len(batch["id"]), 4096), np.float64)}

    def slow(batch: Batch) -> Any:
        return np.sort(np.sin(batch["x"]), axis=1)[:, 0]

    budget = 32 << 20  # all blocks together would take 98 MB
    monkeypatch.setattr(execution_plan, "block_budget", lambda options, memory: budget)
    data = hr.range(3_000).map_batches(expand, num_cpus=1, batch_size=128)
    data = data.predict(slow, inputs=["x"], concurrency=1, batch_size=128)
    data.drop_columns("x").with_options(shard_rows=1_000).write_parquet(tmp_path / "out")
    (watched,) = made
    assert watched.peak <= budget + 3 * (9 << 20), "one block for each open shard at most beside the budget"
    assert watched.held == 0, "every block is dropped"


def test_a_pool_with_bounds_grows_with_its_work(tmp_path: Path) -> None:
    def works_until_it_has_company(batch: Batch) -> Batch:
        (company / str(os.getpid())).touch()
        while (
            batch["id"][0] >= 5_000 and len(list(company.iterdir())) < 2
        ):  # the first rows settle the schema
            np.sort(np.random.default_rng(0).random(100_000))
        return batch

    data = hr.range(25_000).with_options(shard_rows=1024)
    data = data.map_batches(works_until_it_has_company, concurrency=(1, 3), batch_size=512)
    for name, plan in {"alone": data, "before": data.predict(plus_one, inputs=["id"], concurrency=1)}.items():
        company = tmp_path / f"{name}-workers"
        company.mkdir()
        plan.write_parquet(tmp_path / name)
        assert rows_in(tmp_path / name).column("id").to_pylist() == list(range(25_000))
        assert 2 <= len(list(company.iterdir())) <= 3


def plus_one(batch: Batch) -> Any:
    return batch["id"] + 1


def test_the_summary_has_a_line_for_each_stage(tmp_path: Path) -> None:
    data = hr.range(2000).map_batches(nothing, num_cpus=1).map_batches(nothing, concurrency=1)
    lines = data.with_options(workers=1).write_parquet(tmp_path / "out").summary.splitlines()
    first, second = (line for line in lines if line.startswith("stage "))
    assert first.startswith("stage 1, map_batches(nothing): 1 worker, ")
    assert second.startswith("stage 2, map_batches(nothing): 1 worker, ")


@pytest.mark.local
@pytest.mark.parametrize("verb", ["map_batches", "map", "flat_map", "filter", "predict", "with_column"])
def test_what_a_cluster_is_told_has_no_effect_on_one_machine(verb: str) -> None:
    """The same program runs on a laptop and on a cluster."""
    functions: dict[str, Any] = {
        "map_batches": lambda batch: batch,
        "map": lambda row: row,
        "flat_map": lambda row: [row],
        "filter": lambda row: True,
        "predict": lambda batch: batch["id"],
        "with_column": lambda batch: batch["id"],
    }
    args = ("twice", functions[verb]) if verb == "with_column" else (functions[verb],)
    told = {"resources": {"disk": 1}, "label_selector": {"zone": "a"}}
    data = getattr(hr.range(3).map_batches(lambda batch: batch), verb)(*args, ray_remote_args=told)
    assert data.count() == 3
    text = data.explain()
    assert "ray_remote_args= has no effect here" in text
    assert "stage 2" not in text
    with pytest.raises(ArgumentError, match="num_cpus"):
        getattr(hr.range(3), verb)(*args, ray_remote_args={"num_cpus": 1})
