"""`headrace estimate`: a sample from all over, and numbers with ranges that follow from it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.core.work import Split
from headrace.dataset.estimate import Commit, Range, SampleObserver, extrapolated, sample_splits

Headrace = Callable[..., Any]


def exactly(number: float) -> Range:
    return Range(number, number, number)


def watched(*commits: tuple[float, int, int]) -> SampleObserver:
    watch = SampleObserver(10.0, 0, begun=100.0, ended=100.0 + commits[-1][0])
    watch.commits = [Commit(100.0 + at, rows, size) for at, rows, size in commits]
    watch.memory = [3, 1, 2, 9]
    return watch


def test_a_steady_job_has_a_narrow_range() -> None:
    """Two workers, 100 rows in a second each, after three seconds of start-up."""
    commits = [(4.0 + i // 2, 100, 1000) for i in range(20)]
    found = extrapolated(watched(*commits), exactly(1_000_000), 2, whole=False)
    assert (found.rate.low, found.rate.likely, found.rate.high) == (200, 200, 200)
    assert found.startup == pytest.approx(3.0)
    assert found.seconds.likely == pytest.approx(5003.0) and found.seconds.exact
    assert found.size == exactly(10_000_000) and not found.notes
    assert (found.memory.low, found.memory.likely, found.memory.high) == (2, 3, 9)


def test_the_slowest_and_the_fastest_round_are_the_range() -> None:
    commits = [(1.0, 10, 10), (2.0, 10, 20), (4.0, 10, 10), (5.0, 10, 10), (7.0, 10, 10)]
    found = extrapolated(watched(*commits), Range(900, 1000, 1100), 1, whole=False)
    assert (found.rate.low, found.rate.likely, found.rate.high) == (5.0, pytest.approx(40 / 6), 10.0)
    assert found.seconds.low == pytest.approx(900 / 10 + found.startup)
    assert found.seconds.high == pytest.approx(1100 / 5 + found.startup)
    assert (found.size.low, found.size.high) == (900, 2200)


def test_too_little_is_told() -> None:
    alone = extrapolated(watched((2.0, 50, 500)), exactly(100), 2, whole=True)
    assert alone.rate.low < alone.rate.likely < alone.rate.high and "too short to separate" in alone.notes[0]
    once = extrapolated(watched((2.0, 50, 500), (3.0, 50, 500)), exactly(100), 1, whole=True)
    assert "did one part only" in once.notes[0] and once.rate.low < 50 < once.rate.high


def test_pieces_grow_come_from_all_over_and_never_overlap() -> None:
    splits = [Split(i, 0, 0, rows) for i, rows in enumerate([1000, 3, 500, 40_000])]
    pieces = list(sample_splits(splits, 2, 41_503))
    assert [piece.length for piece in pieces[:2]] == [64, 3] and len(
        {piece.file for piece in pieces[:5]}
    ) == 4
    for i, split in enumerate(splits):
        windows = sorted((piece.low, piece.high) for piece in pieces if piece.file == i)
        assert windows[0][0] == 0 and windows[-1][1] <= split.rows
        assert all(a[1] == b[0] for a, b in itertools.pairwise(windows))
    assert max(piece.length for piece in pieces) > 4000


@pytest.mark.parametrize("folder", ["trips", "csv", "json"])
def test_a_job_is_sampled_and_nothing_is_left(headrace: Headrace, place: Path, folder: str) -> None:
    before = sorted(place.rglob("*"))
    said = headrace(
        "estimate",
        "fares:Fare",
        folder,
        "--inputs",
        "km",
        "--seconds",
        "5",
        "--json",
        "--price-per-hour",
        "36 EUR",
    )
    assert said.code == 0, said.err
    found = said.json
    assert found["rows"] == {"low": 400, "likely": 400, "high": 400} and found["sample"]["whole_input"]
    for name in ("rows_per_second", "seconds", "memory_bytes", "output_bytes"):
        value = found[name]
        assert 0 < value["low"] <= value["likely"] <= value["high"], name
    assert found["cost"]["likely"] == pytest.approx(found["seconds"]["likely"] / 100, rel=0.2)
    assert found["cost"]["currency"] == "EUR"
    assert [path for path in sorted(place.rglob("*")) if "__pycache__" not in path.parts] == before


def test_a_sample_ends_when_its_time_is_over(program: Headrace, place: Path) -> None:
    (place / "slow.py").write_text(
        "import time\ndef score(batch):\n    time.sleep(0.05)\n    return batch['km']\n"
    )
    (place / "job.py").write_text(
        "import headrace as hr, slow\n"
        "dataset = hr.read_parquet('trips/').predict(slow.score, inputs=['km'], batch_size=5)\n"
    )
    said = program("estimate", "job.py", "--seconds", "0.3", env={"HEADRACE_ENGINE": "local"})
    assert said.code == 0, said.err
    assert "rows      400" in said.out and "which is all" not in said.out and "Interrupted" not in said.err


def test_an_empty_input_has_nothing_to_estimate(headrace: Headrace, place: Path) -> None:
    (place / "none.csv").write_text("id,km\n")
    said = headrace("estimate", "fares:Fare", "none.csv")
    assert said.code == 2 and "has no rows" in said.err
