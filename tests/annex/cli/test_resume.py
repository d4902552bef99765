"""`headrace resume` carries out the recorded words, and only these; `headrace clean` removes what nobody needs."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.output.layout import open_output

from .test_predict import rows_of

Headrace = Callable[..., Any]

FAILS_ONCE = """
import os

def score(batch):
    if (batch["id"] == 250).any() and not os.path.exists("mended"):
        raise ValueError("half way")
    return batch["km"]
"""
PREDICT = ("predict", "once:score", "trips/", "-o", "out", "--inputs", "id,km", "--shard-rows", "100")


@pytest.fixture
def half(place: Path, headrace: Headrace) -> Path:
    """An output of which half is done."""
    (place / "once.py").write_text(FAILS_ONCE)
    said = headrace(*PREDICT, "--stats", "stats.json")
    assert said.code == 1 and "half way" in said.err
    stats = json.loads((place / "stats.json").read_text())
    assert stats["status"] == "failed" and stats["exit_code"] == 1
    assert stats["completion_stats"] == {"successful_count": 200, "failed_count": 0, "incomplete_count": 200}
    return place / "out"


def command_of(out: Path) -> Path:
    return next((out / "_headrace").glob("*/command.json"))


def test_it_goes_on_from_anywhere(
    half: Path, place: Path, headrace: Headrace, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "mended").touch()
    before = {path.name for path in half.glob("part-*")}
    monkeypatch.chdir("/")
    said = headrace("resume", half, "--json", "--workers", "1")
    assert said.code == 0, said.err
    assert said.json["rows"]["written"] == 400 and said.json["resumed"] and said.json["command"] == "predict"
    assert f"cd {place} && headrace predict once:score" in said.err
    assert before < {path.name for path in half.glob("part-*")} and len(rows_of(half)) == 400
    assert hr.verify(half).good
    again = headrace("resume", half)
    assert (again.code, again.out) == (0, f"{half} is complete: there is nothing left to do.\n")
    assert json.loads(command_of(half).read_text())["argv"] == [*PREDICT, "--stats", "stats.json"]


def test_a_dry_run_only_shows(half: Path, headrace: Headrace) -> None:
    said = headrace("resume", half, "--dry-run", "--json")
    assert said.code == 0 and said.json["argv"][-2:] == ["--on-change", "refuse"]
    assert not (half / "_SUCCESS").exists()


def test_code_that_was_mended_is_said(half: Path, place: Path, headrace: Headrace) -> None:
    (place / "once.py").write_text(
        FAILS_ONCE.replace("half way", "not any more").replace("== 250", "== 9999")
    )
    import sys

    sys.modules.pop("once")
    said = headrace("resume", half)
    assert said.code == 2 and "is not the same as when the run" in said.err
    assert "--on-change continue keeps the rows" in said.err and "on_change=" not in said.err
    sys.modules.pop("once")
    assert headrace("resume", half, "--on-change", "continue").code == 0
    assert len(rows_of(half)) == 400
    sys.modules.pop("once")


def change(out: Path, **values: Any) -> None:
    path = command_of(out)
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize(
    ("prepare", "told"),
    [
        (lambda out: change(out, cwd="/nowhere"), "cannot be entered"),
        (lambda out: change(out, argv=["clean", "out", "--all", "--yes"]), "no command that can be run again"),
        (lambda out: change(out, argv=[]), "no command that can be run again"),
        (lambda out: change(out, output="/tmp"), "was written as /tmp"),
        (lambda out: change(out, cwd=".", output="out"), "not a full path"),
        (lambda out: change(out, cwd="."), "not a full path"),
        (lambda out: change(out, output="out"), "not a full path"),
        (lambda out: change(out, cwd="/proc/self/cwd"), "not a full path"),
        (lambda out: change(out, output="/proc/self/cwd/out"), "not a full path"),
        (lambda out: change(out, output=f"{out}/../out"), "not a full path"),
        (lambda out: change(out, output=f"{out}\0"), "not a full path"),
        (lambda out: change(out, output=f"{out}\ud800"), "not a full path"),
        (lambda out: change(out, argv=["predict", 3]), "It is damaged"),
        (lambda out: command_of(out).write_text("import os"), "It is damaged"),
        (lambda out: command_of(out).unlink(), "written by a program"),
        (lambda out: command_of(out).chmod(0o666), "others may write to it"),
        (lambda out: change(out, argv=["run", str(out / "evil.py")]), "lies inside the output"),
        (lambda out: change(out, argv=["predict", "evil.pkl", "trips", "-o", "out"]), "There is no model at"),
        (lambda out: change(out, argv=["predict", "out/evil.onnx", "trips", "-o", "out"]), "lies inside the output"),
        (lambda out: change(out, argv=["predict", "evil:f", "../trips"], cwd=str(out)), "lies inside the output"),
        (lambda out: change(out, argv=["predict", "out.evil:f", "trips", "-o", "out"]), "lies inside the output"),
    ],
)  # fmt: skip
def test_nothing_in_an_output_is_ever_run(
    half: Path, place: Path, headrace: Headrace, prepare: Callable[[Path], None], told: str
) -> None:
    for name in ("evil.py", "evil.onnx"):
        (half / name).write_text("raise SystemExit('pwned')")
    prepare(half)
    before = sorted(os.listdir(half))
    said = headrace("resume", half)
    assert said.code in (1, 2) and told in said.err and "pwned" not in said.err, said.err
    assert sorted(os.listdir(half)) == before


def test_a_script_beside_an_unpacked_output_is_not_run(
    half: Path, place: Path, headrace: Headrace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who packs an output does not know where it is unpacked, and so names it from where the reader stands."""
    there = place / "unpacked"
    there.mkdir()
    half.rename(there / "out")
    (there / "evil.py").write_text("open('ran', 'w').close()")
    monkeypatch.chdir(there)
    for cwd, output in ((".", "out"), ("/proc/self/cwd", "/proc/self/cwd/out"), ("", "out")):
        change(there / "out", cwd=cwd, output=output, argv=["run", "evil.py"])
        said = headrace("resume", "out")
        assert said.code == 2 and "not a full path" in said.err, said.err
        assert not (there / "ran").exists()


