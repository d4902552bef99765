"""A numeric batch size is kept in every stage, and what a step says of its workers holds for little data, too."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import headrace as hr
from crossed import crossed, sampled
from headrace.engines.local.machine import private_memory
from headrace.sources.range import RangeSource

Batch = dict[str, np.ndarray[Any, Any]]


@pytest.fixture(autouse=True)
def local(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_ENGINE", "local")


def same(batch: Any) -> Any:
    return batch


def first_and_length(batch: Batch) -> Batch:
    """Say which batch it was."""
    (column, *_) = batch.values()
    return {**batch, "length": np.full(len(column), len(column)), "place": np.arange(len(column))}


FEW = [{"concurrency": 1}, {"concurrency": 2}, {"concurrency": 3}]


def staged(data: hr.Dataset, size: int, at: int, *, parted: bool) -> hr.Dataset:
    """Have batches of ``size`` in stage ``at`` of three."""
    for i, needs in enumerate(FEW):
        needs = needs if parted else {}
        if i == at:
            data = data.map_batches(first_and_length, batch_size=size, **needs)
        else:
            data = data.map_batches(same, **needs)
    return data.with_options() if parted else data.with_options(engine="inline")


@pytest.mark.parametrize(("at", "size"), crossed([0, 1, 2], [64, 1, 1000]))
def test_batches_are_cut_as_in_one_stage_across_splits_and_blocks(at: int, size: int) -> None:
    data = hr.Dataset.from_source(RangeSource(2_400, rows_per_split=130)).with_options(shard_rows=1000)
    assert staged(data, size, at, parted=True).to_arrow() == staged(data, size, at, parted=False).to_arrow()


@pytest.mark.parametrize("at", sampled(1, 2))
def test_batches_are_cut_as_in_one_stage_after_rows_have_gone_and_come(at: int) -> None:
    data = hr.Dataset.from_source(RangeSource(4_500, rows_per_split=130)).with_options(shard_rows=2000)

    def plan(needs: dict[str, Any]) -> hr.Dataset:
        changed = data.filter(lambda row: row["id"] % 7 > 3, **needs)
        return changed.flat_map(lambda row: [row] * (row["id"] % 3))

    expected = staged(plan({}), 100, at, parted=False).to_arrow()
    assert staged(plan({"num_cpus": 1}), 100, at, parted=True).to_arrow() == expected


@pytest.mark.parametrize("at", sampled(1, 0, 2))
def test_batches_of_a_source_that_does_not_know_its_rows(at: int, tmp_path: Path) -> None:
    lines = "\n".join(f"line {i}" + "." * (i % 50) for i in range(20_000))
    (tmp_path / "a.txt").write_text(lines)
    (tmp_path / "b.txt").write_text(lines)
    data = hr.read_text(str(tmp_path)).with_options(shard_rows=8000)
    table = staged(data, 700, at, parted=True).to_arrow()
    assert table == staged(data, 700, at, parted=False).to_arrow()
    assert table.column("text").to_pylist() == 2 * lines.split("\n")


@pytest.mark.parametrize("at", sampled(1, 0, 2))
def test_files_of_few_rows_come_together(at: int, tmp_path: Path) -> None:
    for i in range(150):
        Image.new("RGB", (8, 8), (i, 0, 0)).save(tmp_path / f"{i:03}.png")
    data = hr.read_images(str(tmp_path), size=(64, 64))
    table = staged(data, 128, at, parted=True).to_arrow()
    assert Counter(table.column("length").to_pylist()) == {128: 128, 22: 22}


@pytest.mark.parametrize("last", [False, True])
def test_batches_bigger_than_a_block(last: bool) -> None:
    def wide(batch: Batch) -> Batch:
        return {"id": batch["id"], "x": np.zeros((len(batch["id"]), 3, 224, 224), np.float32)}

    data = hr.range(400).map_batches(wide, batch_size=16, num_cpus=1)
    data = data.map_batches(lambda b: {"n": np.full(len(b["x"]), len(b["x"]))}, batch_size=64, concurrency=1)
    data = data if last else data.map_batches(same, concurrency=2)
    limit = private_memory(os.getpid()) + (2 << 30)  # that no batch shrinks: this is about blocks
    table = data.with_options(shard_rows=400, memory_limit=limit).to_arrow()
    assert Counter(table.column("n").to_pylist()) == {64: 384, 16: 16}


@pytest.mark.parametrize(("limit", "at"), crossed([1, 250, 1_700], [0, 1, 2, 3]))
def test_limits_and_ledgers_are_those_of_one_stage(limit: int, at: int, tmp_path: Path) -> None:
    def plan(*, parted: bool) -> hr.Dataset:
        data = hr.Dataset.from_source(RangeSource(3_000, rows_per_split=130)).with_options(shard_rows=1000)
        for i, size in enumerate((100, 70, 90)):
            data = data.limit(limit) if i == at else data
            data = data.map_batches(same, batch_size=size, **(FEW[i] if parted else {}))
        return data.limit(limit) if at == 3 else data

    first = plan(parted=True).write_parquet(tmp_path / "first")
    assert plan(parted=True).write_parquet(tmp_path / "again").ledger == first.ledger
    table = pa.concat_tables(map(pq.read_table, sorted((tmp_path / "first").glob("part-*"))))
    assert table.column("id").to_pylist() == list(range(limit))
    assert first.ledger.written == limit


@pytest.mark.parametrize("at", sampled(1, 0, 2))
def test_rows_that_fail_in_shared_blocks_are_told_once(at: int, tmp_path: Path) -> None:
    def fails(batch: Batch) -> Batch:
        if (batch["id"] % 97 == 0).any():
            raise ValueError("no")
        return batch

    def plan(*, parted: bool) -> hr.Dataset:
        data = hr.Dataset.from_source(RangeSource(5_000, rows_per_split=130)).with_options(
            shard_rows=2000, on_error="reject"
        )
        for i, size in enumerate((100, 70, 90)):
            needs = FEW[i] if parted else {}
            data = data.map_batches(fails if i == at else same, batch_size=size, **needs)
        return data

    ledgers = [plan(parted=parted).write_parquet(tmp_path / str(parted)).ledger for parted in (True, False)]
    assert ledgers[0] == ledgers[1]
    assert ledgers[0].rejected == len(range(0, 5_000, 97))


# ---------------------------------------------------------------- little data, many workers


@pytest.mark.parametrize("at", [0, *sampled(None, 1, 2)])
def test_declared_workers_share_a_few_batches(at: int | None, tmp_path: Path) -> None:
    def together(batch: Batch) -> Batch:
        """Wait until all four are at it."""
        (tmp_path / str(os.getpid())).touch()
        while len(list(tmp_path.iterdir())) < 4:
            time.sleep(0.01)
        return {**batch, "pid": np.full(len(batch["id"]), os.getpid())}

    data = hr.from_items([{"id": i} for i in range(60)])
    for i in range(3 if at is not None else 0):
        chosen = i == at
        data = data.map_batches(
            together if chosen else same, concurrency=4 if chosen else 1, batch_size=5 if chosen else "auto"
        )
    if at is None:
        data = data.map_batches(together, concurrency=4, batch_size=5)
    pids = set(data.to_arrow().column("pid").to_pylist())
    assert len(pids) == 4 and os.getpid() not in pids


@pytest.mark.parametrize(
    "needs", [{"concurrency": 1}, {"num_cpus": 1}, {"compute": hr.ActorPoolStrategy(size=1)}]
)
def test_declared_steps_never_run_in_the_drivers_process(needs: dict[str, Any]) -> None:
    data = hr.range(10).map_batches(lambda b: {"pid": np.full(len(b["id"]), os.getpid())}, **needs)
    assert os.getpid() not in data.to_arrow().column("pid").to_pylist()
    alone = data.with_options(engine="inline").to_arrow()
    assert set(alone.column("pid").to_pylist()) == {os.getpid()}


def test_explain_says_how_many_workers_have_work() -> None:
    few = hr.range(10).map_batches(same, concurrency=4, batch_size=20)
    assert "4 workers with 1 thread each, 1 of them has work: 1 shard, on" in few.explain()
    enough = hr.range(1000).map_batches(same, concurrency=4, batch_size=20).explain()
    assert "4 workers" in enough and "of them" not in enough
    staged = few.map_batches(same, concurrency=3, batch_size=5).explain().splitlines()
    assert staged[7].strip().startswith("4 workers") and staged[7].endswith("1 of them has work: 1 task")
    assert "3 workers" in staged[10] and staged[10].endswith("1 of them has work: 1 shard")


def test_the_only_row_group_of_a_file_is_work_for_all_workers_if_a_model_reads_it(tmp_path: Path) -> None:
    class Doubled:
        def __call__(self, batch: Batch) -> Batch:
            if (batch["id"] == 580).any():
                raise ValueError("no")
            shape = len(batch["id"])
            return {"id": batch["id"], "twice": batch["id"] * 2, "length": np.full(shape, shape)}

    pq.write_table(pa.table({"id": range(600)}), tmp_path / "in.parquet")
    data = hr.read_parquet(tmp_path / "in.parquet").map_batches(Doubled, batch_size=100)
    data = data.with_options(workers=2, on_error="reject")
    result = data.write_parquet(tmp_path / "out")
    parts = [pq.read_table(part) for part in sorted((tmp_path / "out").glob("part-*"))]
    table = pa.concat_tables(parts)
    assert [len(part) for part in parts] == [300, 299]
    assert table.column("id").to_pylist() == [i for i in range(600) if i != 580]
    assert table.column("twice").to_pylist() == [2 * i for i in range(600) if i != 580]
    assert set(table.column("length").to_pylist()[:500]) == {100}
    (bad,) = hr.read_rejected(tmp_path / "out").take_all()
    assert bad["id"] == bad["_row"] == 580
    assert result.ledger.read == 600 and result.ledger.written == 599
    assert hr.verify(tmp_path / "out").state == "good"


@pytest.mark.parametrize(
    ("rows", "needs", "shards"),
    [(60, {"concurrency": 4}, 4), (60, {"concurrency": 2, "batch_size": "auto"}, 1), (60, {}, 1)],
)
def test_what_says_how_many_workers_it_wants_gets_shards_for_them(
    rows: int, needs: dict[str, Any], shards: int, tmp_path: Path
) -> None:
    pq.write_table(pa.table({"id": range(rows)}), tmp_path / "in.parquet")
    data = hr.read_parquet(tmp_path / "in.parquet").map_batches(same, **{"batch_size": 10, **needs})
    assert f"shards   {shards}\n" in data.explain()
