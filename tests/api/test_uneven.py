"""Workers that have nothing to do get a part of what others have left, in whole runs and on every engine."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr

ENGINE = os.environ.get("HEADRACE_TEST_ENGINE") or "local"


def rows_of(output: Path) -> list[dict[str, Any]]:
    found = sorted(path for path in output.iterdir() if path.name.startswith("part-"))
    return [row for path in found for row in pq.read_table(path).to_pylist()]


class Together:
    """From row 20 on, waits until two workers have been at it; notes who did a row."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        (self.folder / str(os.getpid())).touch()
        while row["id"] >= 20 and len(list(self.folder.iterdir())) < 2:
            time.sleep(0.01)
        return {"id": row["id"], "worker": os.getpid()}


@pytest.mark.parametrize("kind", ["parquet", "json"])
def test_a_single_shard_is_work_for_two(tmp_path: Path, kind: str) -> None:
    source, present = tmp_path / f"all.{kind}", tmp_path / "present"
    present.mkdir()
    if kind == "parquet":
        pq.write_table(pa.table({"id": list(range(200))}), source)
    else:
        source.write_text("".join(f'{{"id": {n}}}\n' for n in range(200)))
    data = getattr(hr, f"read_{kind}")(str(source)).map(Together(present), version="1")
    result = data.with_options(workers=2, engine=ENGINE).write_parquet(tmp_path / "out")
    rows = rows_of(tmp_path / "out")
    assert [row["id"] for row in rows] == list(range(200))
    assert len({row["worker"] for row in rows}) == 2
    assert result.rows == 200 and result.files >= 2


def same(batch: dict[str, Any]) -> dict[str, Any]:
    return dict(batch)


def test_the_last_of_two_stages_shares_its_shard(tmp_path: Path) -> None:
    present = tmp_path / "present"
    present.mkdir()
    pq.write_table(pa.table({"id": list(range(400))}), tmp_path / "in.parquet", row_group_size=50)
    data = hr.read_parquet(str(tmp_path / "in.parquet")).map_batches(same, batch_size=10, num_cpus=1)
    data = data.map(Together(present), concurrency=2, version="1").accumulate(mean=hr.Mean("id"))
    data = data.with_options(engine=ENGINE, shard_rows=400)
    result = data.write_parquet(tmp_path / "out")
    rows = rows_of(tmp_path / "out")
    assert [row["id"] for row in rows] == list(range(400))
    assert len({row["worker"] for row in rows}) == 2
    assert result.ledger.read == 400 and result.metrics["mean"] == 199.5


def test_a_shard_is_one_part_where_that_is_asked_for(tmp_path: Path) -> None:
    data = hr.range(60).map(slow, version="1").with_options(workers=2, engine=ENGINE, commit_every=None)
    result = data.write_parquet(tmp_path / "out")
    assert (result.rows, result.files) == (60, 1)


def slow(row: dict[str, Any]) -> dict[str, Any]:
    time.sleep(0.01)
    return row


def test_rows_up_to_a_limit_are_for_all_workers_and_no_others_are_read(tmp_path: Path) -> None:
    data = hr.range(100_000).map(same, version="1").limit(4_000).with_options(workers=2, engine=ENGINE)
    result = data.write_parquet(tmp_path / "out")
    assert [row["id"] for row in rows_of(tmp_path / "out")] == list(range(4_000))
    assert result.ledger.read == 4_000 and result.files >= 2
