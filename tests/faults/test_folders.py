"""Parts in folders by the values of a column: kills, losses of power, and running again."""

from __future__ import annotations

import random
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from .invariants import check, rows_of, stamps
from .job import FILES, Job, make_input
from .test_power import FILES as FEW
from .test_power import ROWS, play
from .test_random import play as killed_at_random

SHELVES = 3
OVERWRITES = ["swap.recorded", "swap.removed", "publish.rename", "swap.pointed", "finish.success"]
LOSSES = 12
SOAK_ROUNDS = 200


@pytest.fixture
def shelved(job: Job) -> Job:
    return replace(job, shelves=True)


@pytest.mark.parametrize("point", OVERWRITES)
def test_overwrite_killed(shelved: Job, point: str) -> None:
    shelved.here()
    flat = Job(shelved.source, shelved.output, factor=5)
    code, _, err = flat.start({point: "kill"}, engine="inline", workers=None, mode="overwrite").wait()
    assert code == -signal.SIGKILL, err
    assert (rows_of(Path(flat.output)) == shelved.expected()) == (point == "swap.recorded")
    flat.here(mode="overwrite")
    check(Path(flat.output), flat.expected(), flat.here)
    assert not list(Path(flat.output).glob("shelf=*"))


def test_a_shard_with_a_lost_file_is_revoked_whole(shelved: Job) -> None:
    shelved.here()
    output = Path(shelved.output)
    before = stamps(output)
    lost = sorted(output.glob("shelf=1/part-*"))[2]
    lost.unlink()
    shelved.here()
    check(output, shelved.expected(), shelved.here)
    after = stamps(output)
    others = [name for name in before if not name.endswith((lost.name, "_SUCCESS"))]
    assert after.keys() == before.keys() and len(others) == SHELVES * (FILES - 1)
    assert all(after[name] == before[name] for name in others)
    shutil.rmtree(output / "shelf=2")  # a folder that is lost
    shelved.here()
    check(output, shelved.expected(), shelved.here)


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_input(tmp_path_factory.mktemp("folders") / "in", files=FEW, rows=ROWS)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="it watches the calls of this system")
@pytest.mark.parametrize("case", ["a new output", "an overwrite"])
def test_power_is_lost(few: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    top = tmp_path / "disk"
    job = Job(str(few), str(top / "out"), shelves=True, options={"shard_rows": ROWS})
    assert play(case, job, top, monkeypatch, most=LOSSES, seed=2) == LOSSES + 1


@pytest.mark.soak
@pytest.mark.parametrize("case", ["a new output", "an overwrite", "going on", "anew"])
def test_soak_power(few: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    top = tmp_path / "disk"
    job = Job(str(few), str(top / "out"), shelves=True, options={"shard_rows": ROWS})
    print(case, play(case, job, top, monkeypatch, most=None, seed=0), "losses")


@pytest.mark.soak
def test_soak_kills(source: Path, tmp_path: Path) -> None:
    for seed in range(SOAK_ROUNDS):
        killed_at_random(source, tmp_path / "out", random.Random(seed), shelves=True)
        shutil.rmtree(tmp_path / "out")
