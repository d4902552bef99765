"""Power is lost at any moment of a run: the same command, given again, makes the output exact."""

from __future__ import annotations

import random
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import headrace as hr

from .invariants import check, rows_of
from .job import Job, make_input
from .power import Recorder, build, distinct

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it watches the calls of this system")

FILES, ROWS = 3, 600  # a shard holds whole batches of each size that a step says
SHORT: list[tuple[str, int, dict[str, object]]] = [  # losses in the ordinary tests
    ("an overwrite", 20, {"bad": 20}),
    ("a new output", 10, {"bad": 20}),
    ("a new output", 8, {"shelves": True}),
    ("an overwrite", 8, {"shelves": True}),
]


def fresh(job: Job) -> None:
    job.here()


def overwrite(job: Job) -> None:
    job.here(mode="overwrite")


def go_on(job: Job) -> None:
    job.here()


def restart(job: Job) -> None:
    job.here(on_change="restart")


def older(job: Job) -> None:
    replace(job, factor=11).here()


def half_done(job: Job) -> None:
    with pytest.raises(hr.errors.HeadraceError):
        job.here({"attempt.started": "EIO@2"})


def nothing(job: Job) -> None:
    """The folder is not there."""


def part_lost(job: Job) -> None:
    job.here()
    next(Path(job.output).glob("part-*")).unlink()


CASES: dict[str, tuple[Callable[[Job], None], Callable[[Job], None]]] = {
    "a new output": (nothing, fresh),
    "an overwrite": (older, overwrite),
    "going on": (half_done, go_on),
    "a part is done again": (part_lost, go_on),
    "anew": (older, restart),
}


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_input(tmp_path_factory.mktemp("power") / "in", files=FILES, rows=ROWS)


def play(
    case: str, job: Job, top: Path, monkeypatch: pytest.MonkeyPatch, *, most: int | None, seed: int
) -> int:
    """Record a run, lose power everywhere, give the command again; return in how many ways it was lost."""
    prepare, run = CASES[case]
    top.mkdir()
    prepare(job)
    old = rows_of(Path(job.output)) if (Path(job.output) / "_SUCCESS").exists() else None
    recorder = Recorder(top)
    with monkeypatch.context() as patch:
        recorder.watch(patch)
        run(job)
    recorder.close()
    dice = random.Random(seed)
    worlds = list(distinct(recorder, dice))
    if most is not None and len(worlds) > most:
        worlds = [*dice.sample(worlds[:-1], most), worlds[-1]]
    for before, world in worlds:
        shutil.rmtree(top)
        build(world, top)
        output = Path(job.output)
        try:
            if (output / "_SUCCESS").exists():  # whoever sees it relies on it
                assert rows_of(output) in ([job.expected()] if old is None else [job.expected(), old])
            run(job)
            check_all(job)
        except BaseException as error:
            listed = "\n".join(sorted(world))
            raise AssertionError(f"power lost before {before}, with\n{listed}\n{error}") from error
    return len(worlds)


def check_all(job: Job) -> None:
    output = Path(job.output)
    if job.metrics:  # whose big states stay beside the journal
        assert rows_of(output) == job.expected()
        assert hr.verify(output).good, hr.verify(output)
        ids = [row["id"] for row in job.expected()]
        assert job.metrics_of()["ids"] == {"rows": len(ids), "total": sum(ids)}
    else:
        check(output, job.expected(), job.here, [i for i in range(FILES * ROWS) if job.fails(i)])


def a_job(few: Path, top: Path, **more: object) -> Job:
    return Job(str(few), str(top / "out"), options={"shard_rows": ROWS}, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(("case", "most", "more"), SHORT)
def test_power_is_lost(
    few: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str, most: int, more: dict[str, object]
) -> None:
    top = tmp_path / "disk"
    assert play(case, a_job(few, top, **more), top, monkeypatch, most=most, seed=1) == most + 1


@pytest.mark.soak
@pytest.mark.parametrize("more", [{}, {"bad": 20}, {"metrics": True}, {"shelves": True}], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_soak(
    few: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str, more: dict[str, object]
) -> None:
    top = tmp_path / "disk"
    print(case, more, play(case, a_job(few, top, **more), top, monkeypatch, most=None, seed=0), "losses")
