"""The program as a user meets it: on a terminal, in a pipe, in a shell that completes; and how fast it answers."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import shlex
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from observers.terminal import screen_of as screen

Headrace = Callable[..., Any]
HEADRACE = [sys.executable, "-m", "headrace"]


def on_a_terminal(
    argv: list[str], place: Path, keys: tuple[str, str] | None = None, columns: int = 80, **env: str
) -> tuple[int, str]:
    """Run the program on a terminal of its own; type ``keys[1]`` once ``keys[0]`` is on the screen."""
    pid, screen = pty.fork()
    if pid == 0:
        try:
            os.chdir(place)
            fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("4H", 40, columns, 0, 0))
            known = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80", "HEADRACE_PROGRESS": "1", **env}
            words = [sys.executable, *argv] if argv[0] == "-c" else [*HEADRACE, *argv]
            os.execve(sys.executable, words, known)
        finally:
            os._exit(99)
    shown = b""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if not select.select([screen], [], [], 1)[0]:
            continue
        try:
            more = os.read(screen, 65536)
        except OSError:  # as Linux says that nobody is there any more
            more = b""
        if not more:
            break
        shown += more
        if keys is not None and keys[0] in shown.decode(errors="replace"):
            os.write(screen, keys[1].encode())
            keys = None
    else:
        os.kill(pid, signal.SIGKILL)
    os.close(screen)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), shown.decode()


WAITS = """
import os, time
from headrace.driver.policies import workers as interruption
interruption.PATIENCE = 0.5  # the batch that is under way takes longer in any case

def score(batch):
    with open("begun", "a") as file:
        file.write("x")
    if (batch["id"] >= 200).any():
        print("half way", flush=True)
        time.sleep(60)
    return batch["km"]
"""


def test_ctrl_c_ends_a_run_with_words_and_130(place: Path, headrace: Headrace) -> None:
    (place / "waits.py").write_text(WAITS)
    argv = ["predict", "waits:score", "trips/", "-o", "out", "--shard-rows", "100", "-i", "id,km"]
    code, shown = on_a_terminal(
        argv, place, ("half way", "\x03"), HEADRACE_ENGINE="local", HEADRACE_WORKERS="1"
    )
    assert code == 130, shown
    assert "Interrupted; 200 rows kept in" in shown and "Traceback" not in shown
    assert "2 of 4 are finished" in headrace("status", "out").out


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_scheduler_ends_a_run_as_ctrl_c_does(place: Path, headrace: Headrace, number: int) -> None:
    (place / "waits.py").write_text(WAITS)
    argv = ["predict", "waits:score", "trips/", "-o", "out", "--shard-rows", "100", "-i", "id,km"]
    command = [*HEADRACE, *argv, "--stats", "stats.json", "--json"]
    options = {**os.environ, "HEADRACE_ENGINE": "local", "HEADRACE_WORKERS": "1", "HEADRACE_PROGRESS": "1"}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=place, env=options, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        said = ""
        while "half way" not in said:
            line = process.stderr.readline()
            assert line, said
            said += line
        process.send_signal(number)
        out, rest = process.communicate(timeout=60)
    assert process.returncode == 128 + number, said + rest
    assert "Interrupted; 200 rows kept in" in rest and "Traceback" not in rest
    stats = json.loads((place / "stats.json").read_text())
    assert json.loads(out) == stats
    assert (stats["status"], stats["exit_code"], stats["rows"]["written"]) == (
        "interrupted",
        128 + number,
        200,
    )
    assert list((place / "out" / "_headrace").glob("*/report.html"))


SLOW = """
import time

def score(batch):
    time.sleep(0.1)
    if (batch["id"] % 100 == 7).any():
        raise ValueError("not this one")
    return batch["km"]
