"""Records of runs that never were, for tests of what is made of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.core.events import (
    BatchShrunk,
    BatchSized,
    CallRetried,
    MemoryTaken,
    MetricsCounted,
    RowsRead,
    RunDescribed,
    RunFinished,
    RunStarted,
    ShardCommitted,
    StageDescribed,
    Worked,
    WorkerLost,
    WorkerReady,
)
from headrace.core.work import Fault, Faults, Ledger, Timings
from headrace.observers.record import Record
from headrace.observers.record_reader import lines_of
from headrace.observers.summary import ledger_data
from headrace.session.event_bus import EventBus

if TYPE_CHECKING:
    from headrace.annex.report.facts import History

HOSTILE = "</script><script>alert(1)</script><!-- \" ' & \u2028 \udcff"


class Time:
    """A clock that stands still until told; also seconds since 1970."""

    def __init__(self, now: float = 1_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def ledger(shards: int) -> Ledger:
    """Return where the rows of so many shards went."""
    steps = (100 * shards, 90 * shards), (90 * shards, 80 * shards)
    aside, dropped = (10 * shards, 0), (0, 10 * shards)
    return Ledger(100 * shards, 80 * shards, 10 * shards, steps, aside, 0, dropped, (0, 0), (0, 0))


def described(*stages: tuple[str, int], **changes: Any) -> RunDescribed:
    stages = stages or (("map_batches(f)", 2),)
    told = {
        "run": "abcd2345",
        "version": "0.1.0",
        "python": "3.12.1",
        "system": "Linux 6.1 x86_64",
        "host": "box",
        "process": 7,
        "cores": 8,
        "memory_limit": 8 << 30,
        "engine": "local",
        "options": {"workers": "2"},
        "plan": "source   Parquet",
        "steps": ("map_batches(f)", "filter(ok)"),
        "stages": tuple(StageDescribed(*stage) for stage in stages),
        "elapsed": 0.5,
        **changes,
    }
    return RunDescribed(**told)


def finished(ledger: Ledger, **changes: Any) -> RunFinished:
    told = {"bytes": 1 << 20, "files": 2, "seconds": 10.0, **changes}
    return RunFinished("abcd2345", "/out", ledger, Timings(1, 2, 3, 4), **told)


def success(found: History) -> dict[str, Any]:
    """Return what ``_SUCCESS`` says of a recorded run."""
    assert found.last is not None and found.last.finished is not None and found.last.described is not None
    ledger = ledger_data(found.last.finished.ledger, found.last.described.steps)
    return {"run": "abcd2345", "shards": 20, "files": 2, "bytes": 5, "ledger": ledger}


def recorded(path: Path, *, shards: int = 20, workers: int = 2, hostile: str = "odd") -> History:
    """Record a run of two stages in which everything happens that can."""
    time = Time()
    record = EventBus([Record(path)], clock=time)
    step = f"map_batches({hostile})"
    record.on_event(described((step, workers), ("predict(Net)", 1), steps=(step, "filter(ok)")))
    record.on_event(RunStarted("abcd2345", "/out", shards, 0, 0, shards * 100, workers + 1))
    for worker in range(workers + 1):
        time.now += 0.01
        record.on_event(WorkerReady(worker, 0.005))
    record.on_event(WorkerLost(0, hostile))
    record.on_event(CallRetried(1, step, "TimeoutError"))
    record.on_event(BatchSized(1, step, 512, 1e5))
    record.on_event(BatchShrunk(1, step, 512, 256))
    for shard in range(shards):
        worker = shard % workers
        time.now += 10.0 / shards
        record.on_event(RowsRead(worker, shard, 60))
        record.on_event(
            Worked(0, worker, shard, 0, 10.0 / shards, "done", 100, Timings(0.2, 9.0 / shards, 0.1))
        )
        record.on_event(
            Worked(1, workers, shard, 0, 10.0 / shards, "done", 90, Timings(0, 1.0 / shards, 0, 9.0 / shards))
        )
        record.on_event(MemoryTaken(1 << 20, 2 << 20, (3 << 20, 4 << 20), 8 << 30))
        record.on_event(ShardCommitted(shard, 0, ledger(1), 1000, Timings()))
        record.tick()
    whole = ledger(shards)
    charts = {
        "auc": {"kind": "roc", "x": [0.0, 0.5, 1.0], "y": [0.0, 0.9, 1.0]},
        "ap": {"kind": "precision-recall", "x": [0.5, 1.0], "y": [1.0, 0.7], "base": 0.5},
        "cal": {"kind": "calibration", "error": 0.1, "bins": [
            {"low": 0.0, "high": 0.5, "rows": 9, "score": 0.3, "positives": 0.2},
            {"low": 0.5, "high": 1.0, "rows": 5, "score": 0.8, "positives": 0.9},
        ]},
        "matrix": {"kind": "confusion", "labels": [hostile, "b"], "matrix": [[5, 1], [2, 7]], "left_out": 0},
        "hist": {"kind": "histogram", "edges": [0.0, 1.0, 2.0], "counts": [3, 4], "below": 0, "above": 1},
        "by": {"kind": "bars", "labels": [hostile, "b"], "values": [0.5, -0.25], "left_out": 3},
        "each": {"kind": "groups", "left_out": 0, "groups": [
            {"label": hostile, "chart": {
                "kind": "histogram", "edges": [0.0, 1.0], "counts": [3], "below": 0, "above": 1,
            }},
        ]},
    }  # fmt: skip
    results: dict[str, Any] = {
        "auc": 0.9,
        "ap": {"value": 0.8, "low": 0.7, "high": 0.9},
        "cal": {"error": 0.1, "bins": charts["cal"]["bins"]},
        "matrix": {"labels": [hostile, "b"], "matrix": [[5, 1], [2, 7]]},
        "hist": {"edges": [0.0, 1.0, 2.0], "counts": [3, 4], "below": 0, "above": 1},
        "by": {hostile: 0.5, "b": -0.25},
        "each": {hostile: {"edges": [0.0, 1.0], "counts": [3]}},
        "top": [{"score": 1.0, "name": hostile}],
        "none": None,
    }
    record.on_event(MetricsCounted(results, {"none": hostile}, charts))
    faults = Faults(((Fault(step, "ValueError", hostile), 10 * shards),))
    record.on_event(finished(whole, faults=faults, seconds=time.now - 1_000_000.0 + 0.5))
    from headrace.annex.report.facts import history

    return history(lines_of(path.read_bytes()))
