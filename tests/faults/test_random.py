"""Drivers and workers killed at random moments, until the run is done; the soak does it for hours."""

from __future__ import annotations

import contextlib
import random
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from .invariants import check
from .job import Job

ROUNDS = 1
SOAK_ROUNDS = 1000
KILLS = 3


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_killed_at_random(source: Path, tmp_path: Path, seed: int) -> None:
    play(source, tmp_path / "out", random.Random(seed))


@pytest.mark.soak
def test_soak(source: Path, tmp_path: Path) -> None:
    for seed in range(ROUNDS, ROUNDS + SOAK_ROUNDS):
        print(f"seed {seed}")
        play(source, tmp_path / "out", random.Random(seed), shelves=seed % 5 == 0)
        shutil.rmtree(tmp_path / "out")


def play(source: Path, output: Path, dice: random.Random, *, shelves: bool = False) -> None:
    """One round: maybe an older output, then a run that is killed up to ``KILLS`` times and ended in peace."""
    mode = dice.choice(["resume", "overwrite"])
    durability = dice.choice(["power", "process"])
    limit = dice.choice([None, None, 330])
    stages = dice.random() < 0.5
    options = {"mode": mode, "durability": durability}
    job = Job(str(source), str(output), limit=limit, staged=stages, shelves=shelves, options=options)
    if mode == "overwrite":
        Job(str(source), str(output), factor=11, staged=stages, shelves=shelves).here()
    for _ in range(dice.randint(1, KILLS)):
        driver = job.start()
        driver.until(reached(output, dice))
        if dice.random() < 0.7:
            driver.process.kill()
        else:
            for worker in dice.sample(workers := driver.workers(), min(1, len(workers))):
                with contextlib.suppress(psutil.NoSuchProcess):
                    worker.kill()
        code, _, err = driver.wait()
        assert code in (0, -signal.SIGKILL), err
    job.here()
    check(output, job.expected(), lambda: job.here(mode="resume"))


def reached(output: Path, dice: random.Random) -> Callable[[], bool]:
    """A moment picked by the dice: so many journal bytes, staged or published files more than now."""
    measure, most = dice.choice([(journal_bytes, 4000), (staged, 10), (published, 8), (runs, 2)])
    goal = measure(output) + dice.randint(1, most)
    return lambda: measure(output) >= goal


def journal_bytes(output: Path) -> int:
    return size(output, "_headrace/*/journal")


def staged(output: Path) -> int:
    return count(output, "_headrace/*/staging/*.staged")


def published(output: Path) -> int:
    return count(output, "part-*") + count(output, "shelf=*/part-*")


def runs(output: Path) -> int:
    return count(output, "_headrace/*/plan")


def count(output: Path, pattern: str) -> int:
    with contextlib.suppress(FileNotFoundError):  # what vanishes meanwhile
        return len(list(output.glob(pattern)))
    return 0


def size(output: Path, pattern: str) -> int:
    with contextlib.suppress(FileNotFoundError):
        return sum(path.stat().st_size for path in output.glob(pattern))
    return 0
