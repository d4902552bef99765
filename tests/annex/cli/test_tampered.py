"""Outputs whose files were changed at random: every command says so, or does what is right, and soon.

``HEADRACE_FUZZ_CASES`` says how many cases there are, ``HEADRACE_FUZZ_SEED`` with which to begin.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import resource
import shutil
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

import headrace as hr
from faults import tampering
from faults.invariants import rows_of
from faults.job import Job
from faults.tampering import Harm, Left
from headrace.annex.cli import main
from headrace.errors import HeadraceError

CASES, SOAK_CASES = 3, 100_000
FIRST = int(os.environ.get("HEADRACE_FUZZ_SEED", "0"))
LONGEST = 10.0  # seconds of one command
MOST = 1 << 30  # bytes that the process may grow by
READERS = (
    ["status"], ["report", "--no-open"], ["resume", "--dry-run"], ["clean"], ["clean", "--unfinished"],
)  # fmt: skip
CLEANERS = (["clean", "--yes"], ["clean", "--unfinished", "--yes"], ["clean", "--all", "--yes"])


class TooLong(BaseException):
    """Nothing of ours catches it."""


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> list[Left]:
    return tampering.outputs(tmp_path_factory.mktemp("left"))


def test_tampered_outputs(left: list[Left], tmp_path: Path) -> None:
    play(left, tmp_path, int(os.environ.get("HEADRACE_FUZZ_CASES", CASES)))


@pytest.mark.soak
def test_soak(left: list[Left], tmp_path: Path) -> None:
    play(left, tmp_path, int(os.environ.get("HEADRACE_FUZZ_CASES", SOAK_CASES)))


def play(left: list[Left], folder: Path, cases: int) -> None:
    started, size = time.monotonic(), memory()
    for seed in range(FIRST, FIRST + cases):
        Case(left, folder / str(seed), seed).play()
        assert memory() - size < MOST, f"seed {seed}: the process has grown by {memory() - size:,} bytes"
        shutil.rmtree(folder / str(seed))
    print(f"{cases} cases, {cases / (time.monotonic() - started):.1f} a second")


def memory() -> int:
    """Return the most memory that this process has ever had, in bytes."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most << 10


class Case:
    """One output, changed by the dice, and all that is then done with it."""

    def __init__(self, left: list[Left], folder: Path, seed: int) -> None:
        self.dice = Random(seed)
        self.beside = folder / "beside"
        self.beside.mkdir(parents=True)
        (self.beside / "letter").write_text("dear")
        (self.beside / "part-00000-aaaaaaaa.parquet").write_text("not yours")
        self.chosen = self.dice.choice(left)
        self.folder = folder
        self.job: Job = self.chosen.copy(folder)
        self.output = Path(self.job.output)
        others = [Path(each.job.output) for each in left if each is not self.chosen]
        self.outside = self.around()
        self.harm: Harm = tampering.harm(self.output, others, self.beside, self.dice)
        self.what = f"seed {seed}: {self.chosen.name}, {', '.join(self.harm.done)}"

    def around(self) -> list[tuple[str, int, int, int]]:
        """All that is near and not in the output, with sizes and times."""
        found = []
        for root in (self.folder, Path(self.job.source)):
            for path in [root, *root.rglob("*")]:
                if path != self.folder and self.output not in (path, *path.parents):
                    status = path.lstat()
                    found.append((str(path), status.st_mode, status.st_size, status.st_mtime_ns))
        return sorted(found)

    def play(self) -> None:
        try:
            for reader in self.dice.sample(READERS, 2):
                self.command(*reader)
            self.rejected()
            self.verified()
            if self.dice.random() < 0.2:
                self.command(*self.dice.choice(CLEANERS))
            result = self.gone_on()
            good = self.verified()
            self.check(result, good)
            assert self.around() == self.outside, "something outside of the output is not as it was"
        except Exception as error:
            error.add_note(self.what) if hasattr(error, "add_note") else print(self.what)
            raise

    def command(self, name: str, *flags: str) -> None:
        """Give a command; it must not fail in a way that is ours."""
        out, err = io.StringIO(), io.StringIO()
        with quiet(), in_time(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main([name, str(self.output), *flags])
        assert "Traceback" not in err.getvalue(), f"{name} {flags}: {err.getvalue()}"
        assert "bug in Headrace" not in err.getvalue(), err.getvalue()

    def verified(self) -> bool:
        """Verify the output; say whether it is found to be good."""
        with quiet(), in_time(), contextlib.suppress(HeadraceError):
            return hr.verify(self.output).good
        return False

    def rejected(self) -> None:
        """Read the rows that were set aside."""
        with quiet(), in_time(), contextlib.suppress(HeadraceError):
            hr.read_rejected(self.output).take_all()

    def gone_on(self) -> Any:
        """Run the job again; return its result, or None where it was refused."""
        with quiet(), in_time(), contextlib.suppress(HeadraceError):
            return self.job.here()
        return None

    def check(self, result: Any, good: bool) -> None:
        """What is told of a complete output is true."""
        expected = self.job.expected()
        if result is not None and not self.harm.forged:
            assert result.rows == len(expected), "another number of rows is told"
        if result is not None and good:
            assert rows_of(self.output) == expected
            ids = [row["id"] for row in hr.read_rejected(self.output).take_all()]
            assert ids == [i for i in range(tampering.FILES * tampering.ROWS) if self.job.fails(i)]
            assert self.harm.forged or self.job.metrics_of() == self.chosen.metrics


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Let nothing pass for a failure that is only told: warnings, and what is logged of observers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable()
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)


@contextlib.contextmanager
def in_time() -> Iterator[None]:
    """Interrupt what takes too long."""

    def interrupt(*_: object) -> None:
        raise TooLong(f"it took more than {LONGEST} seconds")

    before = signal.signal(signal.SIGUSR2, interrupt)
    main_thread = threading.main_thread().ident
    assert main_thread is not None
    timer = threading.Timer(LONGEST, signal.pthread_kill, (main_thread, signal.SIGUSR2))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        signal.signal(signal.SIGUSR2, before)