def test_an_output_behind_a_link_is_resumed(place: Path, headrace: Headrace) -> None:
    (place / "once.py").write_text(FAILS_ONCE)
    (place / "disk").mkdir()
    (place / "out").symlink_to("disk")
    assert headrace(*PREDICT).code == 1
    (place / "mended").touch()
    assert json.loads(command_of(place / "out").read_text())["output"] == str((place / "disk").resolve())
    said = headrace("resume", "out")
    assert said.code == 0, said.err


def test_other_outputs(place: Path, headrace: Headrace) -> None:
    assert headrace("resume", "trips").code == 2
    assert headrace("resume").code == 2


def test_a_script_is_resumed(place: Path, headrace: Headrace) -> None:
    (place / "job.py").write_text(
        "import sys, headrace as hr, once\n"
        "dataset = hr.read_parquet('trips').predict(once.score, inputs=['id', 'km'])\n"
        "dataset = dataset.with_options(shard_rows=100)\nassert sys.argv[1:] == ['--day', '1']\n"
    )
    (place / "once.py").write_text(FAILS_ONCE)
    assert headrace("run", "job.py", "-o", "out", "--", "--day", "1").code == 1
    (place / "mended").touch()
    said = headrace("resume", "out")
    assert said.code == 0 and len(rows_of(place / "out")) == 400, said.err


# ---------------------------------------------------------------- clean


def litter(out: Path) -> None:
    run = command_of(out).parent
    (run / "staging").mkdir(exist_ok=True)
    (run / "staging" / "00002-0-1-abcd.staged").write_bytes(b"x" * 1000)
    (out / "_headrace" / "abcdefgh").mkdir()
    (out / "_headrace" / "abcdefgh" / "plan").write_bytes(b"y" * 10)
    (out / f"part-00003-{run.name}.parquet").write_bytes(b"z")


def test_leftovers_go_and_the_run_goes_on(half: Path, place: Path, headrace: Headrace) -> None:
    assert headrace("clean", half).out == f"{half}: nothing is left over.\n"
    litter(half)
    said = headrace("clean", half)
    assert said.code == 0 and "1011 B. Nothing was removed; to remove it: headrace clean" in said.out
    found = headrace("clean", half, "--json").json
    assert (found["bytes"], len(found["items"]), found["removed"]) == (1011, 3, False)
    assert (half / "_headrace" / "abcdefgh").exists()
    said = headrace("clean", half, "--yes", "--json")
    assert said.code == 0 and said.json["removed"] is True
    assert headrace("clean", half, "--json").json["items"] == []
    assert len(rows_of(half)) == 200
    (place / "mended").touch()
    assert headrace("resume", half).code == 0 and len(rows_of(half)) == 400
    assert headrace("clean", half).out == f"{half}: nothing is left over.\n"


