"""The driver with simulated workers: it loses nothing, and keeps them busy."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from bench.simulated import Load, drive


@pytest.mark.parametrize("deaths", [0.0, 0.02])
def test_every_shard_is_done_once_and_workers_are_busy(tmp_path: Path, deaths: float) -> None:
    load = Load(workers=20, shards=500, seconds=2.0, deaths=deaths, restart_after=1.0, per_call=0.001)
    driven = drive(load, tmp_path / "out")
    assert driven.rows == load.shards == len(list((tmp_path / "out").glob("part-*")))
    assert bool(driven.deaths) == bool(deaths)
    assert driven.busy > 0.85, (
        "but for the beginning and the end, and the time until a dead worker is replaced"
    )


def test_a_driver_that_takes_too_long_is_seen(tmp_path: Path) -> None:
    """Where a call takes 50 ms of the driver, forty workers wait for it."""
    load = Load(workers=40, shards=300, seconds=1.0, deaths=0.0, per_call=0.05)
    busy = drive(load, tmp_path / "out").busy
    assert busy < 0.6
    assert drive(dataclasses.replace(load, per_call=0.0), tmp_path / "other").busy > busy + 0.2
