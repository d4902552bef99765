"""The journal of an interrupted run, cut or damaged anywhere: resumed exactly, or refused untouched."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import msgspec
import pytest

import headrace as hr
from headrace.errors import HeadraceError, JournalDamaged
from headrace.output.journal import Journal

from .invariants import check, stamps
from .job import Job, make_input

PIECES = 8


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Job, Path]:
    """A run with some shards committed and published, and the path of its journal below the output."""
    folder = tmp_path_factory.mktemp("torn")
    job = Job(str(make_input(folder / "in", rows=30)), str(folder / "out"), options={"shard_rows": 30})
    with pytest.raises(HeadraceError):
        job.here({"attempt.started": "EIO@5"})
    run = (folder / "out" / "_headrace" / "current").read_text().strip()
    return job, Path("_headrace") / run / "journal"


def copy(job: Job, folder: Path) -> Job:
    shutil.copytree(job.output, folder / "out")
    return Job(job.source, str(folder / "out"), options=job.options)


def test_a_plan_of_another_version_is_refused_and_says_whose_it_is(
    interrupted: tuple[Job, Path], tmp_path: Path
) -> None:
    job, journal = copy(interrupted[0], tmp_path), interrupted[1]
    path = (Path(job.output) / journal).with_name("plan")
    plan = msgspec.msgpack.decode(path.read_bytes()[32:])
    for changed in ({"shards": {"in": "a tree"}}, {"code": 3}):
        data = msgspec.msgpack.encode({**plan, **changed, "headrace": "9.8.7"})
        path.write_bytes(hashlib.sha256(data).digest() + data)
        with pytest.raises(JournalDamaged, match=r"does not know: Headrace 9\.8\.7 has written it"):
            job.here()
        assert hr.verify(job.output).state == "damaged"


def test_a_record_of_a_newer_version_refuses_the_run(interrupted: tuple[Job, Path], tmp_path: Path) -> None:
    job, journal = copy(interrupted[0], tmp_path), interrupted[1]
    opened, _ = Journal.open(Path(job.output) / journal, "process")
    opened.append(["later", "than", "this"])  # type: ignore[arg-type]
    opened.sync()
    opened.close()
    with pytest.raises(JournalDamaged, match="another version of Headrace has written it"):
        job.here()
    found = hr.verify(job.output)
    assert (found.state, found.findings[0].kind) == ("damaged", "journal")


@pytest.mark.parametrize("piece", range(PIECES + 1))
def test_torn(interrupted: tuple[Job, Path], tmp_path: Path, piece: int) -> None:
    job, journal = copy(interrupted[0], tmp_path), interrupted[1]
    path = Path(job.output) / journal
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size * piece // PIECES)
    job.here()
    check(Path(job.output), job.expected(), job.here)


def test_flipped_in_the_last_record_of_a_finished_run(interrupted: tuple[Job, Path], tmp_path: Path) -> None:
    job, journal = copy(interrupted[0], tmp_path), interrupted[1]
    job.here()
    before = stamps(Path(job.output))
    path = Path(job.output) / journal
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    job.here()
    check(Path(job.output), job.expected(), job.here)
    after = stamps(Path(job.output))
    assert {name: after[name] for name in after if name != "_SUCCESS"} == {
        name: before[name] for name in before if name != "_SUCCESS"
    }
