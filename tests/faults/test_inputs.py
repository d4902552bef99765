"""Input that changes between a run that was interrupted and the one that goes on."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.dataset.dataset import Dataset
from headrace.errors import HeadraceError, InputChanged
from headrace.result import Result
from headrace.sources.lines import BinarySource
from headrace.sources.parquet.source import ParquetSource

from .invariants import check, parts, rows_of
from .job import FILES, ROWS, Job, write_input


@pytest.fixture
def cut(source: Path, tmp_path: Path) -> Job:
    """A run that ended after its first shards; its input may be changed."""
    folder = tmp_path / "in"
    shutil.copytree(source, folder)
    job = Job(str(folder), str(tmp_path / "out"))
    with pytest.raises(HeadraceError):
        job.here({"attempt.started": "EIO@4"})
    assert 3 <= len(parts(Path(job.output))) < FILES - 1
    return job


def test_a_file_of_a_committed_shard_changed(cut: Job) -> None:
    before = rows_of(Path(cut.output))
    old = (Path(cut.source) / "in-00.parquet").read_bytes()
    times = (Path(cut.source) / "in-00.parquet").stat()
    write_input(Path(cut.source), 0, range(5000, 5100))
    with pytest.raises(InputChanged, match=r"in-00\.parquet") as caught:
        cut.here()
    assert "\n" not in str(caught.value)
    assert rows_of(Path(cut.output)) == before
    (Path(cut.source) / "in-00.parquet").write_bytes(old)
    os.utime(Path(cut.source) / "in-00.parquet", ns=(times.st_atime_ns, times.st_mtime_ns))
    cut.here()
    check(Path(cut.output), cut.expected(), cut.here)


@pytest.mark.parametrize("rows", [0, 30, ROWS, 700])
def test_a_file_that_is_still_to_be_read_changed(cut: Job, rows: int) -> None:
    write_input(Path(cut.source), 6, range(6000, 6000 + rows))
    assert cut.here().resumed
    check(Path(cut.output), cut.expected(), cut.here)


def test_the_first_driver_that_sees_the_change_is_killed(cut: Job) -> None:
    write_input(Path(cut.source), 6, range(6000, 6030))
    assert cut.start({"attempt.started": "kill-driver@2"}).wait()[0] == -9
    write_input(Path(cut.source), 7, range(7000, 7030))
    cut.here()
    check(Path(cut.output), cut.expected(), cut.here)


@pytest.mark.parametrize("number", [0, 3, 7])
def test_a_file_that_was_empty_has_rows(tmp_path: Path, number: int) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for i in range(FILES):
        write_input(folder, i, range(i * ROWS, i * ROWS + (0 if i == number else ROWS)))
    job = Job(str(folder), str(tmp_path / "out"))
    with pytest.raises(HeadraceError):
        job.here({"attempt.started": "EIO@4"})
    write_input(folder, number, range(number * ROWS, number * ROWS + 50))
    if number == 0:  # what is around it is committed
        with pytest.raises(InputChanged, match="had no rows"):
            job.here()
        job.here(mode="overwrite")
    else:
        assert job.here().resumed
    check(Path(job.output), job.expected(), job.here)


def test_new_and_changed_at_once(cut: Job) -> None:
    write_input(Path(cut.source), 6, range(6000, 6030))
    expected = cut.expected()
    shutil.copy(Path(cut.source) / "in-00.parquet", Path(cut.source) / "a-new-first.parquet")

    def again() -> Result:
        with pytest.warns(UserWarning, match="1 input files? (is|are) new"):
            return cut.here()

    again()
    check(Path(cut.output), expected, again)


@pytest.mark.parametrize("number", [0, 7])
def test_a_file_is_gone(cut: Job, number: int) -> None:
    path = Path(cut.source) / f"in-{number:02d}.parquet"
    path.rename(path.with_suffix(".away"))
    before = rows_of(Path(cut.output))
    with pytest.raises(InputChanged, match=rf"in-{number:02d}\.parquet.*gone"):
        cut.here()
    assert rows_of(Path(cut.output)) == before
    path.with_suffix(".away").rename(path)
    cut.here()
    check(Path(cut.output), cut.expected(), cut.here)


def test_a_file_that_a_limit_never_reached_may_go(cut: Job, tmp_path: Path) -> None:
    job = Job(cut.source, str(tmp_path / "limited"), limit=150)
    job.here()
    expected = job.expected()
    (Path(cut.source) / "in-07.parquet").unlink()
    check(Path(job.output), expected, job.here)


def _size(batch: dict[str, Any]) -> dict[str, Any]:
    return {"size": [len(data) for data in batch["bytes"]]}


@pytest.mark.parametrize("bulk", [2, 9 << 20])
def test_one_of_many_files_in_a_split_changed(tmp_path: Path, bulk: int, monkeypatch: Any) -> None:
    """Splits of several files keep their bounds, so no file is read twice or left out."""
    monkeypatch.setattr("headrace.sources.file_source.SPLIT_FILES", 3)
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(12):
        (folder / f"{number:02d}").write_bytes(b"x" * (number + 1))

    def run(wrap: Callable[[Dataset], Dataset] = lambda dataset: dataset) -> Result:
        dataset = Dataset.from_source(BinarySource(str(folder))).map_batches(_size)
        dataset = dataset.with_options(engine="inline", progress=False, shard_rows=3)
        return dataset.write_parquet(str(tmp_path / "out"))

    from headrace.core import failpoints

    failpoints.activate({"attempt.started": "EIO@2"})
    with pytest.raises(HeadraceError):
        run()
    failpoints.activate({})
    (folder / "10").write_bytes(b"x" * bulk)
    assert run().resumed
    sizes = [(folder / f"{number:02d}").stat().st_size for number in range(12)]
    check(tmp_path / "out", [{"size": size} for size in sizes], run)


def test_a_file_without_rows_that_has_some_when_the_run_has_finished_is_no_silent_loss(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for number, ids in enumerate([[1, 2], [], [3], []]):
        pq.write_table(pa.table({"id": pa.array(ids, pa.int64())}), folder / f"{number}.parquet")

    def run() -> Result:
        dataset = Dataset.from_source(ParquetSource(str(folder))).with_options(
            engine="inline", progress=False
        )
        return dataset.write_parquet(str(tmp_path / "out"))

    assert run().rows == 3
    (folder / "3.parquet").unlink()
    assert run().rows == 3  # there was nothing in it
    pq.write_table(pa.table({"id": [7]}), folder / "1.parquet")
    with pytest.raises(InputChanged, match=r"1\.parquet had no rows"):
        run()
