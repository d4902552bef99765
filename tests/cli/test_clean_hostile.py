"""`clean` and `verify` keep to the output, whatever is written in it, and to what they have shown."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import millrace as mr
from millrace.core.work import StagedFile
from millrace.errors import ForeignOutput, JournalDamaged, MillraceError, RunLocked
from millrace.outputs import cleaning
from millrace.run.journal import Journal, Revoked
from millrace.run.output import OutputFolder
from millrace.run.recover import peek

Millrace = Callable[..., Any]


@pytest.fixture
def out(place: Path) -> Path:
    mr.read_parquet("trips/").with_options(shard_rows=100).write_csv(place / "out")
    return place / "out"


@pytest.fixture
def others(place: Path) -> Path:
    """A folder of somebody else's."""
    (place / "others" / "deep").mkdir(parents=True)
    for name in ("letter", "deep/letter"):
        (place / "others" / name).write_text("dear")
    return place / "others"


def all_of(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def the_run(out: Path) -> str:
    return (out / "_millrace" / "current").read_text().strip()


@pytest.mark.parametrize("pointer", ["current", "next"])
@pytest.mark.parametrize("says", [b"../../others", b"..", b"%s/others", b"\xff\xfe", b"x" * 1000])
def test_a_pointer_that_leads_elsewhere_is_not_followed(
    place: Path, out: Path, others: Path, millrace: Millrace, pointer: str, says: bytes
) -> None:
    (out / "_millrace" / pointer).write_bytes(says.replace(b"%s", os.fsencode(place)))
    before = all_of(out), all_of(others)
    for flags in ([], ["--unfinished"], ["--all"]):
        said = millrace("clean", out, *flags, "--yes")
        assert said.code == 1 and "no name of a run" in said.err, said.err
    said = millrace("verify", out, "--json")
    assert (said.code, said.json["status"]) == (1, "damaged")
    assert millrace("inspect", out).code == 1
    with pytest.raises(JournalDamaged, match="no name of a run"):
        mr.range(3).write_csv(out, mode="overwrite")
    assert (all_of(out), all_of(others)) == before


@pytest.mark.parametrize("folder", ["_millrace/RUN/staging", "_millrace/RUN/states", "_rejected"])
def test_links_in_an_output_are_not_followed(
    out: Path, others: Path, millrace: Millrace, folder: str
) -> None:
    """Neither by `clean` nor by a driver that goes on, not even for a moment."""
    run = the_run(out)
    (others / f"part-00000-{run}.arrow").touch()  # what would be removed there
    (out / folder.replace("RUN", run)).symlink_to(others)
    (out / "_SUCCESS").unlink()
    before, changed = all_of(others), others.stat().st_mtime_ns
    assert millrace("clean", out, "--yes").code == 0
    assert all_of(others) == before
    with pytest.raises(ForeignOutput, match="it is a link"):
        mr.read_parquet("trips/").with_options(shard_rows=100).write_csv(out)
    assert (all_of(others), others.stat().st_mtime_ns) == (before, changed)
    assert millrace("clean", out, "--all", "--yes").code == 0
    assert all_of(others) == before


COMMANDS = ["verify", "status", "inspect", "clean", "resume"]
NAMES = ["lock", "current", "next"]
NAMES += [
    f"RUN/{name}" for name in ("journal", "plan", "manifest", "events.jsonl", "report.html", "command.json")
]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", [*NAMES, "../_SUCCESS", "../part-00000-RUN.csv"])
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_links_and_pipes_are_neither_followed_nor_waited_for(
    out: Path, others: Path, millrace: Millrace, name: str, kind: str
) -> None:
    """By any command, nor by a run: what a link leads to stays as it is, byte for byte."""
    path = out / "_millrace" / name.replace("RUN", the_run(out))
    if path.exists():
        path.rename(others / "what it was")
        target = others / "what it was"
    else:
        target = others / "letter"
    before = target.read_bytes(), target.stat().st_mtime_ns
    if kind == "link":
        path.symlink_to(target)
    else:
        os.mkfifo(path)
    for command in COMMANDS:
        said = millrace(command, out)
        assert said.code in (0, 1, 2) and "mistake in Millrace" not in said.err, said.err
    with contextlib.suppress(MillraceError):
        mr.read_parquet("trips/").with_options(shard_rows=100).write_csv(out)
    assert millrace("clean", out, "--all", "--yes").code in (0, 1)
    assert (target.read_bytes(), target.stat().st_mtime_ns) == before


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["lock", "RUN/journal"])
def test_a_file_with_a_second_name_is_not_written_to(
    out: Path, others: Path, millrace: Millrace, name: str
) -> None:
    path = out / "_millrace" / name.replace("RUN", the_run(out))
    path.rename(others / "kept")
    path.hardlink_to(others / "kept")
    before = (others / "kept").read_bytes()
    (out / "_SUCCESS").unlink()
    with pytest.raises(MillraceError, match="second name"):
        mr.read_parquet("trips/").with_options(shard_rows=100).write_csv(out)
    millrace("clean", out, "--yes")
    assert (others / "kept").read_bytes() == before


