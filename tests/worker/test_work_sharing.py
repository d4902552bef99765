"""An attempt leaves a part of its shard to others while it goes on: each row is done once, and batches stay whole."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import headrace as hr
from crossed import few
from headrace.core.messages import LeaveRest
from headrace.core.work import Fault, Reject, Remainder, Shard, Split
from headrace.driver.policies.shards import EarlyCommit, WorkSharing
from headrace.driver.shards import split_off
from headrace.session import build_runner
from headrace.testing import FakeClock
from headrace.worker.early_end import EarlyEnd, PlaceLost, Speed
from headrace.worker.meter import Meter
from headrace.worker.reading import Read
from headrace.worker.rows import Rows, RowSpan
from headrace.worker.stage_worker import StageWorker
from headrace.worker.user_code import UserCode

# ---------------------------------------------------------------- where it is cut


class Attempt:
    """An attempt at a shard whose rows are read in pieces; some rows cannot be read, and each takes a second."""

    def __init__(
        self,
        shard: Shard,
        *,
        unit: int = 0,
        piece: int = 100,
        bad: frozenset[int] = frozenset(),
        rate: float = 1.0,
    ) -> None:
        self.shard, self.piece, self.bad = shard, piece, bad
        self.clock, self.meter = FakeClock(), Meter(0)
        self.early_end = EarlyEnd(
            shard,
            (),
            self.meter,
            every=0.0,
            shared=True,
            unit=unit,
            speed=Speed(rate),
            ready=lambda: True,
            clock=self.clock,
        )

    def reads(self) -> Iterator[Read]:
        for split in self.early_end.splits():
            high = split.stop if split.high < 0 else min(split.high, split.stop)
            for at in range(split.low, high, self.piece):
                rows = range(at, min(at + self.piece, high))
                good = [row for row in rows if row not in self.bad]
                spans = tuple(RowSpan(split, row, 1) for row in good) or (RowSpan(split, at, 0),)
                rejects = tuple(
                    Reject(split, row, row, Fault("read", "E", "")) for row in rows if row in self.bad
                )
                yield Read(Rows(pa.record_batch({"row": pa.array(good, pa.int64())}), spans), rejects)

    def run(self) -> Iterator[tuple[int, int, bool]]:
        """Yield the rows that are passed, each after a second of work: file, number, and whether it is good."""
        for read in self.early_end.pass_reads(self.reads()):
            for reject in read.rejects:
                yield reject.split.file, reject.row, False
            for span in read.rows.spans:
                for number in span.numbers():
                    self.clock.advance(1.0)
                    self.meter.read_rows += 1
                    yield span.split.file, int(number), True


@st.composite
def shards(draw: st.DrawFn) -> Shard:
    counts = draw(st.lists(st.integers(1, 30), min_size=1, max_size=4))
    known = draw(st.lists(st.booleans(), min_size=len(counts), max_size=len(counts)))
    return Shard(
        0,
        tuple(
            Split(i, 0, n, n if knows else -1, n)
            for i, (n, knows) in enumerate(zip(counts, known, strict=True))
        ),
    )


@settings(max_examples=few(20), deadline=None)
@given(shards(), st.data())
def test_each_row_is_done_once_however_often_others_ask(shard: Shard, data: st.DataObject) -> None:
    bad = data.draw(st.frozensets(st.integers(0, 29), max_size=8))
    unit = data.draw(st.sampled_from([0, 0, 4]))
    piece, rate = data.draw(st.integers(1, 40)), data.draw(st.sampled_from([0.0, 1.0, 40.0]))
    table = {0: shard}
    todo, done, family = [0], [], {(0,)}
    starts: list[int] = []  # how many rows of a shard were passed before each one that is left
    while todo:
        number = todo.pop()
        attempt = Attempt(table[number], unit=unit, piece=piece, bad=bad, rate=rate)
        passed = 0
        for row in attempt.run():
            done.append((table[number].place, *row))
            passed += row[2]
            if data.draw(st.integers(0, 3)) == 0:
                rests = attempt.early_end.leave(0.0, data.draw(st.integers(2, 4)))
                for rest in rests[: data.draw(st.integers(0, 3))]:  # else its outcome says it first
                    divide(table, number, rest, todo, family)
        if attempt.early_end.rest is not None:
            divide(table, number, attempt.early_end.rest, todo, family)
            starts.append(passed)
    expected = [(split.file, row, row not in bad) for split in shard.splits for row in range(split.stop)]
    assert sorted(row[1:] for row in done) == expected
    assert [row[1:] for row in sorted(done, key=lambda row: (row[0], row[1], row[2]))] == expected
    if unit and not bad and all(split.rows >= 0 for split in shard.splits):
        assert all(start % unit == 0 for start in starts)


def divide(
    table: dict[int, Shard], number: int, rest: Remainder, todo: list[int], family: set[tuple[int, ...]]
) -> None:
    parts = split_off(table[number], rest, len(table), family)
    if len(parts) > 1:
        table[number] = parts[0]
        table[parts[1].index] = parts[1]
        assert parts[1].place not in family
        family.add(parts[1].place)
        todo.append(parts[1].index)


ROWS = Shard(0, (Split(0, 0, 100, 100),))


def test_what_is_under_way_is_a_part_of_what_is_kept() -> None:
    attempt = Attempt(ROWS, rate=40.0)
    next(attempt.run())  # one of ten rows that are passed at a time
    assert attempt.early_end.leave(0.0, 2) == [Remainder(0, 51, 51)]
    attempt = Attempt(Shard(0, (Split(0, 0, 2, 2),)))
    running = attempt.early_end.pass_reads(attempt.reads())
    assert len(next(running).rows) == 1
    attempt.clock.advance(1.0)
    assert attempt.early_end.leave(0.5, 2) == [Remainder(0, 1, 1)]  # all that is ahead
    assert not [*running] and attempt.early_end.rest == Remainder(0, 1, 1)


def test_fewer_rows_are_passed_at_a_time_where_they_become_slower() -> None:
    attempt, passed = Attempt(ROWS), []
    for read in attempt.early_end.pass_reads(attempt.reads()):
        passed.append(len(read.rows))
        attempt.meter.read_rows += len(read.rows)
        attempt.clock.advance(len(read.rows) * (0.01 if attempt.meter.read_rows < 50 else 1.0))
    assert max(passed[:10]) > 20 and set(passed[-10:]) == {1}


def run_until(attempt: Attempt, rows: int) -> Iterator[tuple[int, int, bool]]:
    """Have so many rows done, and the next one begun."""
    running = attempt.run()
    for _ in range(rows + 1):
        next(running)
    return running


def test_a_half_is_kept_and_a_smaller_share_where_more_ask() -> None:
    attempt = Attempt(ROWS)
    run_until(attempt, 20)
    assert attempt.early_end.leave(1.0, 2) == [Remainder(0, 61, 61)]  # 21 rows are passed
    assert attempt.early_end.shard_rows == 61
    assert attempt.early_end.leave(1.0, 5) == [Remainder(0, row, row) for row in (53, 45, 37, 29)]
    assert attempt.early_end.shard_rows == 29
    assert attempt.early_end.leave(3.5, 5) == [
        Remainder(0, row, row) for row in (27, 24)
    ]  # as many as are worth it


def test_as_many_rows_are_done_as_the_slowest_step_has_done() -> None:
    meter = Meter(2)
    first, second = (UserCode("", "", lambda rows: "", meter, step=step) for step in range(2))
    first.done, meter.steps[1].taken, second.done = 10, 100, 50
    assert meter.done_rows == 5
    first.done, meter.steps[1].taken = 11, 1100  # a row of a thousand pieces
    assert meter.done_rows == 5
    second.done = 1100
    assert meter.done_rows == 11


def test_nothing_is_left_that_is_not_worth_it() -> None:
    attempt = Attempt(ROWS)
    running = run_until(attempt, 60)
    assert attempt.early_end.leave(60.0, 2) == []
    assert attempt.early_end.leave(30.0, 2) == [Remainder(0, 81, 81)]
    assert len(list(running)) == 20 and attempt.early_end.rest == Remainder(0, 81, 81)
    assert attempt.early_end.leave(0.0, 2) == []  # it is over


def test_rows_that_take_longer_of_late_are_worth_more() -> None:
    attempt = Attempt(ROWS)
    run_until(attempt, 50)
    assert attempt.early_end.leave(200.0, 2) == []
    attempt.clock.advance(5.0)  # at the row that is under way
    assert attempt.early_end.leave(200.0, 2) == [Remainder(0, 76, 76)]


def test_a_split_that_takes_long_to_read_is_not_read_twice() -> None:
    splits = tuple(Split(n, 0, 10, 10, 10) for n in range(4))
    attempt = Attempt(Shard(0, splits), piece=10)
    run_until(attempt, 4)
    attempt.meter.seconds["read"] = 1000.0
    assert attempt.early_end.leave(1.0, 2) == [Remainder(2, 0, 20)]
    alone = Attempt(Shard(0, splits[:1]), piece=10)
    run_until(alone, 2)
    alone.meter.seconds["read"] = 1000.0
    assert alone.early_end.leave(1.0, 2) == []


def test_batches_stay_whole() -> None:
    attempt = Attempt(ROWS, unit=32)
    run_until(attempt, 1)
    assert attempt.early_end.leave(1.0, 3) == [Remainder(0, 96, 96), Remainder(0, 64, 64)]
    unknown = tuple(Split(n, 0, 50, -1, 10) for n in range(4))
    attempt = Attempt(Shard(0, unknown), unit=8)
    run_until(attempt, 1)
    assert attempt.early_end.leave(1.0, 2) == [
        Remainder(0, 32, 32)
    ]  # nobody knows how many rows the others have


def test_others_get_whole_splits_whose_rows_nobody_knows() -> None:
    attempt = Attempt(Shard(0, tuple(Split(n, 0, 50, -1, 10) for n in range(4))))
    run_until(attempt, 10)
    (rest,) = attempt.early_end.leave(1.0, 2)
    assert (rest.split, rest.row) == (2, 0)
    attempt = Attempt(Shard(0, (Split(0, 0, 50, -1, 10),)))
    run_until(attempt, 9)
    assert attempt.early_end.leave(1.0, 2) == [Remainder(0, 30, 30)]


def test_an_attempt_leaves_nothing_before_there_is_a_schema() -> None:
    attempt = Attempt(ROWS)
    run_until(attempt, 1)
    attempt.early_end._ready = lambda: False
    assert attempt.early_end.leave(0.0, 2) == []


# ---------------------------------------------------------------- rows of a stage before


def blocks_of(shard: Shard, *, without: int | None = None, size: int = 10) -> Iterator[Read]:
    """The rows of a shard as a stage before hands them on, maybe all but one."""
    for split in shard.splits:
        for at in range(0, split.rows, size):
            rows = [row for row in range(at, min(at + size, split.rows)) if row != without]
            batch = pa.record_batch({"row": pa.array(rows, pa.int64())})
            yield Read(Rows(batch, (RowSpan(split, 0, len(rows), np.array(rows)),)))


STAGED = Shard(0, (Split(0, 0, 60, 60), Split(1, 0, 40, 40)))


@settings(max_examples=few(16), deadline=None)
@given(
    st.lists(st.integers(1, 99), min_size=1, max_size=4),
    st.integers(1, 70),
    st.sampled_from([0.0, 1.0, 40.0]),
)
def test_a_stage_passes_the_rows_up_to_the_cut(asked: list[int], size: int, rate: float) -> None:
    attempt = Attempt(STAGED, rate=rate)
    passed: list[tuple[int, int]] = []
    rests: list[Remainder] = []
    for part in attempt.early_end.pass_reads(blocks_of(STAGED, size=size), of_blocks=True):
        for span in part.rows.spans:
            for number in span.numbers():
                attempt.clock.advance(1.0)
                attempt.meter.read_rows += 1
                passed.append((span.split.file, int(number)))
                if len(passed) in asked:
                    rests += attempt.early_end.leave(0.0, 3)
    every = [(split.file, row) for split in STAGED.splits for row in range(split.rows)]
    rest = attempt.early_end.rest
    assert passed == (every if rest is None else every[: rest.rows])
    assert (rest is None) == (not rests)
    if rest is not None:
        assert rests[-1] == rest and attempt.meter.read_rows == rest.rows
        assert rest.rows == len(every) or every[rest.rows] == (rest.split, rest.row)


def test_an_attempt_begins_anew_if_rows_turn_out_to_be_missing_before_the_cut() -> None:
    attempt = Attempt(STAGED)
    rows = attempt.early_end.pass_reads(blocks_of(STAGED, without=45), of_blocks=True)
    next(rows)
    attempt.meter.read_rows += 1
    attempt.clock.advance(1.0)
    (rest,) = attempt.early_end.leave(0.0, 2)
    assert (rest.split, rest.row) > (0, 45)
    with pytest.raises(PlaceLost, match="rows are missing"):
        list(rows)


def test_an_attempt_begins_anew_if_rows_fail_in_a_stage_before() -> None:
    attempt = Attempt(STAGED)
    next(attempt.early_end.pass_reads(blocks_of(STAGED), of_blocks=True))
    attempt.clock.advance(1.0)
    assert attempt.early_end.leave(0.0, 2)
    with pytest.raises(PlaceLost, match="rows failed"):
        attempt.early_end.rows_failed_upstream()
    other = Attempt(STAGED)
    next(other.early_end.pass_reads(blocks_of(STAGED), of_blocks=True))
    other.clock.advance(1.0)
    other.early_end.rows_failed_upstream()
    assert other.early_end.leave(0.0, 2) == []  # it is not known any more where rows come from


# ---------------------------------------------------------------- whole runs, asked at any row


class Asking:
    """A model during whose calls others ask for work: at the rows in ``at``."""

    def __init__(self, worker: list[StageWorker], at: set[int]) -> None:
        self.worker, self.at = worker, at
        self.lengths: list[int] = []

    def __reduce__(self) -> Any:  # what it notes is no part of the job
        return Asking, ()

    def __copy__(self) -> Asking:
        return self

    def _ask(self, ids: list[int]) -> None:
        if self.at.intersection(ids):
            for shard, attempt in list(self.worker[-1]._attempts):
                self.worker[-1].feed(shard, attempt, LeaveRest(0.0, 2))

    def batch(self, batch: dict[str, Any]) -> dict[str, Any]:
        self.lengths.append(len(batch["id"]))
        self._ask(batch["id"].tolist())
        if (batch["id"] % 50 == 7).any():
            raise ValueError("not this one")
        return {"id": batch["id"], "half": batch["id"] / 2}

    def row(self, row: dict[str, Any]) -> dict[str, Any]:
        return {name: values[0].item() for name, values in self.batch({"id": np.array([row["id"]])}).items()}


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> list[StageWorker]:
    """The workers of runs in this process, whose shards may be divided as if there were others."""
    made: list[StageWorker] = []
    looks = itertools.count()

    def make(*args: Any) -> StageWorker:  # a machine so slow that rows are left when others ask
        made.append(StageWorker(*args, clock=lambda: next(looks) / 100))
        return made[-1]

    policies_of = build_runner.policies_of

    def with_sharing(*args: Any, **options: Any) -> list[Any]:
        return [*policies_of(*args, **options), EarlyCommit(0.0), WorkSharing(1)]

    monkeypatch.setattr("headrace.worker.stage_worker.StageWorker", make)
    monkeypatch.setattr(build_runner, "policies_of", with_sharing)
    return made


def twice(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    return iter([row] * (row["id"] % 3))


def rows_of(output: Path) -> list[dict[str, Any]]:
    found = sorted(path for path in output.iterdir() if path.name.startswith("part-"))
    return [row for path in found for row in pq.read_table(path).to_pylist()]


@settings(max_examples=few(4), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(at={40, 80, 81, 300}, how="map", kind="parquet", every=None)
@given(
    at=st.sets(st.integers(0, 399), max_size=12),
    how=st.sampled_from(["map", "auto", 6]),
    kind=st.sampled_from(["csv", "json", "parquet"]),
    every=st.sampled_from([None, 1e-9]),
)
def test_the_output_is_that_of_whole_shards(
    worker: list[StageWorker], at: set[int], how: Any, kind: str, every: float | None
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_input(folder / "in", kind)

        def run(output: str, at: set[int], every: float | None) -> Any:
            model = Asking(worker, at)
            data = getattr(hr, f"read_{kind}")(str(folder / "in"))
            data = (
                data.map(model.row, version="1")
                if how == "map"
                else data.map_batches(model.batch, batch_size=how, version="1")
            )
            data = data.flat_map(twice).accumulate(mean=hr.Mean("half"), rows=hr.Count())
            options: dict[str, Any] = {"on_error": "reject", "shard_rows": 400, "commit_every": every}
            data = data.with_options(engine="inline", progress=False, **options)
            return data.write_parquet(folder / output), model

        (whole, first), (cut, second) = run("whole", set(), None), run("cut", at, every)
        assert cut.files >= (2 if 81 in at and how == "map" and kind == "parquet" else whole.files)
        if kind == "parquet" and how != "auto":
            assert sorted(second.lengths) == sorted(first.lengths)  # batches are whole
        assert cut.ledger == whole.ledger and dict(cut.metrics) == dict(whole.metrics)
        assert rows_of(folder / "cut") == rows_of(folder / "whole")
        rejected = [
            hr.read_rejected(folder / name).to_arrow().select(["id"]).to_pydict() for name in ("cut", "whole")
        ]
        assert rejected[0] == rejected[1]


def make_input(folder: Path, kind: str) -> None:
    """Text of which some records make no sense, or a file without fault."""
    folder.mkdir()
    if kind == "parquet":
        pq.write_table(pa.table({"id": list(range(400))}), folder / "0.parquet", row_group_size=150)
        return
    for number in range(2):
        ids = range(number * 200, (number + 1) * 200)
        if kind == "csv":
            lines = ["id,x", *(f"{n}," if n % 11 == 5 else f"{n},{n}" for n in ids)]
        else:
            lines = ["{" if n % 11 == 5 else f'{{"id": {n}}}' for n in ids]
        (folder / f"{number}.{kind}").write_text("\n".join(lines) + "\n")
