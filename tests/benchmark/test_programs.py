"""Benchmarks that use what is inside: they still find it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from bench import blocks, scale

import headrace as hr
from headrace.core.engine_ports import WorkerContext
from headrace.sources.range import RangeSource


def test_a_run_of_which_one_shard_is_left_goes_on(tmp_path: Path) -> None:
    scale.commit_all_but_one(5, tmp_path / "out")
    rows = hr.Dataset.from_source(RangeSource(5, rows_per_split=1))
    rows = rows.with_options(engine="inline", progress=False, shard_rows=1)
    result = rows.write_parquet(tmp_path / "out")
    assert result.resumed and result.rows == 5
    assert hr.read_parquet(tmp_path / "out").to_arrow()["id"].to_pylist() == [4]  # the others are made up


def test_a_block_is_read_by_what_a_worker_has() -> None:
    written: list[Any] = []
    context: Any = SimpleNamespace(
        share=lambda schema, batches: written.append(batches), fetch=lambda ref: written[0]
    )
    assert all(hasattr(WorkerContext, name) for name in vars(context))
    hand = blocks.Hand(context)
    hand.write()
    assert hand.read(None)[0]  # type: ignore[arg-type]
