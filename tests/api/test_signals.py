"""Programs that are started with signals ignored or blocked, as ``nohup``, shells and some CI start them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import forked
import headrace as hr
from forked import Forked

IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, signal.SIGCHLD)


@pytest.fixture
def deaf() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


def interrupts(row: Any) -> Any:
    if row["id"] == 3:
        raise KeyboardInterrupt
    return row


def interrupts_in_words(row: Any) -> Any:
    raise Silenced


class Silenced(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt


@pytest.mark.parametrize("function", [interrupts, interrupts_in_words])
def test_an_interrupt_ends_a_run_that_ignores_the_signal(
    function: Callable[[Any], Any], tmp_path: Path, deaf: None
) -> None:
    """``signal.SIGTERM`` of a scheduler arrives as one, and so do those of the user's own."""
    with pytest.raises(KeyboardInterrupt):
        hr.range(10).map(function).with_options(on_error="reject", engine="inline").write_parquet(
            str(tmp_path / "out")
        )


PROGRAM = """
import os, signal, sys, time
import headrace as hr

DIED = sys.argv[-1] + "/died"

def fragile(batch):
    if 42 in batch["id"] and not os.path.exists(DIED):
        open(DIED, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return batch

if __name__ == "__main__":
    options = {"workers": 1, "engine": "local"}
    data = hr.range(100).map_batches(fragile, batch_size=50)
    result = data.with_options(**options).write_parquet(sys.argv[1] + "/a")
    assert result.rows == 100, result
    try:
        with hr.connect(workers=1) as executor:
            executor.submit(os._exit, 3).result()
    except hr.errors.WorkerDied as error:
        print(error)
    print("well")
"""


@pytest.mark.annex
@pytest.mark.parametrize("how", ["ignored", "blocked"])
def test_workers_die_and_are_replaced_whatever_signals_the_program_was_started_with(
    how: str, tmp_path: Path
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)

    def prepare() -> None:
        if how == "blocked":
            signal.pthread_sigmask(signal.SIG_BLOCK, {*IGNORED, signal.SIGUSR1})
            return
        for number in IGNORED:
            signal.signal(number, signal.SIG_IGN)

    done = subprocess.run(
        [sys.executable, str(tmp_path / "program.py"), str(tmp_path)],
        preexec_fn=prepare,
        restore_signals=False,
        capture_output=True,
        text=True,
        env={**os.environ, "HEADRACE_PROGRESS": "0"},
        check=False,
    )
    said, last = done.stdout.splitlines() if done.returncode == 0 else ("", done.stderr)
    assert last == "well"
    assert (
        "unknown status (the program ignores SIGCHLD)" if how == "ignored" else "exited with status 3"
    ) in said


INTERRUPTED = """
import os, signal, sys, time
import headrace as hr

def slow(batch):
    print(len(batch["id"]), flush=True)  # the parent reads that work is under way
    for _ in range(8):
        sum(range(40_000))
    return batch

if __name__ == "__main__":
    data = hr.range(12_000).map_batches(slow, batch_size=16).with_options(workers=2)
    data.write_parquet(sys.argv[1])
"""


def test_the_first_interrupt_commits_what_is_done(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(INTERRUPTED)
    command = [sys.executable, str(tmp_path / "program.py"), str(tmp_path / "out")]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    shown = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    with Forked(command, env=shown, workers=True, **pipes) as run:
        assert run.stdout is not None and run.stderr is not None
        for _ in range(200):  # batches of both workers
            run.stdout.readline()
        run.send_signal(signal.SIGINT)
        said = run.stderr.read()
        while run.stdout.readline():
            pass
    assert run.returncode != 0
    assert "rows kept in" in said
    kept = sum(each.count_rows() for each in map(pq_file, (tmp_path / "out").glob("*.parquet")))
    assert kept >= 200 * 16 // 2
    assert not (tmp_path / "out" / "_SUCCESS").exists()
    done = forked.run(command, env=shown, workers=True)
    assert "read before, by an earlier run" in done.stderr
    rows = hr.read_parquet(str(tmp_path / "out")).take_all()
    assert sorted(row["id"] for row in rows) == list(range(12_000))


def pq_file(path: Path) -> Any:
    import pyarrow.dataset

    return pyarrow.dataset.dataset(path)
