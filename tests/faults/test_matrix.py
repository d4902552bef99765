"""Every way in which rows can fail, in every place, under every policy: exact counts, and the others untouched."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import headrace as hr
from crossed import crossed
from faults.job import Driver
from headrace.core import failpoints
from headrace.engines.local.machine import private_memory
from headrace.errors import StepError

MIB = 1 << 20
LEAK, ROOM = 15 * MIB, 260 * MIB  # what a batch leaves behind; what workers and blocks may have

PLACES = ["first", "last", "batch", "random", "every"]
POLICIES = ["raise", "reject", "null"]
KILLS = {  # where a driver dies: one shard or two are committed, and another is about to be
    "between commits": ("journal.synced", "kill@3"),
    "before a commit": ("journal.append", "kill@4"),
}


class OutOfMemoryError(RuntimeError):
    """As PyTorch names its own."""


def raising(error: Callable[[], BaseException]) -> Callable[[Any, Any], Any]:
    def act(ids: Any, bad: Any) -> Any:
        raise error()

    return act


def dying(how: Callable[[], Any]) -> Callable[[Any, Any], Any]:
    def act(ids: Any, bad: Any) -> Any:
        how()

    return act


def hanging() -> None:
    while True:
        pass


KEPT: list[Any] = []


def leaking(ids: Any, bad: Any) -> Any:
    KEPT.append(np.ones(LEAK, np.uint8))
    time.sleep(0.02)  # a model takes its time, too
    return ids * 2.0


@dataclass(frozen=True)
class Kind:
    """What a model does about a batch with bad rows, and what their error is called; "" if it is none."""

    act: Callable[[Any, Any], Any]
    error: str
    deadly: bool = False
    says: str = ""


KINDS = {
    "exception": Kind(raising(lambda: ValueError("bad row")), "ValueError"),
    "wrong length": Kind(lambda ids, bad: ids[~bad] * 2.0, "BadReturn"),
    "nan": Kind(lambda ids, bad: np.where(bad, np.nan, ids * 2.0), ""),
    "memory": Kind(raising(MemoryError), "MemoryError"),
    "cuda memory": Kind(raising(lambda: OutOfMemoryError("CUDA out of memory")), "OutOfMemoryError"),
    "exit": Kind(dying(lambda: os._exit(3)), "WorkerDied", True, "exited with status 3"),
    "SIGSEGV": Kind(dying(lambda: os.kill(os.getpid(), signal.SIGSEGV)), "WorkerDied", deadly=True),
    "SIGKILL": Kind(dying(lambda: os.kill(os.getpid(), signal.SIGKILL)), "WorkerDied", deadly=True),
    "loop": Kind(dying(hanging), "BatchTimeout", True, "more than batch_timeout=1"),
    "leak": Kind(leaking, "", deadly=True),
}
MILD = [name for name, kind in KINDS.items() if not kind.deadly]
DEADLY = [name for name, kind in KINDS.items() if kind.deadly]


@dataclass(frozen=True)
class Case:
    """One cell of the matrix."""

    kind: str
    place: str
    on_error: str
    workers: int = 0  # none: in this process
    staged: bool = False  # rows come from another stage

    @property
    def rows(self) -> int:
        """How many there are: few, where many of them end a worker or two."""
        deadly = KINDS[self.kind].deadly and KINDS[self.kind].error
        few = {"every": 40, "batch": 200} if deadly else {"every": 400}
        return few.get(self.place, 2_000)

    @property
    def batch(self) -> int:
        """Rows of a batch; there are four shards of five."""
        return self.rows // 20

    @property
    def bad(self) -> list[int]:
        """The rows at fault."""
        places = {
            "first": [0],
            "last": [self.rows - 1],
            "batch": list(range(self.batch, 2 * self.batch)),
            "random": random.Random(7).sample(range(self.rows), max(1, self.rows // 1000)),
            "every": list(range(self.rows)),
        }
        return places[self.place]

    def data(self) -> hr.Dataset:
        """The plan."""
        options: dict[str, Any] = {"progress": False, "shard_rows": self.rows // 4, "on_error": self.on_error}
        options |= {"workers": self.workers} if self.workers else {"engine": "inline"}
        if self.kind == "loop":
            options |= {"batch_timeout": 1.0}
        if self.kind == "leak":
            options |= {"memory_limit": private_memory(os.getpid()) + ROOM}
        if self.rows < 100:
            options |= {"max_attempts": 10}
        data = hr.range(self.rows).with_options(**options)
        data = data.map_batches(lambda batch: batch, num_cpus=1, version="1") if self.staged else data
        return data.predict(
            Model,
            inputs=["id"],
            output="y",
            fn_constructor_args=[self.kind, self.bad],
            batch_size=self.batch,
            version="1",
            concurrency=1 if self.staged else None,
        )

    def run(self, output: Path) -> None:
        """Run it, and see that nothing is lost, nothing comes twice, and what failed is told."""
        kind, bad = KINDS[self.kind], set(self.bad)
        if self.on_error == "raise" and kind.error:
            with pytest.raises(StepError, match=rf"range, rows? \d+.*{kind.says}"):
                self.data().write_parquet(output)
            return
        result = self.data().write_parquet(output)
        kept = self.on_error == "null" and not kind.deadly
        aside = set() if kept or not kind.error else bad
        rows = [i for i in range(self.rows) if i not in aside]
        found = pq.read_table(output).to_pydict() if rows else {"id": [], "y": []}
        assert found["id"] == rows
        failed = bad if self.kind != "leak" else set()
        values = ["bad" if i in failed else 2.0 * i for i in rows]
        assert ["bad" if y is None or y != y else y for y in found["y"]] == values
        nulled = len(bad) if kept and kind.error else 0
        ledger = result.ledger
        counts = ledger.read, ledger.written, ledger.rejected, ledger.nulled
        assert counts == (self.rows, len(rows), len(aside), nulled)
        rejected = hr.read_rejected(output).to_arrow()
        assert rejected.num_rows == len(aside)
        if aside:
            assert rejected.column("id").to_pylist() == sorted(aside)
            assert set(rejected.column("_error_type").to_pylist()) == {kind.error}
            assert all(re.search(kind.says, text) for text in rejected.column("_error").to_pylist())
            assert all("predict" in text for text in rejected.column("_step").to_pylist())
        if aside and kind.deadly:
            assert rejected.column("_row").to_pylist() == sorted(aside)

    def run_killed(self, output: Path, kill: str) -> None:
        """Have the driver die in the middle; then run it again."""
        point, action = KILLS[kill]
        given = {**asdict(self), "output": str(output)}
        code, _, said = Driver(given, {point: action}, module="faults.test_matrix").wait(300)
        fatal = self.on_error == "raise" and KINDS[self.kind].error
        assert code == -signal.SIGKILL or fatal, said
        self.run(output)


def main() -> None:
    """What a driver that is to die does."""
    job, faults = json.loads(sys.argv[1])
    output = job.pop("output")
    failpoints.activate(faults)
    Case(**job).data().write_parquet(output)


class Model:
    """Doubles numbers, unless some of them are bad."""

    def __init__(self, kind: str, bad: list[int]) -> None:
        self.act = KINDS[kind].act
        self.bad = bad

    def __call__(self, batch: dict[str, Any]) -> Any:
        bad = np.isin(batch["id"], self.bad)
        return self.act(batch["id"], bad) if bad.any() else batch["id"] * 2.0


@pytest.fixture(autouse=True)
def no_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process there is the garbage of all other tests."""
    monkeypatch.setattr("headrace.worker.messages.gc.collect", lambda: 0)


