"""`headrace status` and `headrace report`: of runs that are complete, failed, or going on, seen from outside."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headrace as hr

from .test_terminal import on_a_terminal

Headrace = Callable[..., Any]
FIRST = ["command", "status", "exit_code"]
STATUS = [
    *FIRST, "output", "run", "number", "error", "required", "rows_read", "rows_in_all", "rows_half_done",
    "rows_written", "rows_rejected", "rows_nulled", "rows_per_second", "shards_done", "shards",
    "bytes", "seconds", "seconds_left", "seconds_silent", "drivers", "stages", "spent", "memory",
    "language_model", "batches", "machines", "incidents", "runs", "report", "gone",
]  # fmt: skip


def test_of_a_complete_run(headrace: Headrace) -> None:
    assert headrace("predict", "fares:Fare", "trips", "-i", "km", "-o", "out").code == 0
    said = headrace("status", "out")
    assert said.code == 0 and "complete, after" in said.out and "400 rows" in said.out
    assert headrace("status", "out", "--watch").out == said.out
    found = headrace("status", "out", "--json").json
    assert list(found) == STATUS
    assert (found["status"], found["rows_written"], found["rows_rejected"]) == ("complete", 400, 0)
    assert found["report"].endswith("report.html") and found["report"] in said.out


def test_of_an_output_whose_files_are_gone(headrace: Headrace, place: Path) -> None:
    words = ("predict", "fares:Fare", "trips", "-i", "km", "-o", "out", "-O", "shard_rows=100")
    assert headrace(*words).code == 0
    parts = sorted((place / "out").glob("part-*"))
    parts[1].unlink()
    parts[2].write_bytes(b"cut")
    said = headrace("status", "out")
    assert said.code == 1
    assert "damaged: it was complete after" in said.out
    assert f"2 of 4 files are gone, or of another size, {parts[1].name} the first" in said.out
    found = headrace("status", "out", "--json").json
    assert (found["status"], found["exit_code"]) == ("damaged", 1) and parts[1].name in found["gone"]
    assert "is complete" not in headrace("resume", "out").out
    assert headrace("status", "out").code == 0


def test_of_an_output_whose_table_is_gone(headrace: Headrace, place: Path) -> None:
    data = hr.range(10).with_options(engine="inline", progress=False)
    data.write_sql("t", f"sqlite:///{place}/a.db", output=place / "sql")
    data.write_delta(place / "lake", output="run")
    next((place / "sql").glob("part-*")).unlink()  # the rows are in the table
    for out in ("sql", "lake/run"):
        assert headrace("status", out).code == 0
    (place / "a.db").unlink()
    shutil.rmtree(place / "lake/_delta_log")
    for out in ("sql", "lake/run"):
        said = headrace("status", out)
        assert said.code == 1 and "is gone, and with it the 10 rows" in said.out
    assert not (place / "a.db").exists()


def test_of_a_run_that_failed(headrace: Headrace, place: Path) -> None:
    (place / "late.py").write_text(
        "def score(batch):\n"
        "    if (batch['id'] >= 300).any():\n"
        "        raise ValueError('too late')\n"
        "    return batch['km']\n"
    )
    assert headrace("predict", "late:score", "trips", "-o", "out", "-O", "shard_rows=100").code == 1
    said = headrace("status", "out")
    assert said.code == 1 and "failed after" in said.out and "3 of 4" in said.out
    assert headrace("status", "out", "--json").json["rows_written"] == 300


def test_of_a_run_that_goes_on(place: Path, headrace: Headrace) -> None:
    (place / "waits.py").write_text(
        "import sys\n"
        "def score(batch):\n"
        "    if (batch['id'] >= 300).any():\n"
        "        print('waiting', flush=True)\n"
        "        sys.stdin.readline()\n"
        "    return batch['km']\n"
    )
    words = [
        sys.executable,
        "-m",
        "headrace",
        "predict",
        "waits:score",
        "trips",
        "-o",
        "out",
        "-O",
        "shard_rows=100",
    ]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=place, env=dict(os.environ)
    ) as driver:
        assert driver.stdin is not None and driver.stdout is not None
        assert any("waiting" in line for line in driver.stdout)
        found = headrace("status", "out", "--json").json
        assert (found["status"], found["rows_in_all"], found["shards"]) == ("under way", 400, 4)
        assert found["exit_code"] == 0
        page = headrace("report", "out", "--to", "page.html")
        assert page.code == 0 and "Under way</span> for " in (place / "page.html").read_text(encoding="utf-8")
        driver.stdin.write("go\n")
        driver.stdin.close()
        assert driver.wait(60) == 0
    assert headrace("status", "out").code == 0


def test_on_a_terminal(place: Path, headrace: Headrace) -> None:
    assert headrace("predict", "fares:Fare", "trips", "-i", "km", "-o", "out").code == 0
    code, screen = on_a_terminal(["status", "out", "--watch"], place)
    assert code == 0 and "complete, after" in screen


def test_a_report_made_anew(headrace: Headrace, place: Path) -> None:
    words = ("predict", "fares:picky", "trips", "-o", "out", "--on-error", "reject")
    assert headrace(*words).code == 3
    said = headrace("report", "out")
    assert said.code == 0 and Path(said.out.strip()).name == "report.html"
    found = headrace("report", "out", "--to", "page.html", "--values", "--json").json
    assert list(found) == [*FIRST, "output", "run", "report"]
    assert (found["command"], found["status"]) == ("report", "complete")
    assert found["report"] == str(place / "page.html")
    assert "&#x27;km&#x27;" in (place / "page.html").read_text(encoding="utf-8")
    assert "&#x27;km&#x27;" not in Path(said.out.strip()).read_text(encoding="utf-8")
    assert (place / "page.html").stat().st_mode & 0o077 == 0


def test_what_cannot_be_done(headrace: Headrace, place: Path) -> None:
    for command in ("status", "report"):
        said = headrace(command, "nowhere")
        assert said.code == 2 and "There is no output of Headrace" in said.err
    assert headrace("predict", "fares:Fare", "trips", "-i", "km", "-o", "out").code == 0
    said = headrace("report", "out", "--to", "no/such/folder/page.html")
    assert said.code == 1 and "cannot be written" in said.err


@pytest.mark.skipif(
    os.geteuid() == 0 and not shutil.which("setpriv"), reason="root without setpriv reads all"
)
def test_of_an_output_of_another_user(tmp_path: Path) -> None:
    out = tmp_path / "out"
    hr.range(10).with_options(engine="inline", progress=False).write_csv(out)
    (out / "_headrace").chmod(0)
    as_other = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    asked = """
import sys
from headrace.annex.cli.app import carry_out
for name in ("status", "verify", "report", "clean", "watch", "runs"):
    carry_out([name, sys.argv[1]])
"""
    try:
        done = subprocess.run(
            [*as_other, sys.executable, "-c", asked, str(out)], capture_output=True, text=True, timeout=60
        )
    finally:
        (out / "_headrace").chmod(0o700)
    said = (
        f"The runs of {out} cannot be looked at, as its folder _headrace cannot be read: Permission denied."
    )
    assert done.stderr.count(said) == 5 and done.stdout.count("_headrace cannot be read") == 1, done.stderr
    assert "bug" not in done.stderr and "damaged" not in done.stderr + done.stdout
    assert "1 unreadable" in done.stdout
