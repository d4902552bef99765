"""Runs whose workers take more than they may: nothing is lost, nothing comes twice, and what cannot fit says so."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from faults import job as jobs
from faults.invariants import assert_unlocked, rows_of
from headrace.engines.local.machine import private_memory
from headrace.errors import OutOfMemory
from headrace.output import journal, journal_state

pytestmark = pytest.mark.usefixtures("no_template")  # workers have what a run imports, and no more

MIB = 1 << 20
ROOM = 500 * MIB  # for workers
BATCH = 50
ROWS = 40 * BATCH


class Leaky:
    """Keeps more with each batch."""

    def __init__(self, mib: int = 30, base: int = 0, late: bool = False) -> None:
        self.mib = mib
        self.late = late
        self.kept = [np.ones(base * MIB, np.uint8)]

    def __call__(self, batch: dict[str, Any]) -> Any:
        if not self.late or batch["id"][0] >= ROWS:
            self.kept.append(np.ones(self.mib * MIB, np.uint8))
        time.sleep(0.01)
        return batch["id"] * 2.0


class LeakyStep(Leaky):
    """The same as a step."""

    def __call__(self, batch: dict[str, Any]) -> Any:
        super().__call__(batch)
        return batch


def source(folder: Path, files: int = 1) -> Path:
    """Write files of one row group each."""
    folder.mkdir(exist_ok=True)
    for i in range(files):
        ids = np.arange(i * ROWS, (i + 1) * ROWS)
        pq.write_table(pa.table({"id": ids}), folder / f"{i}.parquet", row_group_size=ROWS)
    return folder


def limit() -> int:
    """What the driver has, which here may be many tests' worth, and what its workers may have."""
    return private_memory(os.getpid()) + ROOM


def data(folder: Path, **options: Any) -> hr.Dataset:
    given = {"progress": False, "workers": 1, "shard_rows": ROWS, "memory_limit": limit(), **options}
    return hr.read_parquet(folder).with_options(**given)


def leaking(folder: Path, mib: int = 30, late: bool = False, **options: Any) -> hr.Dataset:
    return data(folder, **options).predict(
        Leaky, inputs=["id"], output="y", fn_constructor_args=[mib, 0, late], batch_size=BATCH, version="1"
    )


def check(output: Path, rows: int) -> None:
    """The rows are there, in order, and no file is left that nobody knows of."""
    assert rows_of(output) == [{"id": i, "y": 2.0 * i} for i in range(rows)]
    success = json.loads((output / "_SUCCESS").read_text())
    assert success["rows"] == rows
    assert_unlocked(output)


def divisions(output: Path) -> int:
    run = (output / "_headrace" / "current").read_text().strip()
    path = output / "_headrace" / run / "journal"
    return sum(isinstance(note, journal_state.Divided) for note in journal.read(path).notes())


@pytest.mark.parametrize(("files", "workers"), [(1, 1), pytest.param(2, 2, marks=pytest.mark.soak)])
def test_a_model_that_leaks_comes_to_its_end(tmp_path: Path, files: int, workers: int) -> None:
    inputs = source(tmp_path / "in", files)
    result = leaking(inputs, workers=workers).write_parquet(tmp_path / "out")
    check(tmp_path / "out", files * ROWS)
    assert (result.ledger.read, result.rows) == (files * ROWS, files * ROWS)
    assert divisions(tmp_path / "out") >= 1
    assert "retired" in result.summary and "divided to stay within memory_limit" in result.summary
    assert "more did not fit" not in result.summary  # a worker that has just begun may have whole batches
    again = leaking(inputs, workers=workers).write_parquet(tmp_path / "out")
    assert again.resumed and again.rows == result.rows


