"""Every way in which rows can fail, in every place, under every policy: exact counts, and the others untouched."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import millrace as mr
from millrace.errors import StepError

ROWS, BATCH = 2_000, 100

PLACES: dict[str, list[int]] = {
    "first": [0],
    "last": [ROWS - 1],
    "batch": list(range(BATCH, 2 * BATCH)),
    "random": random.Random(7).sample(range(ROWS), ROWS // 1000),
    "every": list(range(ROWS)),
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


@dataclass(frozen=True)
class Kind:
    """What a model does about a batch with bad rows, and what their error is called; "" if it is none."""

    act: Callable[[Any, Any], Any]
    error: str
    deadly: bool = False


KINDS = {
    "exception": Kind(raising(lambda: ValueError("bad row")), "ValueError"),
    "wrong length": Kind(lambda ids, bad: ids[~bad] * 2.0, "BadReturn"),
    "nan": Kind(lambda ids, bad: np.where(bad, np.nan, ids * 2.0), ""),
    "memory": Kind(raising(MemoryError), "MemoryError"),
    "cuda memory": Kind(raising(lambda: OutOfMemoryError("CUDA out of memory")), "OutOfMemoryError"),
    "exit": Kind(dying(lambda: os._exit(3)), "WorkerDied", deadly=True),
    "SIGSEGV": Kind(dying(lambda: os.kill(os.getpid(), signal.SIGSEGV)), "WorkerDied", deadly=True),
    "SIGKILL": Kind(dying(lambda: os.kill(os.getpid(), signal.SIGKILL)), "WorkerDied", deadly=True),
    "loop": Kind(dying(hanging), "BatchTimeout", deadly=True),
}
MILD = [name for name, kind in KINDS.items() if not kind.deadly]
DEADLY = [name for name, kind in KINDS.items() if kind.deadly]


class Model:
    """Doubles numbers, unless some of them are bad."""

    def __init__(self, kind: str, place: str) -> None:
        self.act = KINDS[kind].act
        self.bad = PLACES[place]

    def __call__(self, batch: dict[str, Any]) -> Any:
        bad = np.isin(batch["id"], self.bad)
        return self.act(batch["id"], bad) if bad.any() else batch["id"] * 2.0


def check(kind: str, place: str, on_error: Any, output: Path, **options: Any) -> None:
    bad = set(PLACES[place])
    data = mr.range(ROWS).with_options(progress=False, shard_rows=ROWS // 2, on_error=on_error, **options)
    data = data.predict(Model, inputs=["id"], output="y", fn_constructor_args=[kind, place], batch_size=BATCH)
    error = KINDS[kind].error
    if on_error == "raise" and error:
        with pytest.raises(StepError, match=r"range, rows? \d+"):
            data.write_parquet(output)
        return
    result = data.write_parquet(output)
    kept = on_error == "null" and not KINDS[kind].deadly
    aside = set() if kept or not error else bad
    rows = [i for i in range(ROWS) if i not in aside]
    found = pq.read_table(output).to_pydict() if rows else {"id": [], "y": []}
    assert found["id"] == rows
    values = ["bad" if i in bad else 2.0 * i for i in rows]
    assert ["bad" if y is None or y != y else y for y in found["y"]] == values
    nulled = len(bad) if kept and error else 0
    ledger = result.ledger
    assert (ledger.read, ledger.written, ledger.rejected, ledger.nulled) == (
        ROWS,
        len(rows),
        len(aside),
        nulled,
    )
    rejected = mr.read_rejected(output).to_arrow()
    assert rejected.num_rows == len(aside)
    if aside:
        assert rejected.column("id").to_pylist() == sorted(aside)
        assert set(rejected.column("_error_type").to_pylist()) == {error}


@pytest.mark.parametrize("on_error", ["raise", "reject", "null"])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", MILD)
def test_mild(kind: str, place: str, on_error: Any, tmp_path: Path) -> None:
    check(kind, place, on_error, tmp_path / "out", engine="inline")


@pytest.mark.parametrize(("on_error", "place"), [("reject", "random"), ("null", "batch"), ("raise", "last")])
@pytest.mark.parametrize("kind", MILD)
def test_mild_with_workers(kind: str, place: str, on_error: Any, tmp_path: Path) -> None:
    check(kind, place, on_error, tmp_path / "out", workers=2)


@pytest.mark.soak
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("on_error", ["raise", "reject", "null"])
@pytest.mark.parametrize("place", [place for place in PLACES if place != "every"])
@pytest.mark.parametrize("kind", DEADLY)
def test_deadly(kind: str, place: str, on_error: Any, workers: int, tmp_path: Path) -> None:
    check(
        kind,
        place,
        on_error,
        tmp_path / "out",
        workers=workers,
        batch_timeout=1.0 if kind == "loop" else None,
    )
