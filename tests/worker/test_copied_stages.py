"""Columns that the last of several stages copies, and the stages before never read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.dataset.dataset import Dataset
from headrace.worker.copy_choice import LEAST_ROWS

GROUP = LEAST_ROWS
PER_FILE = 3 * GROUP


def table(number: int) -> pa.Table:
    ids = np.arange(PER_FILE) + PER_FILE * number
    words = [f"word {i % 300}" if i % 11 else None for i in ids.tolist()]
    tags = pa.array([["a"] * (i % 3) if i % 7 else None for i in ids.tolist()], pa.list_(pa.string()))
    return pa.table({"id": ids, "x": ids / 4, "word": words, "tags": tags})


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Three files of three row groups, gzipped: nothing that is encoded anew is."""
    (tmp_path / "in").mkdir()
    for number in range(3):
        path = tmp_path / "in" / f"{number}.parquet"
        pq.write_table(table(number), path, row_group_size=GROUP, compression="gzip")
    return tmp_path / "in"


class Half:
    """Fails at some rows; the first time that it sees ``dies_at``, it ends its worker. Has no memory for ``most``."""

    def __init__(self, bad: tuple[int, ...] = (), marker: str = "", dies_at: int = -1, most: int = 1 << 30):
        self.bad, self.marker, self.dies_at, self.most = bad, marker, dies_at, most

    def __call__(self, batch: dict[str, Any]) -> Any:
        rows = (batch["x"] * 4).round().astype(int)
        if len(rows) > self.most:
            raise MemoryError
        if self.dies_at in rows and not os.path.exists(self.marker):
            Path(self.marker).touch()
            os._exit(7)
        if np.isin(rows, self.bad).any():
            raise ValueError("bad")
        return batch["x"] / 2


def added(batch: dict[str, Any], bad: int = -1) -> Any:
    if (batch["key"] == bad).any():
        raise ValueError("bad, too")
    return batch["p"] + batch["key"]


def in_stages(data: Dataset, *half: Any, bad: int = -1, **options: Any) -> Dataset:
    """Two stages: the second reads what the first made, and a column that it carried under another name."""
    data = data.predict(Half, fn_constructor_args=half, inputs=["x"], output="p", num_cpus=1, **options)
    data = data.rename_columns({"id": "key"}).drop_columns("x")
    return data.predict(added, fn_args=[bad], inputs=["p", "key"], output="q", concurrency=1)


def run(data: Dataset, out: Path, **options: Any) -> tuple[pa.Table, Any]:
    options = {"engine": "local", "workers": 1, "progress": False, **options}
    result = data.with_options(**options).write_parquet(out)
    return pa.concat_tables([pq.read_table(part) for part in sorted(out.glob("part-*"))]), result


def expected(files: int, *missing: int) -> pa.Table:
    rows = pa.concat_tables([table(number) for number in range(files)])
    rows = rows.filter(pa.array([i not in missing for i in range(len(rows))]))
    ids, x = rows["id"].to_numpy(), rows["x"].to_numpy()
    rows = rows.rename_columns(["key", "x", "word", "tags"]).drop_columns("x")
    return rows.append_column("p", pa.array(x / 2)).append_column("q", pa.array(x / 2 + ids))


def codecs(out: Path, column: int) -> list[tuple[int, str]]:
    """Return the rows of each row group, and how a column of it is compressed."""
    metadata = [pq.read_metadata(part) for part in sorted(out.glob("part-*"))]
    groups = [each.row_group(i) for each in metadata for i in range(each.num_row_groups)]
    return [(group.num_rows, group.column(column).compression) for group in groups]


