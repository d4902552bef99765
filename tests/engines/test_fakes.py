"""The fake engine runs the real worker under the real loop, with deaths as data."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

import headrace as hr
from headrace.core import failpoints as points
from headrace.core.engine_ports import PoolSpec
from headrace.driver.ports import InMemoryCommitter
from headrace.errors import ShardFailed, WorkerDied
from headrace.plan import compile as compiler
from headrace.plan.physical import ColumnsRead, Program
from headrace.session.build_runner import RunSpec, build_runner
from headrace.sources.range import RangeSource
from headrace.testing import FakeClock, FakeEngine, failpoints
from headrace.worker.stage_worker import StageWorker


def run(engine: FakeEngine, *, workers: int = 2) -> tuple[list[int], InMemoryCommitter]:
    """Read 10 shards of 10 rows on the fake engine; return the rows and the sums."""
    data = hr.Dataset.from_source(RangeSource(100, rows_per_split=10))
    plan = data.map_batches(lambda batch: {"id": batch["id"]}, batch_size=3)._plan
    shards = compiler.make_shards(plan.source.splits(), workers, 10)
    program = Program(plan.source, plan.steps, (ColumnsRead(),), None, "blocks", False, "process")
    committer = InMemoryCommitter()
    runner = build_runner(RunSpec(shards=shards, reading=True), committer)
    pool = engine.start(PoolSpec("fake", partial(StageWorker, program), workers), runner.notify)
    rows = [row for batch in runner.stream([pool]) for row in batch.column(0).to_pylist()]
    engine.close()
    return rows, committer


@pytest.mark.parametrize(
    "faults",
    [
        {},
        {(0, 0): "die"},
        {(3, 0): "die", (3, 1): "die"},
        {(9, 0): "die after"},
        {(shard, 0): "die" for shard in range(10)},
        {(0, 0): "die after", (5, 0): "die", (5, 1): "die after"},
        {(4, 0): WorkerDied("of old age")},
    ],
    ids=str,
)
def test_deaths_change_nothing(faults: dict[tuple[int, int], Any]) -> None:
    engine = FakeEngine(faults)
    rows, committer = run(engine)
    assert rows == list(range(100))
    assert (committer.ledger.read, committer.ledger.written) == (100, 100)
    begun = [shard for _, method, shard in engine.calls if method == "attempt"]
    assert len(begun) >= 10 + len(faults)  # those that waited behind are begun anew, too


def test_a_shard_that_always_kills_ends_the_run() -> None:
    engine = FakeEngine({(6, attempt): "die" for attempt in range(3)})
    with pytest.raises(ShardFailed, match=r"Shard 6 ended its worker 3 times.*died as the test asked"):
        run(engine)
    assert [call[2] for call in engine.calls].count(6) == 3


def test_an_exception_of_a_call_ends_the_run() -> None:
    with pytest.raises(hr.errors.HeadraceError, match="no such luck"):
        run(FakeEngine({(2, 0): hr.errors.SourceError("no such luck")}))


def test_failpoints_end_with_their_block() -> None:
    with failpoints({"journal.sync": "EIO"}):
        with failpoints({"stage.write": "ENOSPC"}):
            assert points.active() == {"stage.write": "ENOSPC"}
        with pytest.raises(OSError, match="Input/output"):
            points.hit("journal.sync")
    points.hit("journal.sync")
    with pytest.raises(ValueError, match="no such failpoint: nowhere"), failpoints({"nowhere": "kill"}):
        pass


def test_a_clock_goes_on_when_told() -> None:
    clock = FakeClock(10.0)
    clock.advance(1.5)
    assert clock() == clock() == 11.5