@pytest.mark.parametrize(("kind", "place", "on_error"), crossed(MILD, PLACES, POLICIES))
def test_mild(kind: str, place: str, on_error: str, tmp_path: Path) -> None:
    Case(kind, place, on_error).run(tmp_path / "out")


@pytest.mark.parametrize(
    ("policy", "kind"), crossed([("reject", "random"), ("null", "batch"), ("raise", "last")], MILD)
)
def test_mild_with_workers(kind: str, policy: tuple[str, str], tmp_path: Path) -> None:
    on_error, place = policy
    Case(kind, place, on_error, workers=2).run(tmp_path / "out")


@pytest.mark.parametrize(
    ("kind", "place", "on_error", "staged"),
    [
        ("exit", "first", "reject", False),
        ("SIGSEGV", "last", "reject", False),
        ("SIGKILL", "first", "reject", True),
        ("loop", "random", "reject", False),
        ("exit", "random", "raise", False),
        ("loop", "last", "raise", False),
    ],
)
def test_rows_that_end_their_worker(
    kind: str, place: str, on_error: str, staged: bool, tmp_path: Path
) -> None:
    Case(kind, place, on_error, workers=2, staged=staged).run(tmp_path / "out")


@pytest.mark.parametrize(("on_error", "place"), [("reject", "every"), ("null", "random")])
@pytest.mark.parametrize("kind", ["exception", "cuda memory"])
def test_mild_and_killed(kind: str, place: str, on_error: str, tmp_path: Path) -> None:
    Case(kind, place, on_error).run_killed(tmp_path / "out", "before a commit")


@pytest.mark.soak
@pytest.mark.parametrize("kill", KILLS)
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("on_error", POLICIES)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", MILD)
def test_mild_with_workers_and_killed(
    kind: str, place: str, on_error: str, workers: int, kill: str, tmp_path: Path
) -> None:
    Case(kind, place, on_error, workers).run_killed(tmp_path / "out", kill)


@pytest.mark.soak
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("on_error", POLICIES)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", DEADLY)
def test_deadly(kind: str, place: str, on_error: str, workers: int, tmp_path: Path) -> None:
    Case(kind, place, on_error, workers).run(tmp_path / "out")


@pytest.mark.soak
@pytest.mark.parametrize("on_error", POLICIES)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", DEADLY)
def test_deadly_and_killed(kind: str, place: str, on_error: str, tmp_path: Path) -> None:
    Case(kind, place, on_error, workers=2).run_killed(tmp_path / "out", "between commits")
