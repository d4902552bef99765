"""What ``explain`` says of a plan before a run is what the record of the run says."""

from __future__ import annotations

import pytest

import headrace as hr
from headrace.core.engine_ports import Capacity
from headrace.core.work import Ledger
from headrace.driver.ports import InMemoryCommitter
from headrace.options import RunOptions
from headrace.session import execution_plan
from headrace.session.build_runner import Resumed
from headrace.session.context import RunContext
from headrace.session.execution_plan import ExecutionPlan
from headrace.session.explain import explain
from headrace.session.provenance import describe

GIB = 1 << 30


@pytest.mark.parametrize("options", [{"engine": "ray"}, {"engine": "ray", "memory_limit": "8GiB"}, {}])
def test_memory_and_devices_are_described_alike(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, str]
) -> None:
    monkeypatch.setattr(execution_plan, "capacity_for", lambda _: Capacity(8, 12 * GIB, 4))
    data = hr.range(100).map_batches(lambda batch: batch, num_gpus=1).with_options(**options)
    execution = ExecutionPlan(data._plan, data._options)
    before = explain(data._plan, data._options)
    described = describe("run", data._plan, execution, execution.shards)
    assert described.plan == before
    assert "and 4 GPUs" in before
    if not options:
        assert described.memory_limit == 12 * GIB
    else:
        assert execution.block_budget == 6 * GIB
        assert described.memory_limit == (8 * GIB if "memory_limit" in options else 0)


def test_a_resumed_run_starts_with_what_is_left() -> None:
    """Workers are fitted to the shards that are not done, and limits to the rows that were not let through."""
    data = hr.range(1_000_000).limit(500_000)
    options = RunOptions(engine="inline", shard_rows=100_000)
    with RunContext.open(data._plan, options) as context:
        shards = context.execution.shards
        done = bytes([1, *bytes(len(shards) - 1)])
        resumed = Resumed(done, passed=[shards[0].rows], ledger=Ledger(shards[0].rows, shards[0].rows))
        committer = InMemoryCommitter()
        run = context.compose(data._plan, "count", shards, committer, resumed=resumed)
        assert not list(run.stream())
    assert committer.ledger.written == 500_000 - shards[0].rows > 0
