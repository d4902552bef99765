"""The job that fault tests run and kill: eight small Parquet files through a function, one shard each.

The same function builds the dataset in a driver process that is to die and in the test's own process, so both
are the same run.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import headrace as hr
from forked import MARK, Forked
from headrace.core import failpoints
from headrace.core.process import is_worker
from headrace.dataset.dataset import Dataset
from headrace.result import Result
from headrace.sources.parquet.source import ParquetSource

FILES, ROWS = 8, 100


def times(batch: dict[str, Any], factor: int) -> dict[str, Any]:
    """The model of the fault tests."""
    return {"id": batch["id"], "product": batch["id"] * factor}


def times_row(row: dict[str, Any], factor: int) -> dict[str, Any]:
    """The same, of a row."""
    return {"product": row["id"] * factor, "id": row["id"]}


def met(batch: dict[str, Any], folder: str) -> dict[str, Any]:
    """In a worker, waits at the third batch of all until another worker has begun one."""
    (Path(folder) / str(os.getpid())).touch()
    patience = time.monotonic() + 50
    while (
        is_worker() and batch["id"][0] >= 60 and len(os.listdir(folder)) < 2 and time.monotonic() < patience
    ):
        time.sleep(0.01)
    return dict(batch)


def same(batch: dict[str, Any]) -> dict[str, Any]:
    """What the second stage does."""
    return dict(batch)


def alike(batch: dict[str, Any]) -> dict[str, Any]:
    """What stands side by side is of one row."""
    assert (batch["id"] == batch["id_1"]).all() and (batch["product"] == batch["product_1"]).all()
    return {"id": batch["id"], "product": batch["product_1"]}


def picky(batch: dict[str, Any], bad: int) -> dict[str, Any]:
    """Raises over some rows."""
    if any(batch["id"] % bad == 7):
        raise ValueError("not this one")
    return dict(batch)


def picky_row(row: dict[str, Any], bad: int) -> bool:
    """Raises over some rows."""
    if row["id"] % bad == 7:
        raise ValueError("not this one")
    return True


def tenth(batch: dict[str, Any]) -> Any:
    """The model of runs with metrics: its sums are no round numbers."""
    return batch["id"] * 0.1


def tripled(batch: dict[str, Any], bad: int) -> Any:
    """Predict, but for one row."""
    if (batch["id"] == bad).any():
        raise ValueError("a bad row")
    return batch["id"] * 3


def shelved(batch: dict[str, Any]) -> dict[str, Any]:
    """Says in which folder a row is to be."""
    return {**batch, "shelf": batch["id"] % 3}


class Big:
    """A metric of one's own: counts rows, and has a state that no record of the journal holds."""

    columns = ("id",)

    def __init__(self, rows: int = 0, total: int = 0) -> None:
        self.rows, self.total = rows, total

    def __repr__(self) -> str:  # the name of a test that is given one, the same in every process
        return "Big()"

    def empty(self) -> Big:
        return Big()

    def update(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.num_rows
        self.total += pc.sum(batch.column("id")).as_py() or 0

    def merge(self, other: Big) -> None:
        self.rows, self.total = self.rows + other.rows, self.total + other.total

    def result(self) -> dict[str, int]:
        return {"rows": self.rows, "total": self.total}

    def to_bytes(self) -> bytes:
        return f"{self.rows} {self.total}".encode().ljust(70_000)

    def from_bytes(self, data: bytes) -> Big:
        return Big(*map(int, data.split()))


@dataclass(frozen=True)
class Job:
    """One plan: where it reads and writes, and what may differ between runs of it."""

    source: str
    output: str
    factor: int = 3
    limit: int | None = None
    first: int = 0  # rows below are filtered out
    staged: bool = False  # with pools of their own for making and for writing
    bad: int = 0  # one row in so many fails, and is rejected
    metrics: bool = False  # counted by one that sees what is dropped later, and one behind all
    shelves: bool = False  # parts in folders of their own, by a column of three values
    combined: str = ""  # "union" or "zip", of two datasets with steps of their own
    meets: str = ""  # a folder; the two workers meet, so one has to leave a part of its shard to the other
    required: int = 0  # so many rows, or none is published
    copied: int = 0  # a column is copied as it is stored, by workers of so many stages; the row ``bad`` fails
    elsewhere: bool = False  # workers do not see where the driver stages, as if they were on other machines
    options: Mapping[str, Any] = field(default_factory=dict)

    def dataset(self, **options: Any) -> Dataset:
        """Build the plan."""
        if self.copied:
            return self._copied(options)
        making: dict[str, Any] = {"num_cpus": 1} if self.staged else {}
        dataset = Dataset.from_source(ParquetSource(self.source)).map_batches(
            times, fn_args=[self.factor], batch_size=30, **making
        )
        if self.combined == "zip":
            other = Dataset.from_source(ParquetSource(self.source)).map(times_row, fn_args=[self.factor])
            dataset = dataset.zip(other).map_batches(alike, batch_size=30, **making)
        elif self.combined:
            files = sorted(map(str, Path(self.source).iterdir()))
            both = [Dataset.from_source(ParquetSource(each)) for each in (files[:3], files[3:])]
            first = both[0].map_batches(times, fn_args=[self.factor], batch_size=30, **making)
            dataset = first.union(
                both[1].map(times_row, fn_args=[self.factor]).filter(picky_row, fn_args=[9999])
            )
        if self.meets:
            dataset = dataset.map_batches(met, fn_args=[self.meets], batch_size=30)
        if self.metrics:
            dataset = self._counted(dataset)
        elif self.staged:
            dataset = dataset.map_batches(same, batch_size=40, concurrency=1)
        if self.bad:
            if self.metrics:  # whatever may change which rows there are comes before metrics
                dataset = dataset.filter(picky_row, fn_args=[self.bad])
            else:
                dataset = dataset.map_batches(picky, fn_args=[self.bad], batch_size=25)
            dataset = dataset.with_options(on_error="reject")
        if self.first:
            dataset = dataset.filter(expr=pc.field("id") >= self.first)
        if self.shelves:
            dataset = dataset.map_batches(shelved)
        if self.limit is not None:
            dataset = dataset.limit(self.limit)
        if self.required:
            dataset = dataset.require(rows=hr.at_least(self.required))
        if self.metrics:
            dataset = dataset.accumulate(rows=hr.Count(), tenths=hr.Sum("tenth")).drop_columns(["tenth"])
        return dataset.with_options(**{"progress": False, "shard_rows": ROWS, **self.options, **options})

    def _copied(self, options: dict[str, Any]) -> Dataset:
        made: dict[str, Any] = {"fn_args": [self.bad], "num_cpus": 1 if self.copied == 2 else None}
        dataset = Dataset.from_source(ParquetSource(self.source))
        dataset = dataset.predict(tripled, inputs=["id"], output="product", **made)
        if self.copied == 2:
            dataset = dataset.predict(tripled, inputs=["id"], output="again", fn_args=[-1], concurrency=1)
            dataset = dataset.drop_columns("again")
        return dataset.with_options(**{"progress": False, "on_error": "reject", **self.options, **options})

    def _counted(self, dataset: Dataset) -> Dataset:
        """With metrics before the border of the stages, of columns that change later."""
        dataset = dataset.accumulate(
            product=hr.Mean("product"),
            auc=hr.AUROC("id", "product", positive=407),
            ids=Big(),
        )
        pool: dict[str, Any] = {"concurrency": 1} if self.staged else {}
        return dataset.predict(tenth, inputs=["id"], output="tenth", batch_size=40, **pool)

    def write(self, dataset: Dataset) -> Result:
        """Write it where the job says."""
        with workers_elsewhere() if self.elsewhere else contextlib.nullcontext():
            return dataset.write_parquet(self.output, partition_by=["shelf"] if self.shelves else None)

    def here(self, faults: Mapping[str, str] | None = None, **options: Any) -> Result:
        """Run it in this process, inline unless ``options`` say otherwise."""
        failpoints.activate(faults or {})
        try:
            return self.write(self.dataset(**{"engine": "inline", **options}))
        finally:
            failpoints.activate({})

    def start(self, faults: Mapping[str, str] | None = None, **options: Any) -> Driver:
        """Start a driver of its own for it, with two workers."""
        given = {"workers": 2, **self.options, **options}
        return Driver({**asdict(self), "options": given}, dict(faults or {}))

    def expected(self) -> list[dict[str, int]]:
        """The rows that the output must hold, in order."""
        ids = [
            i for path in sorted(Path(self.source).iterdir()) for i in pq.read_table(path)["id"].to_pylist()
        ]
        kept = [i for i in ids if i >= self.first and not self.fails(i)][: self.limit]
        return [{"id": i, "product": i * self.factor} for i in kept]

    def metrics_of(self) -> dict[str, Any]:
        """The metrics, as the report has them."""
        return dict(json.loads((Path(self.output) / "_SUCCESS").read_text())["metrics"])

    def fails(self, number: int) -> bool:
        """Say whether a row fails."""
        return bool(self.bad) and (number == self.bad if self.copied else number % self.bad == 7)


def workers_elsewhere() -> contextlib.AbstractContextManager[Any]:
    """Have workers upload what they write into a store by themselves, as on a cluster."""
    from headrace.session import write

    return mock.patch.object(
        write, "_uploads", lambda job, _: job.output.place.uploads(job.committer.plan.run)
    )


class Driver:
    """A driver process that a test may wait for, or kill. Its environment marks it and its workers."""

    def __init__(self, job: dict[str, Any], faults: dict[str, str], module: str = "faults.job") -> None:
        """``main`` of ``module`` is what the process does."""
        self._mark = uuid.uuid4().hex
        tests = str(Path(__file__).parents[1])
        code = f"import sys; sys.path.insert(0, {tests!r}); from {module} import main; main()"
        self.process = Forked(
            [sys.executable, "-c", code, json.dumps([job, faults])],
            env={**os.environ, MARK: self._mark},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            workers=job.get("options", {}).get("engine") != "inline",
        )

    def wait(self, timeout: float = 60) -> tuple[int, str, str]:
        """Return exit code, output and errors once it and all of its workers are gone."""
        out, err = self.process.communicate(timeout=timeout)
        gone, alive = psutil.wait_procs(self.family(), timeout=20)
        assert not alive, f"left behind: {alive} after {gone}"
        return self.process.returncode, out, err

    def kill(self) -> None:
        """End the driver alone, and wait until it is gone; its workers may live on for a moment."""
        self.process.kill()
        self.process.wait(20)

    def family(self) -> list[psutil.Process]:
        """Every live process that this driver started, itself included."""
        found = []
        for process in psutil.process_iter():
            try:
                ours = process.pid == self.process.pid or process.environ().get(MARK) == self._mark
                if ours and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def workers(self) -> list[psutil.Process]:
        """Its live workers; the process that watches over them is none."""
        found = []
        for process in self.family():
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.pid != self.process.pid and process.name() != "sh":
                    found.append(process)
        return found

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait until ``condition`` holds or the driver has ended."""
        while self.process.poll() is None and not condition():
            time.sleep(0.002)


def main() -> None:
    """What a driver process does."""
    job, faults = json.loads(sys.argv[1])
    failpoints.activate(faults)
    planned = Job(**job)
    result = planned.write(planned.dataset())
    print(json.dumps([result.rows, result.files, result.resumed]))


def make_input(folder: Path, *, files: int = FILES, rows: int = ROWS) -> Path:
    """Write ``files`` Parquet files that count through."""
    folder.mkdir(exist_ok=True)
    for number in range(files):
        write_input(folder, number, range(number * rows, (number + 1) * rows))
    return folder


def write_input(folder: Path, number: int, ids: range) -> Path:
    """Write one input file."""
    path = folder / f"in-{number:02d}.parquet"
    pq.write_table(pa.table({"id": pa.array(ids, pa.int64())}), path)
    return path