@pytest.mark.parametrize("leak", [pytest.param("early", marks=pytest.mark.soak), "late"])
def test_a_stage_that_leaks_comes_to_its_end(tmp_path: Path, leak: str) -> None:
    inputs = source(tmp_path / "in")
    early, late = (20, 0) if leak == "early" else (0, 20)
    rows = data(inputs).map_batches(LeakyStep, fn_constructor_args=[early], batch_size=BATCH, concurrency=1)
    rows = rows.predict(
        Leaky, inputs=["id"], output="y", fn_constructor_args=[late], batch_size=BATCH, num_cpus=1
    )
    rows.write_parquet(tmp_path / "out")
    check(tmp_path / "out", ROWS)
    assert divisions(tmp_path / "out") >= 1


class Picky(Leaky):
    """Leaks, and cannot do some rows."""

    def __call__(self, batch: dict[str, Any]) -> Any:
        if (batch["id"] % 701 == 7).any():
            raise ValueError("not this one")
        return super().__call__(batch)


def test_rows_that_fail_in_a_part_are_told_by_their_place_in_the_file(tmp_path: Path) -> None:
    inputs = source(tmp_path / "in")
    rows = data(inputs, on_error="reject").predict(
        Picky, inputs=["id"], output="y", fn_constructor_args=[20], batch_size=BATCH
    )
    result = rows.write_parquet(tmp_path / "out")
    bad = [i for i in range(ROWS) if i % 701 == 7]
    assert rows_of(tmp_path / "out") == [{"id": i, "y": 2.0 * i} for i in range(ROWS) if i not in bad]
    assert (result.ledger.read, result.rejected) == (ROWS, len(bad))
    rejected = hr.read_rejected(tmp_path / "out").to_arrow()
    assert rejected.column("id").to_pylist() == rejected.column("_row").to_pylist() == bad
    assert divisions(tmp_path / "out") >= 1


