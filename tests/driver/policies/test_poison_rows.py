"""Narrowing down the rows that end workers, in a world without any."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.events import WorkerRetired
from headrace.core.source_ports import Location
from headrace.core.work import PoisonRows, Split
from headrace.driver.policies.poison_rows import UNWATCHED, PoisonRowDetector
from headrace.driver.policy import EndWorker, Verdict, WorkerDeath
from headrace.errors import WorkerDied
from headrace.worker.meter import CallWatch
from headrace.worker.rows import Rows, RowSpan

SPLIT = Split(0, 0, 0)


def death(shard: int, worker: int, reason: str) -> WorkerDeath:
    return WorkerDeath(WorkerDied(reason), worker, shard)


def attempt(
    detector: PoisonRowDetector, poison_rows: PoisonRows, worker: int, rows: int, size: int, bad: set[int]
) -> bool:
    """Carry out one attempt at a shard; say whether it came to its end."""
    skip = {row for reject in poison_rows.skip for row in range(reject.row, reject.last + 1)}
    ids = [row for row in range(rows) if row not in skip]
    watch = (
        CallWatch(poison_rows, worker, 0, lambda note: detector.on_message(note, 0.0))
        if poison_rows.watched
        else None
    )
    for at in range(0, len(ids), size):
        some = ids[at : at + size]
        whole = Rows(pa.record_batch({"id": some}), tuple(RowSpan(SPLIT, row, 1) for row in some))
        for part in watch.split_suspects(whole) if watch is not None else (whole,):
            call = watch.report_start("predict(M)", part) if watch is not None else 0
            if bad & set(part.batch.column(0).to_pylist()):
                return False
            if watch is not None:
                watch.report_end(call)
    return True


@given(
    rows=st.integers(1, 300),
    size=st.integers(1, 300),
    bad=st.lists(st.floats(0, 0.999), max_size=5),
)
def test_exactly_the_poison_rows_are_found_in_few_deaths(rows: int, size: int, bad: list[float]) -> None:
    poison = {int(rows * share) for share in bad}
    detector = PoisonRowDetector(raises=False)
    deaths = 0
    while not attempt(detector, detector.poison_rows(0), deaths, rows, size, poison):
        verdict = detector.on_death(death(0, deaths, "killed"))
        deaths += 1
        assert verdict == Verdict(charged=deaths <= UNWATCHED)
        assert deaths <= UNWATCHED + 3 * len(poison)
    found = {row for reject in detector.poison_rows(0).skip for row in range(reject.row, reject.last + 1)}
    assert found == poison


def test_the_first_poison_row_is_an_error_if_asked_for() -> None:
    detector = PoisonRowDetector(locate=lambda split, row: Location("a.parquet", row))
    verdict = Verdict()
    worker = 0
    while verdict.error is None:
        assert not attempt(detector, detector.poison_rows(0), worker, 1000, 500, {777})
        verdict = detector.on_death(death(0, worker, "killed by SIGSEGV"))
        worker += 1
    assert verdict.error.message.startswith("predict(M) cannot process a.parquet, row 777: ")


def test_shards_that_only_waited_are_not_charged() -> None:
    detector = PoisonRowDetector(raises=False)
    for worker in range(3):
        assert not attempt(detector, detector.poison_rows(0), worker, 10, 10, {3})
        assert detector.on_death(death(0, worker, "killed")).charged is (worker < UNWATCHED)
        assert detector.on_death(death(1, worker, "killed")) == Verdict(charged=False)
    assert detector.poison_rows(1) == PoisonRows()


def test_a_call_that_takes_too_long() -> None:
    detector = PoisonRowDetector(5.0, raises=False)
    watch = CallWatch(detector.poison_rows(0), 8, 0, lambda note: detector.on_message(note, 10.0))
    call = watch.report_start("map(f)", Rows(pa.record_batch({"id": [4]}), (RowSpan(SPLIT, 4, 1),)))
    assert detector.overdue(14.9) == []
    assert detector.overdue(15.1) == [
        EndWorker(8, "map(f) worked on one batch for more than batch_timeout=5 s")
    ]
    assert detector.overdue(15.2) == [], "it is ended once"
    assert detector.on_death(death(0, 8, "too long")) == Verdict(charged=False)
    (reject,) = detector.poison_rows(0).skip
    assert (reject.row, reject.fault.kind) == (4, "BatchTimeout")
    watch.report_end(call)


def test_a_worker_that_was_ended_for_its_memory_was_not_ended_by_its_call() -> None:
    detector = PoisonRowDetector(5.0, raises=False)
    watch = CallWatch(detector.poison_rows(0), 8, 0, lambda note: detector.on_message(note, 10.0))
    watch.report_start("map(f)", Rows(pa.record_batch({"id": [4]}), (RowSpan(SPLIT, 4, 1),)))
    detector.on_message(WorkerRetired(0, 8, 1 << 30, 1 << 30, True, False, "memory"), 11.0)
    assert detector.overdue(100.0) == []
    assert detector.poison_rows(0).suspects == ()


def test_a_worker_with_several_calls_dies_once() -> None:
    """Workers of an earlier stage have more than one call for a shard: each fails when they die."""
    detector = PoisonRowDetector(raises=False)
    worker = 0
    while not attempt(detector, detector.poison_rows(0), worker, 30, 10, {7}):
        detector.on_death(death(0, worker, "killed"))
        detector.on_death(death(0, worker, "killed"))
        worker += 1
    assert [(reject.row, reject.count) for reject in detector.poison_rows(0).skip] == [(7, 1)]