def test_folders_among_our_files_are_swept(out: Path) -> None:
    run = out / "_millrace" / the_run(out)
    (run / "staging" / "deep" / "er").mkdir(parents=True)
    (run / "states" / "deep").mkdir(parents=True)
    (run / "report.html.1.tmp" / "deep").mkdir(parents=True)
    (out / "_SUCCESS").unlink()
    mr.read_parquet("trips/").with_options(shard_rows=100).write_csv(out)
    assert mr.verify(out).good and not list(run.glob("*/deep"))


def test_rejected_rows_are_not_written_through_a_link(place: Path, others: Path) -> None:
    """The link is there before the first row is rejected."""
    out = place / "out"
    data = mr.read_parquet("trips/").with_options(shard_rows=100, on_error="reject")
    (out / "_millrace").mkdir(parents=True)
    (out / "_rejected").symlink_to(others)
    before = all_of(others)
    with pytest.raises(ForeignOutput, match="it is a link"):
        data.filter(lambda row: 1 / (row["id"] % 7) > 0, version="1").write_csv(out)
    assert all_of(others) == before


def test_a_home_that_is_a_link_is_not_swept(out: Path, others: Path, millrace: Millrace) -> None:
    shutil.rmtree(out / "_millrace")
    (out / "_millrace").symlink_to(others)
    before = all_of(others)
    for flags in ([], ["--all"]):
        assert millrace("clean", out, *flags, "--yes").code == 1
    assert millrace("predict", "fares:Fare", "trips/", "-o", out).code == 1
    assert all_of(others) == before


@pytest.mark.parametrize(
    ("staged", "name"), [("x", "../others/letter"), ("../../../others/letter", "part-00000-{}.csv")]
)
def test_a_journal_with_paths_of_others_is_refused(
    out: Path, others: Path, millrace: Millrace, staged: str, name: str
) -> None:
    import msgspec

    run = the_run(out)
    folder = OutputFolder(out)
    record = next(peek(folder, run)[2].in_force())
    journal, _ = Journal.open(out / "_millrace" / run / "journal", "process")
    journal.append(Revoked(record.shard))
    journal.append(msgspec.structs.replace(record, files=(StagedFile(staged, name.format(run), 100, 4, 0),)))
    journal.sync()
    journal.close()
    folder.close()
    said = millrace("verify", out, "--json")
    assert said.json["status"] == "damaged" and "calls one of its own" in said.out
    for part in out.glob("part-*"):
        part.unlink()
    with pytest.raises(JournalDamaged, match="calls one of its own"):
        mr.read_parquet("trips/").with_options(shard_rows=100).write_csv(out)
    assert (others / "letter").read_text() == "dear"


def test_what_was_listed_before_a_run_went_on_is_not_removed(place: Path, millrace: Millrace) -> None:
    """The question stands on a terminal, and meanwhile somebody resumes: those parts are committed rows now."""
    out, mended = place / "out", place / "mended"

    def picky(row: dict[str, Any]) -> dict[str, Any]:
        if row["id"] == 250 and not mended.exists():
            raise ValueError("not this one")
        return row

    data = mr.read_parquet("trips/").with_options(shard_rows=100).map(picky, version="1")
    with pytest.raises(mr.errors.StepError):
        data.write_csv(out)
    shown = cleaning.leftovers(out, unfinished=True)
    assert any(each.path.startswith("part-") for each in shown)
    mended.touch()
    data.write_csv(out)
    before = all_of(out)
    with pytest.raises(RunLocked, match="since its leftovers were listed"):
        cleaning.remove(out, shown, unfinished=True)
    assert all_of(out) == before
    assert millrace("verify", out).code == 0
