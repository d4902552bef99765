"""What machines of a fleet run in these tests: a job with rejected rows, metrics and rows that carry their number."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import headrace as hr
from headrace.annex.fleet import board, machine, writing
from headrace.output.places import lease

ROWS, EACH, BAD = 1_000, 50, 97
FAILING = sum(i % BAD == 5 for i in range(ROWS))
LIMIT = 613  # within a shard


def work(batch: dict[str, Any]) -> dict[str, Any]:
    time.sleep(float(os.environ.get("TEST_MODEL_SECONDS", "0")))
    if gate := os.environ.get("TEST_GATE"):  # a machine that is slow: it goes on once there is that file
        Path(f"{gate}.reached").touch()
        while not os.path.exists(gate):
            time.sleep(0.05)
    if (batch["id"] % BAD == 5).any():
        raise ValueError("a bad row")
    return {"id": batch["id"], "double": batch["id"] * 2}


def other(batch: dict[str, Any]) -> dict[str, Any]:
    return work(batch)


other.__name__ = other.__qualname__ = "work"
CODES = {"work": work, "other": other}


def dataset(limit: int | None = None, **options: Any) -> hr.Dataset:
    rows = hr.range(ROWS)
    return (
        (rows if limit is None else rows.limit(limit))
        .map_batches(CODES[os.environ.get("TEST_CODE", "work")], batch_size=50)
        .accumulate(total=hr.Sum("double"), rows=hr.Count())
        .with_options(
            **{
                "fleet": True,
                "engine": "inline",
                "on_error": "reject",
                "shard_rows": EACH,
                "progress": False,
                "durability": "process",
                **options,
            }
        )
    )


def main(place: str, options: dict[str, Any]) -> None:
    """Be one machine."""
    shift, clock = float(os.environ.get("TEST_CLOCK", "0")), time.time
    if shift:
        time.time = lambda: clock() + shift
    if os.environ.get("TEST_HURRY"):  # the pace of looking is tested in virtual time
        machine.LONGEST_LOOK = writing.LONGEST_LOOK = 0.2
        board.GRACE = 0.5
    if options.pop("apart", False):  # as on a machine of its own, of which others hear by its lease alone
        lease._machine = lambda: str(os.getpid())
        lease.SILENCE, lease.BEAT = 1.0, 0.1
    result = dataset(**options).write_parquet(place)
    print(json.dumps({"rows": result.rows, "total": result.metrics["total"]}))


def check(place: str, limit: int | None = None, **storage: Any) -> None:
    """Compare the output with what one loop makes."""
    rows = range(ROWS if limit is None else min(ROWS, limit))
    expected = [i for i in rows if i % BAD != 5]
    found = hr.read_parquet(place, **storage).with_options(engine="inline").to_arrow()
    assert found["id"].to_pylist() == expected
    assert found["double"].to_pylist() == [2 * i for i in expected]
    rejected = hr.read_rejected(place, **storage).with_options(engine="inline").to_arrow()
    assert rejected["id"].to_pylist() == [i for i in rows if i % BAD == 5]
    result = dataset(limit, fleet=False).write_parquet(
        place, **storage
    )  # which is complete: its record is returned
    assert (result.rows, result.rejected) == (len(expected), rejected.num_rows)
    assert result.metrics["total"] == 2 * sum(expected) and result.metrics["rows"] == len(expected)
    assert result.ledger.read == len(rows)
