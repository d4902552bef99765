"""The share never falls, and the time left is right to 20 % from a third of a run on, whatever the run is like."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from crossed import few
from headrace.core.events import RowsRead, RunStarted, WorkerReady
from headrace.core.work import Shard, Split
from headrace.observers.pace import sized, time_of_the_last
from headrace.observers.run_parts import UnderWay
from headrace.observers.run_state import RunState
from headrace.observers.words import rows_text
from headrace.session.read import likely_rows, rows_expected

from .streams import Stream, drawn

ROUNDING = 1.0  # seconds: what is shown is whole seconds


@st.composite
def streams(draw: st.DrawFn) -> Stream:
    return drawn(draw(st.randoms(use_true_random=False)))


@settings(max_examples=few(12))
@given(run=streams())
def test_the_share_never_falls_and_the_time_left_is_right_from_a_third_on(run: Stream) -> None:
    whole = run.events()[-1][0]
    before = 0.0
    for at, share, left in run.play():
        assert before <= share <= 1.0
        before = share
        if whole / 3 <= at:
            assert left is not None
            assert abs(left - (whole - at)) <= 0.2 * (whole - at) + ROUNDING, (at, left, whole)


def test_the_last_shards_fall_to_the_workers_as_they_will() -> None:
    under_way, waiting = sized(
        [UnderWay(0, 50, 100, 10.0), UnderWay(1, 0, -1, 10.0)], 4, 550.0, (100, 100, 300, 100)
    )
    assert [each.of for each in under_way] == [100, 100] and waiting == [300.0, 100.0]
    assert time_of_the_last(under_way, waiting, workers=2, rate=10.0, now=10.0) == 35.0
    assert time_of_the_last(under_way, waiting, workers=2, rate=10.0, now=12.0) == 33.0
    assert time_of_the_last(under_way, waiting, workers=3, rate=10.0, now=10.0) == 30.0
    assert time_of_the_last([], [], workers=2, rate=10.0, now=10.0) == 0.0


def test_sizes_that_do_not_fit_any_more_are_not_used() -> None:
    """Shards were divided, or fewer rows are left than were planned."""
    begun = [UnderWay(0, 10, -1, 0.0)]
    assert sized(begun, 5, 190.0, (100, 100)) == ([UnderWay(0, 10, 40, 0.0)], [40.0] * 4)
    assert sized([UnderWay(0, 10, 60, 0.0)], 3, 150.0, (100, 100, 100))[1] == [50.0, 50.0]
    assert sized([], 0, 0.0, ()) == ([], []) and sized([], 2, 20.0, (-1, -1))[1] == [10.0, 10.0]


LINES = b'{"id": 1, "text": "words"}\n'


@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        ("a.txt", LINES * 300, 300),
        ("a.txt", LINES * 300 + b"the last", 301),
        ("a.txt", LINES * 300_000, 299_999),
        ("a.txt.gz", gzip.compress(LINES * 300), 300),
        ("a.txt.gz", gzip.compress(LINES * 300_000), 0),  # only what is read tells how well it packs
        ("a.csv", b"id,text\n" + b"1,words\n" * 300, 301),
        ("a.jsonl", LINES * 300, 300),
        ("a.json", b'[{"id": 1}, {"id": 2}]', 0),
        ("a.json", b'{\n"id": 1\n}', 0),
        ("a.txt", b"", 0),
    ],
    ids=range(10),
)
def test_about_how_many_rows_there_are_is_told_by_the_first(
    tmp_path: Path, name: str, data: bytes, expected: int
) -> None:
    (tmp_path / name).write_bytes(data)
    read = {"txt": hr.read_text, "csv": hr.read_csv, "jso": hr.read_json}[name[2:5]]
    dataset = read(str(tmp_path / name))
    dataset._plan.source.splits()
    assert likely_rows(dataset._plan, -1) == expected
    if expected:
        assert likely_rows(dataset.limit(20)._plan, -1) == 20
        doubled = dataset.flat_map(lambda row: [row, row]).limit(20)
        assert likely_rows(doubled._plan, -1) == 0  # how many it takes, nobody knows


def test_a_run_of_one_small_file_is_shown_by_rows_before_the_file_is_read() -> None:
    state = RunState()
    state.add(RunStarted("r", "out", 1, 0, 0, -1, 1, size=9_000, sizes={0: 9_000}, likely=300), at=0.0)
    state.add(WorkerReady(0, 0.0), at=0.0)
    assert rows_text(state) == "  0 of about 300 rows"
    for second in range(1, 4):
        state.add(RowsRead(0, 0, 50 * second), at=float(second))
        state.tick(float(second))
    assert (state.share, rows_text(state)) == (0.5, "150 of about 300 rows")
    assert state.time_left(3.0) == pytest.approx(3.0, abs=0.1)
    state.add(RowsRead(0, 0, 400), at=4.0)  # there are more than it seemed
    state.tick(4.0)
    assert state.share is not None and 0.5 < state.share < 1.0


def test_rows_behind_a_limit_are_not_expected() -> None:
    data = hr.range(1_000_000).limit(1_500).map_batches(lambda batch: batch)
    shards = [Shard(0, (Split(0, 0, 1, 1_000_000),))]
    assert rows_expected(data._plan, shards) == 1_500
    assert (
        rows_expected(hr.range(9).filter(lambda row: False).limit(2)._plan, [Shard(0, (Split(0, 0, 1, 9),))])
        == 9
    )
