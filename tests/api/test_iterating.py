"""iter_batches: in order, in bounded memory, and over when the reader stops."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil
import pytest

import headrace as hr
from headrace.testing.engines import until

from .data import numbers

pytestmark = pytest.mark.usefixtures("no_template")


def children() -> set[int]:
    """Return the processes that this one has started."""
    return {child.pid for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE}


def workers(pids: set[int]) -> set[int]:
    """Leave out the process that watches over workers, and the one that they are forked from."""
    return {pid for pid in pids if psutil.Process(pid).name() not in ("sh", "headrace-fork")}


@pytest.mark.parametrize("size", [1, 7, 64, 100, 256, 999, 5000, None])
def test_batches_have_the_size_asked_for(size: int | None) -> None:
    batches = list(numbers(1000).iter_batches(batch_size=size))
    assert np.concatenate([batch["id"] for batch in batches]).tolist() == list(range(1000))
    if size is not None:
        assert [len(batch["id"]) for batch in batches] == [
            min(size, 1000 - at) for at in range(0, 1000, size)
        ]


def test_drop_last_and_formats() -> None:
    frames = list(numbers(1000).iter_batches(batch_size=300, batch_format="pandas", drop_last=True))
    assert [len(frame) for frame in frames] == [300, 300, 300]
    assert all(isinstance(frame, pd.DataFrame) for frame in frames)
    assert len(list(numbers(600).iter_batches(batch_size=300, drop_last=True))) == 2


@pytest.mark.local
def test_a_slow_reader_holds_the_workers_back(tmp_path: Path) -> None:
    """While the reader holds its first batch, workers may go on by a few blocks only."""

    def big(batch: dict[str, Any]) -> dict[str, Any]:
        with open(tmp_path / "made", "a") as file:
            file.write(".")
        return {"x": np.zeros((len(batch["id"]), 1 << 17)), "id": batch["id"]}  # 10 MiB for 10 rows

    data = numbers(600, 10).map_batches(big, batch_size=10).with_options(engine="local")
    batches = data.iter_batches(batch_size=10)
    before, ahead = children(), 0
    for done in range(1, 21):
        assert next(batches)["id"][0] == (done - 1) * 10
        ahead = max(ahead, len((tmp_path / "made").read_text()) - done)
    started = children() - before
    while any(psutil.Process(pid).cpu_percent(interval=0.05) > 5 for pid in started):
        pass  # until nobody computes any more
    ahead = max(ahead, len((tmp_path / "made").read_text()) - done)
    batches.close()
    assert ahead <= 8, f"workers ran ahead by {ahead} blocks of 10 MiB"
    assert not children() & started


@pytest.mark.parametrize("how", ["close", "forget", "raise"])
def test_workers_end_when_the_reader_stops(how: str) -> None:
    before = children()
    batches = numbers(100_000).with_options(engine="local").iter_batches(batch_size=10)
    next(batches)
    until(lambda: len(workers(children() - before)) == 2)
    if how == "close":
        batches.close()
    elif how == "raise":
        with pytest.raises(RuntimeError, match="of the reader"):
            for _ in batches:
                raise RuntimeError("of the reader")
    del batches
    gc.collect()
    assert children() == before


AGAIN: dict[str, Callable[[hr.Dataset], Any]] = {
    "iter_batches": lambda data: data.iter_batches(batch_size=300),
    "as they come": lambda data: data.iter_batches(batch_size=None, batch_format="pyarrow"),
    "iter_rows": lambda data: data.iter_rows(),
    "iter_torch_batches": lambda data: data.iter_torch_batches(batch_size=300),
}


def ids(part: Any) -> list[int]:
    """Return the numbers in a batch or a row, of whatever form."""
    return np.atleast_1d(np.asarray(part["id"])).tolist()


@pytest.mark.parametrize("verb", AGAIN)
def test_every_loop_over_the_same_thing_gets_all_rows(verb: str) -> None:
    if "torch" in verb:
        pytest.importorskip("torch")
    made = AGAIN[verb](numbers(1000).filter(expr="id >= 10"))
    for _ in range(2):
        assert [i for part in made for i in ids(part)] == list(range(10, 1000))
    assert ids(next(iter(made)))[0] == ids(next(iter(made)))[0] == 10
    left, right = [[i for part in side for i in ids(part)] for side in zip(*zip(made, made))]  # noqa: B905
    assert left == right == list(range(10, 1000))


def test_every_loop_runs_the_functions_again_and_the_numbers_are_of_the_last_one(tmp_path: Path) -> None:
    calls = tmp_path / "calls"  # of this process, or of workers

    def note(batch: dict[str, Any]) -> dict[str, Any]:
        with open(calls, "a") as file:
            file.write(f"{len(batch['id'])}\n")
        return batch

    data = numbers(200).map_batches(note, batch_size=100)
    batches = data.iter_batches()
    assert not calls.exists()
    for times in (1, 2):
        assert sum(len(batch["id"]) for batch in batches) == 200
        assert sum(map(int, calls.read_text().split())) == 200 * times
        assert data.stats().startswith("200 rows in, 200 out")


def test_next_and_a_loop_after_it_take_from_one_pass() -> None:
    batches = numbers(1000).iter_batches(batch_size=300)
    assert ids(next(batches)) == list(range(300))
    assert ids(next(batches)) == list(range(300, 600))
    assert [i for batch in batches for i in ids(batch)] == list(range(600, 1000))
    assert [i for batch in batches for i in ids(batch)] == list(range(1000))
    ones = numbers(2).iter_rows()
    assert [next(ones), next(ones), next(ones, None), next(ones)] == [{"id": 0}, {"id": 1}, None, {"id": 0}]


def test_next_inside_a_loop_is_refused_as_it_would_begin_anew() -> None:
    batches = numbers(1000).iter_batches(batch_size=100)
    with pytest.raises(hr.errors.ArgumentError, match=r"batches = iter\(ds\.iter_batches\(\)\)"):
        for _ in batches:
            next(batches)
    pairs = iter(numbers(400).iter_batches(batch_size=100))
    assert [(ids(left)[0], ids(next(pairs))[0]) for left in pairs] == [(0, 100), (200, 300)]


def test_an_error_ends_a_pass_and_the_next_one_begins_anew() -> None:
    def fails(batch: dict[str, Any]) -> dict[str, Any]:
        raise ValueError("again")

    batches = numbers(100).map_batches(fails).iter_batches()
    for take in (next, list, next):
        with pytest.raises(hr.errors.StepError, match="again"):
            take(batches)


def test_a_loop_that_breaks_leaves_nothing_and_can_be_begun_again() -> None:
    before, files = children(), psutil.Process().num_fds()
    batches = numbers(100_000).with_options(engine="local").iter_batches(batch_size=10)
    for _ in range(2):
        for batch in batches:
            assert ids(batch)[0] == 0
            until(lambda: len(workers(children() - before)) == 2)
            break
        gc.collect()
        assert children() == before and psutil.Process().num_fds() <= files


def test_nothing_starts_before_the_first_batch_is_asked_for() -> None:
    before = children()
    batches = numbers(1000).with_options(engine="local").iter_batches()
    assert children() == before
    del batches


def test_two_readers_at_once() -> None:
    left = numbers(500).with_options(engine="local").iter_batches(batch_size=50)
    right = (
        numbers(500)
        .map(lambda row: {"id": -row["id"]})
        .with_options(engine="local")
        .iter_batches(batch_size=50)
    )
    for mine, theirs in zip(left, right, strict=True):
        assert (mine["id"] == -theirs["id"]).all()


def test_an_error_comes_after_the_batches_before_it() -> None:
    def fails(batch: dict[str, Any]) -> dict[str, Any]:
        if batch["id"][0] >= 500:
            raise ValueError("late")
        return batch

    got = []
    with pytest.raises(hr.errors.StepError, match=r"late.*row 500: id=500"):
        for batch in numbers(1000).map_batches(fails).iter_batches(batch_size=100):
            got.append(int(batch["id"][0]))
    assert got == [0, 100, 200, 300, 400]


def test_a_worker_that_dies_in_the_middle_doubles_nothing(tmp_path: Path) -> None:
    def dies_once(batch: dict[str, Any]) -> dict[str, Any]:
        if batch["id"][0] == 350:
            try:
                os.close(os.open(tmp_path / "died", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return batch
            os._exit(9)
        return batch

    data = numbers(1000).map_batches(dies_once, batch_size=50).with_options(engine="local")
    assert [int(i) for batch in data.iter_batches() for i in batch["id"]] == list(range(1000))
    assert (tmp_path / "died").exists()