"""


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_a_run_on_a_terminal_of_any_width(place: Path, columns: int) -> None:
    """Each frame is replayed: nothing is wider than the screen, shares are of rows and never fall."""
    (place / "slow.py").write_text(SLOW)
    out = "a/place/with/a/name/that/goes/on/fares"
    argv = ["predict", "slow:score", "trips/", "-o", out, "--inputs", "id,km", "--on-error", "reject"]
    argv += ["--engine", "local", "--workers", "2", "--batch-size", "10", "--shard-rows", "200"]
    code, shown = on_a_terminal(argv, place, columns=columns)
    ends = [found.end() for found in re.finditer(re.escape("\x1b[?2026l"), shown)]
    frames = [[line for line in screen(shown[:end]) if line] for end in ends]
    running = [frame[-1] for frame in frames if frame and frame[-1].startswith("running")]
    assert code == 3 and len(running) > 5 and max(map(len, running)) <= columns
    shares = [float(found[1]) for line in running if (found := re.search(r"([\d.]+) %", line))]
    assert len(shares) == len(running) and shares == sorted(shares)
    halfway = [line for line, share in zip(running, shares, strict=True) if 0 < share < 60]
    assert halfway and all(re.search(r"\d left", line) for line in halfway)  # from the first rows on
    for line, share in zip(running, shares, strict=True):
        if found := re.search(r"([\d,]+) of 400 rows", line):
            assert share == int(found[1]) * 10 // 4 / 10
    if columns == 200:
        assert all(" of 400 rows" in line for line in running)
    summary = screen(shown)
    assert summary[0].startswith("400 rows in, 396 out, 4 rejected in ")
    assert f"headrace rejected {place / out}" in " ".join(line.strip() for line in summary)
    if columns > 60:
        return
    for argv in (
        ["status", out],
        ["predict", "slow:score", "trips/", "-o", out, "--inputs", "none-of-these"],
    ):
        summary += screen(on_a_terminal(argv, place, columns=columns)[1])
    too_long = [line for line in summary if len(line) > columns]
    assert not [line for line in too_long if len(line.split()) > 2]  # but for a path that stays whole


BOTH = "from headrace.annex.cli import main\nmain(['verify', 'nowhere'])\nmain(['status', '--help'])"


def test_a_terminal_gets_colours_unless_it_says_no(place: Path) -> None:
    """In errors and in help."""
    _, shown = on_a_terminal(["-c", BOTH], place)
    assert "\033[1;31mheadrace:\033[0m There is no folder" in shown and "\033[1mUsage:\033[0m" in shown
    _, shown = on_a_terminal(["-c", BOTH], place, NO_COLOR="1")
    assert "There is no folder" in shown and "Usage:" in shown and "\033" not in shown


def test_clean_asks_on_a_terminal(place: Path, headrace: Headrace) -> None:
    assert headrace("predict", "fares:Fare", "trips", "-i", "km", "-o", "out").code == 0
    code, shown = on_a_terminal(["clean", "out", "--all"], place, ("[y/N]", "n\r"))
    assert code == 0 and "Nothing was removed." in shown and (place / "out" / "_SUCCESS").exists()
    code, shown = on_a_terminal(["clean", "out", "--all"], place, ("[y/N]", "y\r"))
    assert code == 0 and "Removed " in shown and not (place / "out").exists()


COMMANDS = [
    *("demo", "predict", "run", "resume", "inspect", "explain"),
    *("estimate", "status", "report", "verify", "clean"),
]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("columns", [60, 80, 140])
def test_help_fits_two_screens(
    headrace: Headrace, monkeypatch: pytest.MonkeyPatch, command: str, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    said = headrace(command, "--help")
    lines = said.out.splitlines()
    assert said.code == 0 and max(map(len, lines)) < columns
    assert len(lines) <= (70 if columns == 60 else 48)
    assert "<bool>" not in said.out and "<str>" not in said.out and "[bold]" not in said.out
    assert any(line.startswith(f"Usage: headrace {command}") for line in lines) and "Examples:" in lines
    assert f"  headrace {command}" in lines[lines.index("Examples:") + 1]


def test_all_options_are_there_if_asked_for(headrace: Headrace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    some, every = headrace("predict", "--help").out, headrace("predict", "--help-all").out
    assert re.search(r"(\d+) more options: headrace predict --help-all", some)
    for name in ("--inputs", "--num-gpus", "--on-error", "--out"):
        assert name in some and name in every
    for name in (
        "--durability",
        "--sha256",
        "--manifest",
        "--stats",
        "--batch-timeout",
        "--show-data, --hide-data",
    ):
        assert name not in some.partition("Examples:")[0] and name in every
    for heading in ("Input", "Columns", "Model", "Output", "How it runs", "Rows that fail", "Examples"):
        assert f"{heading}:" in every.splitlines(), heading


@pytest.mark.parametrize("words", ["predict --help", "inspect trips --rows 400"])
def test_a_reader_that_has_enough_ends_it_in_silence(place: Path, words: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)  # nobody reads from the start: every write fails
    done = subprocess.run(
        [*HEADRACE, *words.split()], stdout=writer, stderr=subprocess.PIPE, cwd=place, timeout=60
    )
    os.close(writer)
    assert (done.returncode in (1, 141), done.stderr) == (True, b"")


@pytest.mark.parametrize("json", [[], ["--json"]])
def test_an_answer_that_cannot_be_written_is_an_error_of_one_line(place: Path, json: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*HEADRACE, "inspect", "trips", *json], stdout=full, stderr=subprocess.PIPE, cwd=place, timeout=60
        )
    assert done.returncode == 1
    assert done.stderr.startswith(b"headrace: The result could not be printed: No space") and (
        done.stderr.count(b"\n") == 1
    )


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_is_nobody_elses(place: Path, closed: str) -> None:
    """Its number must not go to a file of the output, into which everything printed would be written."""
    (place / "noisy.py").write_text(
        "import os\n\n\ndef noisy(batch):\n"
        "    os.write(1, b'out')\n    os.write(2, b'err')\n    return batch['km']\n"
    )
    words = shlex.join([*HEADRACE, "predict", "noisy:noisy", "trips", "-o", "out", "--json"])
    done = subprocess.run(
        ["bash", "-c", f"exec {words} {closed}"], capture_output=True, cwd=place, timeout=60
    )
    assert (done.returncode, b"Traceback" in done.stderr) == (0, False), done.stderr
    assert hr.verify(place / "out").good


def test_completion_knows_commands_and_options(program: Headrace) -> None:
    def complete(line: str) -> list[str]:
        words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
        said = program(env={"_HEADRACE_COMPLETE": "complete_bash", **words})
        found: list[str] = said.out.split()
        return found

    assert complete("headrace ver") == ["verify"]
    assert "--inputs" in complete("headrace predict --in")
    assert complete("headrace predict --format par") == ["parquet"]
    assert complete("headrace run job.py --on-error re") == ["reject"]


def test_completion_can_be_shown(program: Headrace) -> None:
    said = program(
        "--show-completion",
        "bash",
        env={"SHELL": "/bin/bash", "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},
    )
    assert said.code == 0 and "_HEADRACE_COMPLETE" in said.out and "complete" in said.out


def test_nothing_heavy_is_imported_for_help(place: Path) -> None:
    program = (
        "import sys\nfrom headrace.annex.cli import main\n"
        "codes = [main(['--help']), main(['predict', '--help']), main(['--version'])]\n"
        "heavy = {'pyarrow', 'numpy', 'torch', 'pandas', 'psutil', 'cloudpickle'} & set(sys.modules)\n"
        "assert not heavy, heavy\nassert codes == [0, 0, 0]\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=place)
    assert done.returncode == 0, done.stderr


def test_the_program_and_the_module_are_the_same(program: Headrace) -> None:
    assert program("--version").out.startswith("headrace ")
    said = program()
    assert (said.code, said.err) == (2, "") and "Usage: headrace" in said.out