def test_row_groups_with_rejected_rows_are_decoded_and_all_others_copied(
    source: Path, tmp_path: Path
) -> None:
    data = in_stages(hr.read_parquet(source), (5, PER_FILE + 9), bad=2 * GROUP + 1).accumulate(
        mean=hr.accumulators.Mean("key")
    )
    said = data.with_options(engine="local").explain()
    assert "copied   as they are stored: key, word, tags" in said and "stage 2" in said
    made, result = run(data, tmp_path / "out", on_error="reject", max_errors=10)
    bad = (5, 2 * GROUP + 1, PER_FILE + 9)
    assert made.equals(expected(3, *bad))
    found = codecs(tmp_path / "out", 1)
    assert sorted(found) == sorted([(GROUP - 1, "SNAPPY")] * 3 + [(GROUP, "GZIP")] * 6)
    assert result.ledger.rejected == 3 and result.ledger.written == 3 * PER_FILE - 3
    assert result.metrics["mean"] == pytest.approx(made["key"].to_numpy().mean())
    assert sorted(hr.read_rejected(tmp_path / "out").to_arrow()["id"].to_pylist()) == [*bad]
    assert hr.verify(tmp_path / "out").state == "good"


def test_workers_that_die_batches_that_are_halved_and_parts_by_time(source: Path, tmp_path: Path) -> None:
    half = ((), str(tmp_path / "died"), PER_FILE + 7, 1_500)
    data = in_stages(hr.read_parquet(source), *half, batch_size=2_000)
    made, result = run(data, tmp_path / "out", commit_every=1e-9, shard_rows=2 * PER_FILE)
    assert made.sort_by("key").equals(expected(3))
    assert (tmp_path / "died").exists() and len(list((tmp_path / "out").glob("part-*"))) > 3
    assert result.ledger.written == 3 * PER_FILE
    assert hr.verify(tmp_path / "out").state == "good"


def test_shards_that_cannot_be_copied_are_begun_again(source: Path, tmp_path: Path) -> None:
    """Of one file the row groups are small; in another a page header is damaged, and rows of it are rejected."""
    pq.write_table(table(1), source / "1.parquet", row_group_size=500, compression="gzip")
    chunk = pq.read_metadata(source / "2.parquet").row_group(1).column(2)  # which nobody looks at
    data = bytearray((source / "2.parquet").read_bytes())
    data[chunk.data_page_offset : chunk.data_page_offset + 8] = b"\xff" * 8
    (source / "2.parquet").write_bytes(bytes(data))
    plan = in_stages(hr.read_parquet(source), (5,), bad=GROUP + 1)
    made, result = run(
        plan, tmp_path / "out", on_error="reject", max_errors=10_000, shard_rows=PER_FILE, workers=1
    )
    lost = range(2 * PER_FILE + GROUP, 2 * PER_FILE + 2 * GROUP)
    assert made.equals(expected(3, 5, GROUP + 1, *lost))
    assert result.ledger.rejected == GROUP + 2
    encoded = [(2 * GROUP - 2, "SNAPPY"), (PER_FILE, "SNAPPY"), (2 * GROUP, "SNAPPY")]
    assert sorted(codecs(tmp_path / "out", 1)) == sorted([*encoded, (GROUP, "GZIP")])
    with pytest.raises(hr.errors.UnreadableFile, match=r"row group 1 .*2\.parquet"):
        run(in_stages(hr.read_parquet(source)), tmp_path / "other", shard_rows=PER_FILE)


def test_a_result_that_takes_a_name_which_was_renamed_away_hides_no_values(
    source: Path, tmp_path: Path
) -> None:
    """The model reads a column that is copied; what it gives has the column's first name, and is dropped."""
    seen: list[Any] = []

    def checked(batch: dict[str, Any]) -> Any:
        seen.extend(batch["new"].tolist())
        return batch["new"]

    data = hr.read_parquet(source).rename_columns({"x": "new"})
    data = data.predict(checked, inputs=["new"], output="x").drop_columns("x")
    made, _ = run(data, tmp_path / "out", engine="inline", shard_rows=PER_FILE)
    rows = pa.concat_tables([table(number) for number in range(3)])
    assert seen == rows["x"].to_pylist() == made["new"].to_pylist()
    assert codecs(tmp_path / "out", 1) == [(GROUP, "GZIP")] * 9
