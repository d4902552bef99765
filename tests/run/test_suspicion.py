"""Narrowing down the rows that end workers, in a world without any."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from millrace.core.work import Caution, ErrorReport, Split
from millrace.run.rows import Rows, Span
from millrace.run.suspicion import PLAIN, Suspicion
from millrace.run.watching import Watch

SPLIT = Split(0, 0, 0)


def attempt(suspicion: Suspicion, caution: Caution, worker: int, rows: int, size: int, bad: set[int]) -> bool:
    """Carry out one attempt at a shard; say whether it came to its end."""
    skip = {row for reject in caution.skip for row in range(reject.row, reject.last + 1)}
    ids = [row for row in range(rows) if row not in skip]
    watch = Watch(caution, worker, 0, lambda note: suspicion.hear(note, 0.0)) if caution.watched else None
    for at in range(0, len(ids), size):
        some = ids[at : at + size]
        whole = Rows(pa.record_batch({"id": some}), tuple(Span(SPLIT, row, 1) for row in some))
        for part in watch.pieces(whole) if watch is not None else (whole,):
            call = watch.begins("predict(M)", part) if watch is not None else 0
            if bad & set(part.batch.column(0).to_pylist()):
                return False
            if watch is not None:
                watch.ends(call)
    return True


@given(
    rows=st.integers(1, 300),
    size=st.integers(1, 300),
    bad=st.lists(st.floats(0, 0.999), max_size=5),
)
def test_exactly_the_guilty_rows_are_found_in_few_deaths(rows: int, size: int, bad: list[float]) -> None:
    guilty = {int(rows * share) for share in bad}
    suspicion = Suspicion(raises=False)
    deaths = 0
    while not attempt(suspicion, suspicion.caution(0), deaths, rows, size, guilty):
        blame = suspicion.died(0, deaths, "killed")
        deaths += 1
        assert blame is (deaths <= PLAIN)
        assert deaths <= PLAIN + 3 * len(guilty)
    found = {row for reject in suspicion.caution(0).skip for row in range(reject.row, reject.last + 1)}
    assert found == guilty


def test_the_first_guilty_row_is_an_error_if_asked_for() -> None:
    suspicion = Suspicion(locate=lambda split, row: f"a.parquet, row {row}")
    told: Any = True
    worker = 0
    while not isinstance(told, ErrorReport):
        assert not attempt(suspicion, suspicion.caution(0), worker, 1000, 500, {777})
        told = suspicion.died(0, worker, "killed by SIGSEGV")
        worker += 1
    assert told.message.startswith("predict(M) cannot do a.parquet, row 777: ")


def test_shards_that_only_waited_are_not_to_blame() -> None:
    suspicion = Suspicion(raises=False)
    for worker in range(3):
        assert not attempt(suspicion, suspicion.caution(0), worker, 10, 10, {3})
        assert suspicion.died(0, worker, "killed") is (worker < PLAIN)
        assert suspicion.died(1, worker, "killed") is False
    assert suspicion.caution(1) == Caution()


def test_a_call_that_takes_too_long() -> None:
    suspicion = Suspicion(5.0, raises=False)
    watch = Watch(suspicion.caution(0), 8, 0, lambda note: suspicion.hear(note, 10.0))
    call = watch.begins("map(f)", Rows(pa.record_batch({"id": [4]}), (Span(SPLIT, 4, 1),)))
    assert suspicion.overdue(14.9) == []
    assert suspicion.overdue(15.1) == [(8, "map(f) was at a batch for more than batch_timeout=5 s")]
    assert suspicion.overdue(15.2) == [], "it is ended once"
    assert suspicion.died(0, 8, "too long") is False
    (guilty,) = suspicion.caution(0).skip
    assert (guilty.row, guilty.fault.kind) == (4, "BatchTimeout")
    watch.ends(call)