def test_rows_that_nobody_has_counted_are_divided(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("id\n" + "".join(f"{i}\n" for i in range(ROWS)))
    rows = hr.read_csv(tmp_path / "in.csv").with_options(progress=False, workers=1, memory_limit=limit())
    rows = rows.predict(Leaky, inputs=["id"], output="y", batch_size=BATCH)
    rows.write_parquet(tmp_path / "out")
    check(tmp_path / "out", ROWS)
    assert divisions(tmp_path / "out") >= 1


def test_a_driver_that_is_killed_in_the_midst_of_it_goes_on(tmp_path: Path) -> None:
    inputs, output = source(tmp_path / "in"), tmp_path / "out"
    driver = jobs.Driver({"inputs": str(inputs), "output": str(output)}, {}, __name__)
    driver.until(lambda: len(list(output.glob("part-00000.*"))) >= 2)
    driver.kill()
    driver.wait()
    parts = {path.name: path.stat().st_ino for path in output.glob("part-*")}
    assert len(parts) >= 2 and not (output / "_SUCCESS").exists()
    result = leaking(inputs).write_parquet(output)
    assert result.resumed
    check(output, ROWS)
    assert parts.items() <= {path.name: path.stat().st_ino for path in output.glob("part-*")}.items()


def test_an_input_that_changes_after_its_shard_was_divided_is_read_anew(tmp_path: Path) -> None:
    inputs, output = source(tmp_path / "in", 2), tmp_path / "out"
    driver = jobs.Driver({"inputs": str(inputs), "output": str(output), "late": True}, {}, __name__)
    driver.until(lambda: bool(list(output.glob("part-00000-*"))) and divisions(output) == 1)
    driver.kill()
    driver.wait()
    assert not list(output.glob("part-00001*")), "the second file's rows are not committed yet"
    pq.write_table(pa.table({"id": np.arange(ROWS, 2 * ROWS + 7)}), inputs / "1.parquet")
    leaking(inputs, late=True, mib=0).write_parquet(output)
    check(output, 2 * ROWS + 7)


def main() -> None:
    """What the driver does that is killed."""
    job, _ = json.loads(sys.argv[1])
    leaking(Path(job["inputs"]), late=job.get("late", False)).write_parquet(job["output"])


@pytest.mark.parametrize("plan", ["limited", "in order"])
def test_where_shards_cannot_be_divided_it_says_so(tmp_path: Path, plan: str) -> None:
    rows = leaking(source(tmp_path / "in", 2))
    with pytest.raises(
        OutOfMemory, match=r"part 0 of the input does not fit .* [MG]iB.*memory_limit of .*it is not divided"
    ):
        if plan == "limited":
            rows.limit(2 * ROWS - 1).write_parquet(tmp_path / "out")
        else:
            list(rows.iter_batches())


def test_a_model_that_does_not_fit_says_so(tmp_path: Path) -> None:
    rows = data(source(tmp_path / "in", 2), workers=2).predict(
        Leaky, inputs=["id"], output="y", fn_constructor_args=[0, 700]
    )
    with pytest.raises(
        OutOfMemory,
        match=r"A worker alone does not fit .*while constructing Leaky.*it took \d+ MiB.*smaller model",
    ):
        rows.write_parquet(tmp_path / "out")


def test_a_row_that_does_not_fit_says_so(tmp_path: Path) -> None:
    rows = hr.range(4).with_options(progress=False, workers=1, memory_limit=limit())
    rows = rows.predict(Leaky, inputs=["id"], output="y", fn_constructor_args=[800], batch_size=1)
    told = r"Even a single row does not fit into a worker's memory: it took.* It was range, row \d+\."
    with pytest.raises(OutOfMemory, match=told):
        rows.write_parquet(tmp_path / "out")


class Heavy:
    """Takes more than there is for one of the rows."""

    def __call__(self, batch: dict[str, Any]) -> Any:
        if (batch["id"] == 5).any():
            held = np.ones(800 * MIB, np.uint8)
            time.sleep(0.2)
            del held
        return batch["id"] * 2.0


def test_a_row_that_does_not_fit_is_set_aside(tmp_path: Path) -> None:
    rows = hr.range(8).with_options(progress=False, workers=1, memory_limit=limit(), on_error="reject")
    rows = rows.predict(Heavy, inputs=["id"], output="y", batch_size=4)
    result = rows.write_parquet(tmp_path / "out")
    assert rows_of(tmp_path / "out") == [{"id": i, "y": 2.0 * i} for i in range(8) if i != 5]
    assert (result.ledger.read, result.rows, result.rejected) == (8, 7, 1)
    aside = hr.read_rejected(tmp_path / "out").to_arrow()
    assert aside.column("id").to_pylist() == [5] and aside.column("_error_type").to_pylist() == [
        "OutOfMemory"
    ]


def test_a_limit_below_what_the_driver_has_says_so(tmp_path: Path) -> None:
    with pytest.raises(OutOfMemory, match=r"this process alone takes .*iB.*memory_limit of 10 MiB"):
        data(source(tmp_path / "in", 2), memory_limit=10 * MIB).write_parquet(tmp_path / "out")


class Wide:
    """Takes memory by the rows of a batch, and says how many those are."""

    def __call__(self, batch: dict[str, Any]) -> Any:
        held = np.ones((len(batch["id"]), MIB), np.uint8)
        time.sleep(0.3)
        return {"rows": np.full(len(held), len(held))}


def test_batches_shrink_before_workers_are_ended(tmp_path: Path) -> None:
    near = int((private_memory(os.getpid()) + 30 * MIB + 430 * MIB) / 0.89)
    rows = data(source(tmp_path / "in"), memory_limit=near)
    result = rows.predict(Wide, inputs=["id"], batch_size=430).write_parquet(tmp_path / "out")
    sizes = {row["rows"] for row in rows_of(tmp_path / "out")}
    assert 430 in sizes and 215 in sizes
    assert "retired" not in result.summary


def test_a_run_with_room_enough_is_left_alone(tmp_path: Path) -> None:
    result = leaking(source(tmp_path / "in"), mib=1).write_parquet(tmp_path / "out")
    check(tmp_path / "out", ROWS)
    assert "retired" not in result.summary and divisions(tmp_path / "out") == 0
    assert sorted(os.listdir(tmp_path / "out"))[-1].startswith("part-00000-")