def test_a_run_that_is_given_up(half: Path, headrace: Headrace) -> None:
    (half / "mine.txt").write_text("mine")
    found = {item["path"] for item in headrace("clean", half, "--unfinished", "--json").json["items"]}
    assert len(found) == 3 and len(rows_of(half)) == 200
    assert headrace("clean", half, "--unfinished", "-y").code == 0
    assert sorted(os.listdir(half)) == ["mine.txt"]


def test_a_complete_output_stays_unless_all_is_said(half: Path, place: Path, headrace: Headrace) -> None:
    (place / "mended").touch()
    assert headrace("resume", half).code == 0
    assert headrace("clean", half, "--unfinished", "--json").json["items"] == []
    said = headrace("clean", half, "--all")
    assert "_SUCCESS" in said.out and "Nothing was removed" in said.out and len(rows_of(half)) == 400
    assert headrace("clean", half, "--all", "--yes").code == 0 and not half.exists()
    assert headrace("clean", half, "--all", "--unfinished").code == 2


def test_never_while_somebody_writes(half: Path, headrace: Headrace) -> None:
    litter(half)
    folder = open_output(half)
    try:
        said = headrace("clean", half, "--all", "--yes")
        assert said.code == 1 and f"being written by process {os.getpid()}" in said.err
    finally:
        folder.close()


def test_parts_that_are_gone_are_made_again(half: Path, place: Path, headrace: Headrace) -> None:
    (place / "mended").touch()
    assert headrace("resume", half).code == 0
    parts = sorted(half.glob("part-*"))
    parts[0].unlink()
    parts[1].write_bytes(parts[1].read_bytes()[:-1])
    said = headrace("resume", half, "--json")
    assert (said.code, said.json["rows"]["written"]) == (0, 400), said.err
    assert hr.verify(half).good and len(rows_of(half)) == 400


def test_a_command_for_another_folder_is_not_carried_out(half: Path, place: Path, headrace: Headrace) -> None:
    other = place / "other"
    hr.range(5).write_csv(other)
    before = rows_in_csv(other)
    known = json.loads(command_of(half).read_text())
    known["argv"] = [*PREDICT[:4], str(other), *PREDICT[5:], "--mode", "overwrite"]
    command_of(half).write_text(json.dumps(known))
    (place / "mended").touch()
    said = headrace("resume", half)
    assert said.code == 2 and "writes to another folder" in said.err
    assert rows_in_csv(other) == before


def rows_in_csv(out: Path) -> list[str]:
    return [line for part in sorted(out.glob("part-*")) for line in part.read_text().splitlines()]


@pytest.mark.parametrize("kind", ["pipe", "endless", "link"])
def test_a_command_that_is_no_file_is_not_waited_for(
    half: Path, place: Path, headrace: Headrace, kind: str
) -> None:
    command = command_of(half)
    command.rename(place / "kept.json")
    if kind == "pipe":
        os.mkfifo(command)
    else:
        command.symlink_to("/dev/zero" if kind == "endless" else place / "kept.json")
    said = headrace("resume", half, "--dry-run")
    assert said.code == 2 and "no command line" in said.err


def test_what_is_shown_of_a_command_is_what_is_there(half: Path, headrace: Headrace) -> None:
    """Nothing in it makes a terminal hide a part of it; and a shell reads it as the same words."""
    known = json.loads(command_of(half).read_text())
    words = ["run", "job.py", "--", "\x1b[2K\r", "\u9b2f\u200b'\\", "a b\n"]
    command_of(half).write_text(json.dumps({**known, "argv": words}))
    said = headrace("resume", half, "--dry-run")
    assert said.code == 0 and "\x1b" not in said.err and "\r" not in said.err and said.err.count("\n") == 1
    line = said.err.partition(" && headrace ")[2]
    script = f"printf '%s\\0' {line}"
    found = subprocess.run(
        ["bash", "-c", script], capture_output=True, env={**os.environ, "LC_ALL": "C.UTF-8"}, timeout=20
    )
    shown = found.stdout.decode().split("\0")[:-1]
    assert [word for word in shown if word not in ("--on-change", "refuse")] == words
    assert "\x1b" not in headrace("status", half).out
