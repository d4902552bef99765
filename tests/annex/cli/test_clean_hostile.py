"""`clean` and `verify` keep to the output, whatever is written in it, and to what they have shown."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.core.work import StagedFile
from headrace.errors import ForeignOutput, HeadraceError, JournalDamaged, RunLocked
from headrace.output import clean as cleaning
from headrace.output.journal import Journal
from headrace.output.journal_state import Revoked
from headrace.output.layout import open_output, read_plan
from headrace.output.recover import peek

Headrace = Callable[..., Any]


@pytest.fixture
def out(place: Path) -> Path:
    hr.read_parquet("trips/").with_options(shard_rows=100).write_csv(place / "out")
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
    return (out / "_headrace" / "current").read_text().strip()


@pytest.mark.parametrize("pointer", ["current", "next"])
@pytest.mark.parametrize("says", [b"../../others", b"..", b"%s/others", b"\xff\xfe", b"x" * 1000])
def test_a_pointer_that_leads_elsewhere_is_not_followed(
    place: Path, out: Path, others: Path, headrace: Headrace, pointer: str, says: bytes
) -> None:
    (out / "_headrace" / pointer).write_bytes(says.replace(b"%s", os.fsencode(place)))
    before = all_of(out), all_of(others)
    for flags in ([], ["--unfinished"], ["--all"]):
        said = headrace("clean", out, *flags, "--yes")
        assert said.code == 1 and "not the name of a run" in said.err, said.err
    said = headrace("verify", out, "--json")
    assert (said.code, said.json["status"]) == (1, "damaged")
    with pytest.raises(JournalDamaged, match="not the name of a run"):
        hr.range(3).write_csv(out, mode="overwrite")
    assert (all_of(out), all_of(others)) == before


@pytest.mark.parametrize("folder", ["_headrace/RUN/staging", "_headrace/RUN/states", "_rejected"])
def test_links_in_an_output_are_not_followed(
    out: Path, others: Path, headrace: Headrace, folder: str
) -> None:
    """Neither by `clean` nor by a driver that goes on, not even for a moment."""
    run = the_run(out)
    (others / f"part-00000-{run}.arrow").touch()  # what would be removed there
    (out / folder.replace("RUN", run)).symlink_to(others)
    (out / "_SUCCESS").unlink()
    before, changed = all_of(others), others.stat().st_mtime_ns
    assert headrace("clean", out, "--yes").code == 0
    assert all_of(others) == before
    with pytest.raises(ForeignOutput, match="it is a link"):
        hr.read_parquet("trips/").with_options(shard_rows=100).write_csv(out)
    assert (all_of(others), others.stat().st_mtime_ns) == (before, changed)
    assert headrace("clean", out, "--all", "--yes").code == 0
    assert all_of(others) == before


COMMANDS = ["verify", "status", "clean", "resume"]
NAMES = ["lock", "current", "next"]
NAMES += [
    f"RUN/{name}" for name in ("journal", "plan", "manifest", "events.jsonl", "report.html", "command.json")
]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", [*NAMES, "../_SUCCESS", "../part-00000-RUN.csv"])
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_links_and_pipes_are_neither_followed_nor_waited_for(
    out: Path, others: Path, headrace: Headrace, name: str, kind: str
) -> None:
    """By any command, nor by a run: what a link leads to stays as it is, byte for byte."""
    path = out / "_headrace" / name.replace("RUN", the_run(out))
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
        said = headrace(command, out)
        assert said.code in (0, 1, 2) and "bug in Headrace" not in said.err, said.err
    with contextlib.suppress(HeadraceError):
        hr.read_parquet("trips/").with_options(shard_rows=100).write_csv(out)
    assert headrace("clean", out, "--all", "--yes").code in (0, 1, 2)
    assert (target.read_bytes(), target.stat().st_mtime_ns) == before


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["lock", "RUN/journal"])
def test_a_file_with_a_second_name_is_not_written_to(
    out: Path, others: Path, headrace: Headrace, name: str
) -> None:
    path = out / "_headrace" / name.replace("RUN", the_run(out))
    path.rename(others / "kept")
    path.hardlink_to(others / "kept")
    before = (others / "kept").read_bytes()
    (out / "_SUCCESS").unlink()
    with pytest.raises(HeadraceError, match="second name"):
        hr.read_parquet("trips/").with_options(shard_rows=100).write_csv(out)
    headrace("clean", out, "--yes")
    assert (others / "kept").read_bytes() == before


def test_folders_among_our_files_are_swept(out: Path) -> None:
    run = out / "_headrace" / the_run(out)
    (run / "staging" / "deep" / "er").mkdir(parents=True)
    (run / "states" / "deep").mkdir(parents=True)
    (run / "report.html.1.tmp" / "deep").mkdir(parents=True)
    (out / "_SUCCESS").unlink()
    hr.read_parquet("trips/").with_options(shard_rows=100).write_csv(out)
    assert hr.verify(out).good and not list(run.glob("*/deep"))


def test_rejected_rows_are_not_written_through_a_link(place: Path, others: Path) -> None:
    """The link is there before the first row is rejected."""
    out = place / "out"
    data = hr.read_parquet("trips/").with_options(shard_rows=100, on_error="reject")
    (out / "_headrace").mkdir(parents=True)
    (out / "_rejected").symlink_to(others)
    before = all_of(others)
    with pytest.raises(ForeignOutput, match="it is a link"):
        data.filter(lambda row: 1 / (row["id"] % 7) > 0, version="1").write_csv(out)
    assert all_of(others) == before


def test_a_home_that_is_a_link_is_not_swept(out: Path, others: Path, headrace: Headrace) -> None:
    shutil.rmtree(out / "_headrace")
    (out / "_headrace").symlink_to(others)
    before = all_of(others)
    for flags in ([], ["--all"]):
        assert headrace("clean", out, *flags, "--yes").code == 2
    assert headrace("predict", "fares:Fare", "trips/", "-o", out).code == 2
    assert all_of(others) == before


@pytest.mark.parametrize(
    ("staged", "name"), [("x", "../others/letter"), ("../../../others/letter", "part-00000-{}.csv")]
)
def test_a_journal_with_paths_of_others_is_refused(
    out: Path, others: Path, headrace: Headrace, staged: str, name: str
) -> None:
    import msgspec

    run = the_run(out)
    folder = open_output(out)
    record = next(peek(folder, run, read_plan(folder.folder(run)))[2].in_force())
    journal, _ = Journal.open(out / "_headrace" / run / "journal", "process")
    journal.append(Revoked(record.shard))
    journal.append(msgspec.structs.replace(record, files=(StagedFile(staged, name.format(run), 100, 4, 0),)))
    journal.sync()
    journal.close()
    folder.close()
    said = headrace("verify", out, "--json")
    assert said.json["status"] == "damaged" and "not a name that Headrace gives" in said.out
    for part in out.glob("part-*"):
        part.unlink()
    with pytest.raises(JournalDamaged, match="not a name that Headrace gives"):
        hr.read_parquet("trips/").with_options(shard_rows=100).write_csv(out)
    assert (others / "letter").read_text() == "dear"


def test_what_was_listed_before_a_run_went_on_is_not_removed(place: Path, headrace: Headrace) -> None:
    """The question stands on a terminal, and meanwhile somebody resumes: those parts are committed rows now."""
    out, mended = place / "out", place / "mended"

    def picky(row: dict[str, Any]) -> dict[str, Any]:
        if row["id"] == 250 and not mended.exists():
            raise ValueError("not this one")
        return row

    data = hr.read_parquet("trips/").with_options(shard_rows=100).map(picky, version="1")
    with pytest.raises(hr.errors.StepError):
        data.write_csv(out)
    shown = cleaning.leftovers(out, unfinished=True)
    assert any(each.path.startswith("part-") for each in shown)
    mended.touch()
    data.write_csv(out)
    before = all_of(out)
    with pytest.raises(RunLocked, match="since its leftovers were listed"):
        cleaning.remove(out, shown, unfinished=True)
    assert all_of(out) == before
    assert headrace("verify", out).code == 0


def test_a_run_that_was_abandoned_goes_with_its_parts(out: Path, headrace: Headrace) -> None:
    before = all_of(out)
    (out / "_headrace" / "aaaaaaaa").mkdir()
    (out / "part-00099-aaaaaaaa.csv").write_text("id\n")
    assert headrace("clean", out, "--yes").code == 0
    assert all_of(out) == before
