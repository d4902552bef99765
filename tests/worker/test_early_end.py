"""A part is closed before the end of its shard when that takes long: little is lost, and nothing else changes."""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import headrace as hr
from crossed import few
from headrace.errors import ArgumentError, StepError
from headrace.sources.range import RangeSource
from headrace.worker.stage_worker import StageWorker

Batch = dict[str, np.ndarray[Any, Any]]
EVERY = 30.0


class Clock:
    """Stands still, but for what a model takes."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Killed(BaseException):
    """The process ends here."""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("headrace.worker.stage_worker.StageWorker", partial(StageWorker, clock=clock))
    return clock


class Model:
    """Takes its time, notes what it was given, and may be the last thing that the process does."""

    def __init__(self, clock: Clock, seconds: Callable[[int], float], dies: float = float("inf")) -> None:
        self.clock, self.seconds, self.dies = clock, seconds, dies
        self.lengths: list[int] = []
        self.took: dict[int, float] = {}
        self.longest = 0.0

    def __reduce__(self) -> Any:  # what it notes is no part of the job
        return Model, ()

    def __copy__(self) -> Model:
        return self

    def batch(self, batch: Batch) -> Batch:
        ids = batch["id"].tolist()
        self.lengths.append(len(ids))
        each = {int(row): self.seconds(int(row)) for row in ids}
        self.clock.now += sum(each.values())
        self.longest = max(self.longest, sum(each.values()))
        if self.clock.now >= self.dies:
            raise Killed
        self.took |= each
        return {"id": batch["id"], "double": batch["id"] * 2}

    def row(self, row: dict[str, Any]) -> dict[str, Any]:
        return {name: int(values[0]) for name, values in self.batch({"id": np.array([row["id"]])}).items()}


def parts(output: Path) -> list[Path]:
    return sorted(path for path in output.iterdir() if path.name.startswith("part-"))


def ids_in(output: Path) -> list[int]:
    return [row for path in parts(output) for row in pq.read_table(path)["id"].to_pylist()]


def job(rows: int, per_split: int = 100, **options: Any) -> hr.Dataset:
    data = hr.Dataset.from_source(RangeSource(rows, rows_per_split=per_split))
    return data.with_options(engine="inline", progress=False, **{"shard_rows": rows, **options})


def steps(data: hr.Dataset, model: Model, how: Any) -> hr.Dataset:
    if how == "map":
        return data.map(model.row, version="1")
    return data.map_batches(model.batch, batch_size=how, version="1")


@pytest.mark.parametrize(
    ("how", "per_row"),
    [("map", 0.05), ("map", 60.0), ("auto", 0.05), ("auto", 1.0), (8, 0.05), (8, 1.0), (300, 1.0)],
)
def test_a_kill_costs_half_a_minute_of_work_at_most(
    tmp_path: Path, clock: Clock, how: Any, per_row: float
) -> None:
    rows = 1_500 if per_row < 60 else 50
    chance = random.Random(f"{how} {per_row}")
    dies = clock.now + chance.uniform(0.2, 0.9) * rows * per_row
    model = Model(clock, lambda row: per_row, dies)
    data = job(rows)
    with pytest.raises(StepError, match="Killed"):
        steps(data, model, how).write_parquet(tmp_path / "out")
    kept = set(ids_in(tmp_path / "out")) if (tmp_path / "out").exists() else set()
    lost = sum(seconds for row, seconds in model.took.items() if row not in kept)
    assert lost <= EVERY + EVERY / 10 + model.longest
    well = Model(clock, lambda row: per_row)
    result = steps(data, well, how).write_parquet(tmp_path / "out")
    assert result.rows == rows and ids_in(tmp_path / "out") == list(range(rows))
    assert not kept & set(well.took)


@settings(max_examples=few(4), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10**6), how=st.sampled_from(["map", "auto", 1, 8]))
def test_a_model_whose_speed_changes_all_the_time(clock: Clock, seed: int, how: Any) -> None:
    chance = random.Random(seed)
    speeds = [chance.choice([0.01, 0.1, 1.0]) for _ in range(10)]
    model = Model(clock, lambda row: speeds[row // 100 % 10], clock.now + chance.uniform(10, 300))
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "out"
        with pytest.raises(StepError, match="Killed"):
            steps(job(1_000_000, 1000), model, how).write_parquet(output)
        kept = set(ids_in(output)) if output.exists() else set()
        lost = sum(seconds for row, seconds in model.took.items() if row not in kept)
        assert (
            lost <= EVERY + EVERY / 10 + model.longest + 100
        )  # a hundred rows may have come to be slow ones


def test_a_batch_of_a_minute_is_committed_each(tmp_path: Path, clock: Clock) -> None:
    model = Model(clock, lambda row: 60 / 8)
    result = steps(job(80), model, 8).write_parquet(tmp_path / "out")
    assert result.files == 10 and set(model.lengths) == {8}
    names = [path.name.rpartition("-")[0] for path in parts(tmp_path / "out")]
    assert names[:3] == ["part-00000", "part-00000.001", "part-00000.002"]


@pytest.mark.parametrize("how", ["map", "auto", 8])
def test_a_quick_job_has_a_part_for_each_shard(tmp_path: Path, clock: Clock, how: Any) -> None:
    model = Model(clock, lambda row: 0.0002)
    assert steps(job(20_000, 1000, shard_rows=5_000), model, how).write_parquet(tmp_path / "a").files == 4
    slow = Model(clock, lambda row: 1.0)
    whole = steps(job(400, commit_every=None), slow, how).write_parquet(tmp_path / "b")
    assert whole.files == 1


def test_the_last_moments_of_a_shard_are_not_parted(tmp_path: Path, clock: Clock) -> None:
    model = Model(clock, lambda row: 0.1)
    assert steps(job(320), model, 8).write_parquet(tmp_path / "out").files == 1


@settings(max_examples=few(4), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_batches_are_cut_as_if_nothing_had_happened(clock: Clock, data: st.DataObject) -> None:
    first, second = data.draw(st.sampled_from([(8, 8), (6, 4), (10, 25), (7, 1)]))
    keep = data.draw(st.sampled_from([None, 2, 3]))
    before = data.draw(st.booleans())
    per_split, per_row = data.draw(st.integers(5, 200)), data.draw(st.sampled_from([0.2, 2.0, 40.0]))

    def lengths(every: float | None) -> tuple[list[int], list[int], int, int]:
        one, two = Model(clock, lambda row: per_row), Model(clock, lambda row: 0.1)
        rows = job(600, per_split, commit_every=every)
        if before:
            rows = rows.map_batches(one.batch, batch_size=first, version="1")
        if keep:
            rows = rows.filter(lambda row: row["id"] % keep == 0, version="1")
        rows = rows.map_batches(two.batch, batch_size=second, version="1")
        with tempfile.TemporaryDirectory() as folder:
            result = rows.write_parquet(Path(folder) / "out")
            assert ids_in(Path(folder) / "out") == list(range(0, 600, keep or 1))
            assert result.ledger.read == 600
            return one.lengths, two.lengths, result.files, result.rows

    whole, parted = lengths(None), lengths(EVERY)
    assert whole[2] == 1 and (parted[2] > 2 or not before)
    assert parted[0] == whole[0]
    if (
        not keep or not before or first == 7
    ):  # else both rarely end at once, and a part is not put off for that
        assert parted[1] == whole[1]


def broken(folder: Path) -> str:
    """Text of which some records make no sense."""
    lines = [f"{n}," if n % 11 == 5 else f"{n},{n}" for n in range(400)]
    for number in range(2):
        half = lines[number * 200 : (number + 1) * 200]
        (folder / f"{number}.csv").write_text("id,x\n" + "\n".join(half) + "\n")
    return str(folder)


@pytest.mark.parametrize("every", [1e-9, EVERY])
def test_the_ledger_rejected_rows_and_metrics_are_those_of_whole_shards(
    tmp_path: Path, clock: Clock, every: float
) -> None:
    (tmp_path / "in").mkdir()
    source = broken(tmp_path / "in")

    def picky(batch: Batch) -> Batch:
        clock.now += 0.7 * len(batch["id"])
        if (batch["id"] % 50 == 7).any():
            raise ValueError("not this one")
        return {**batch, "half": batch["id"] / 2}

    def twice(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        return iter([row] * (row["id"] % 3))

    def run(name: str, commit_every: float | None) -> Any:
        data = hr.read_csv(source)
        data = data.map_batches(picky, batch_size=6, version="1").flat_map(twice)
        data = data.accumulate(mean=hr.Mean("half"), rows=hr.Count())
        options: dict[str, Any] = {"on_error": "reject", "shard_rows": 400, "commit_every": commit_every}
        data = data.with_options(engine="inline", progress=False, **options)
        return data.write_parquet(tmp_path / name)

    whole, cut = run("whole", None), run("cut", every)
    assert cut.files > whole.files
    assert cut.ledger == whole.ledger
    assert dict(cut.metrics) == dict(whole.metrics)
    assert ids_in(tmp_path / "cut") == ids_in(tmp_path / "whole")
    rejected = [
        hr.read_rejected(tmp_path / name).to_arrow().select(["id"]).to_pydict() for name in ("cut", "whole")
    ]
    assert rejected[0] == rejected[1]


def test_a_part_that_is_gone_is_made_anew_in_its_place(tmp_path: Path, clock: Clock) -> None:
    output = tmp_path / "out"
    steps(job(300), Model(clock, lambda row: 1.0), 4).write_parquet(output)
    before = parts(output)
    assert len(before) > 6
    for path in (before[0], before[3], before[-1]):
        path.unlink()
    again = steps(job(300), Model(clock, lambda row: 5.0), 4).write_parquet(output)
    assert again.rows == 300 and again.files > len(before)
    assert ids_in(output) == list(range(300))


def test_a_plan_with_a_limit_has_whole_shards(tmp_path: Path, clock: Clock) -> None:
    model = Model(clock, lambda row: 1.0)
    result = steps(job(300), model, 8).limit(100).write_parquet(tmp_path / "out")
    assert (result.rows, result.files) == (100, 1)


def test_parted_shards_are_no_sign_of_little_memory(tmp_path: Path, clock: Clock) -> None:
    model = Model(clock, lambda row: 1.0)
    steps(job(200), model, 8).write_parquet(tmp_path / "out")
    (text,) = (path.read_text() for path in (tmp_path / "out/_headrace").glob("*/events.jsonl"))
    finished = [line for line in map(json.loads, text.splitlines()) if "divided" in line]
    assert finished and not any(line["divided"] for line in finished)


def stage_one(batch: Batch) -> Batch:
    return {"id": batch["id"], "length": np.full(len(batch["id"]), len(batch["id"]))}


def stage_two(batch: Batch) -> Batch:
    return {**batch, "second": np.full(len(batch["id"]), len(batch["id"]))}


def odd(row: dict[str, Any]) -> bool:
    return bool(row["id"] % 2)


@pytest.mark.parametrize("thins", [False, True])
def test_stages(tmp_path: Path, thins: bool) -> None:
    def run(name: str, every: float | None) -> Any:
        data = hr.Dataset.from_source(RangeSource(1_200, rows_per_split=130)).map_batches(
            stage_one, batch_size=10, num_cpus=1
        )
        data = data.filter(odd, num_cpus=1) if thins else data
        data = data.map_batches(stage_two, batch_size=4, concurrency=1).accumulate(mean=hr.Mean("id"))
        data = data.with_options(engine="local", progress=False, shard_rows=500, commit_every=every)
        return data.write_parquet(tmp_path / name)

    whole, cut = run("whole", None), run("cut", 1e-9)
    assert cut.files == whole.files if thins else cut.files > 20
    assert cut.ledger == whole.ledger and dict(cut.metrics) == dict(whole.metrics)
    tables: Sequence[Any] = [
        [pq.read_table(path).to_pylist() for path in parts(tmp_path / name)] for name in ("cut", "whole")
    ]
    assert [row for part in tables[0] for row in part] == [row for part in tables[1] for row in part]


@pytest.mark.parametrize("value", [0, -1, "soon", True])
def test_what_commit_every_takes(value: Any) -> None:
    with pytest.raises(ArgumentError, match="commit_every"):
        hr.range(3).with_options(commit_every=value)
