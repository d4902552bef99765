"""Outputs that cannot be: refused in one paragraph, and nothing is left behind."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from headrace.dataset.dataset import Dataset
from headrace.errors import ForeignOutput, JournalDamaged, OutputWriteFailed, SinkError
from headrace.sources.parquet.source import ParquetSource

from .invariants import check
from .job import Job


def refused(job: Job, kind: type[SinkError | JournalDamaged]) -> str:
    """Run, expect ``kind``, and see that nothing changed anywhere near."""
    around = Path(job.output).parent
    before = _tree(around)
    with pytest.raises(kind) as caught:
        job.here()
    text = str(caught.value)
    assert "\n" not in text and text.endswith("."), text
    assert _tree(around) == before
    return text


def _tree(folder: Path) -> list[tuple[str, int]]:
    if not folder.is_dir() or str(folder).startswith("/proc"):
        return []
    return sorted((str(path), path.stat().st_size if path.is_file() else 0) for path in folder.rglob("*"))


def test_a_file(job: Job) -> None:
    Path(job.output).write_text("mine")
    assert "is a file" in refused(job, ForeignOutput)


@pytest.mark.parametrize("path", ["/dev/null/out", "/proc/out", "/proc/self/out", "/sys/out/deep"])
def test_where_nobody_may_write(job: Job, path: str) -> None:
    assert "cannot be written" in refused(Job(job.source, path), OutputWriteFailed)


@pytest.mark.parametrize("name", ["data.parquet", "_SUCCESS", "_delta_log", "sub/.keep"])
def test_foreign_files(job: Job, name: str) -> None:
    (Path(job.output) / name).parent.mkdir(parents=True)
    (Path(job.output) / name).write_text("mine")
    assert name.split("/")[0] in refused(job, ForeignOutput)


def test_hidden_files_do_not_disturb(job: Job) -> None:
    Path(job.output).mkdir()
    (Path(job.output) / ".DS_Store").write_text("")
    job.here()
    assert (Path(job.output) / ".DS_Store").exists()


def test_an_empty_folder_holds_no_part_when_the_run_fails(job: Job) -> None:
    Path(job.output).mkdir()
    with pytest.raises(OutputWriteFailed):
        job.here({"stage.write": "ENOSPC@*"})
    assert os.listdir(job.output) == ["_headrace"]  # with the record of what happened


@pytest.mark.parametrize("lost", ["missing", "empty"])
def test_the_run_whose_name_is_lost_stays(job: Job, lost: str) -> None:
    job.here()
    pointer = Path(job.output) / "_headrace" / "current"
    run = pointer.read_text()
    pointer.write_text("")
    if lost == "missing":
        pointer.unlink()
    assert f"write {run.strip()} into that file" in refused(job, JournalDamaged)
    pointer.write_text(run)
    assert job.here().resumed
    check(Path(job.output), job.expected(), job.here)


def test_made_folders_hold_only_the_record_when_the_run_fails(job: Job, tmp_path: Path) -> None:
    with pytest.raises(OutputWriteFailed):
        Job(job.source, str(tmp_path / "a" / "b" / "out")).here({"stage.write": "ENOSPC@*"})
    assert os.listdir(tmp_path / "a" / "b" / "out") == ["_headrace"]


@pytest.fixture
def own(source: Path, tmp_path: Path) -> Path:
    """An input folder of one's own, with a folder in it."""
    shutil.copytree(source, tmp_path / "in")
    return tmp_path / "in"


@pytest.mark.parametrize("below", [".", "out", "deep/er/out"])
def test_inside_the_input(own: Path, below: str) -> None:
    text = refused(Job(str(own), str(own / below)), ForeignOutput)
    assert "inside its own input" in text


@pytest.mark.parametrize(
    ("pattern", "below"),
    [("*.parquet", "."), ("**/*.parquet", "out"), ("**", "a/out"), ("*", "out"), ("o*/*.parquet", "out")],
)
def test_inside_what_a_pattern_matches(own: Path, pattern: str, below: str) -> None:
    (own / "other").mkdir()
    shutil.copy(own / "in-00.parquet", own / "other")
    refused(Job(str(own / pattern), str(own / below)), ForeignOutput)


@pytest.mark.parametrize(
    ("pattern", "below"), [("*.parquet", "out"), ("i*/*.parquet", "out"), ("in-0?.parquet", "o")]
)
def test_beside_what_a_pattern_matches(own: Path, pattern: str, below: str) -> None:
    (own / "inner").mkdir()
    shutil.copy(own / "in-00.parquet", own / "inner")
    dataset = Dataset.from_source(ParquetSource(str(own / pattern))).with_options(
        engine="inline", progress=False
    )
    assert dataset.write_parquet(str(own / below)).rows > 0
    assert dataset.write_parquet(str(own / below)).resumed


def test_through_a_link(own: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(own)
    refused(Job(str(own), str(tmp_path / "link" / "out")), ForeignOutput)
    refused(Job(str(tmp_path / "link"), str(own / "out")), ForeignOutput)


def test_the_input_inside_the_output(own: Path, tmp_path: Path) -> None:
    assert "inside the output" in refused(Job(str(own), str(tmp_path)), ForeignOutput)


def test_a_link_to_a_folder_is_a_folder(job: Job, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    Path(job.output).symlink_to(tmp_path / "real")
    job.here()
    check(Path(job.output), job.expected(), job.here)
