"""The summary says where rows and time went."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.core.events import Ceiling, RunFinished
from headrace.core.work import Ledger, Timings
from headrace.observers.summary import shares, summary, terms
from headrace.plan.accounts import wrong_in


def finished(**changes: Any) -> RunFinished:
    values = {
        "run": "r1",
        "output": "/out",
        "ledger": Ledger(12_000_000, 12_000_000),
        "timings": Timings(2.0, 6.0, 1.5, 0.5),
        "bytes": 340 << 20,
        "files": 12,
        "seconds": 5.8,
        **changes,
    }
    return RunFinished(**values)


def test_a_plain_run() -> None:
    assert summary(finished()) == (
        "12,000,000 rows in, 12,000,000 out in 5.8 s: 2.1 M rows/s\n"
        "12 files, 340 MiB in /out\n"
        "workers: read 20 %, steps 60 %, write 15 %, wait 5 %"
    )


def test_retries_are_told() -> None:
    assert summary(finished(retries=1)).endswith("wait 5 %; 1 retry")
    assert summary(finished(retries=3, timings=Timings())).endswith("\nworkers: 3 retries")


def test_rows_of_an_earlier_run_do_not_count_for_the_speed() -> None:
    assert "5.8 s: 1 M rows/s" in summary(finished(), rows_before=6_200_000)
    assert "rows/s" not in summary(finished(), rows_before=12_000_000)


def steps(read: int, *each: tuple[int, int, int, int, int, int]) -> Ledger:
    """Return the ledger of steps with rows in, out, set aside, dropped, added and unused."""
    ins, outs, aside, dropped, added, unused = zip(*each, strict=True)
    pairs = tuple(zip(ins, outs, strict=True))
    return Ledger(read, outs[-1], sum(aside), pairs, aside, 0, dropped, added, unused)


@pytest.mark.parametrize(
    ("ledger", "labels", "expected"),
    [
        (Ledger(10, 10), [], []),
        (Ledger(10, 7, 3), [], ["3 rejected"]),
        (steps(10, (10, 4, 0, 6, 0, 0)), ["filter(x > 1)"], ["6 filtered"]),
        (steps(10, (10, 4, 1, 5, 0, 0)), ["filter(x > 1)"], ["5 filtered", "1 rejected"]),
        (steps(10, (10, 5, 0, 5, 0, 0)), ["limit(5)"], ["5 cut by limit"]),
        (steps(10, (10, 30, 0, 0, 20, 0)), ["flat_map(split)"], ["20 added"]),
        (steps(10, (10, 12, 0, 3, 5, 0)), ["flat_map(split)"], ["5 added", "3 dropped"]),
        (steps(10, (10, 8, 0, 2, 0, 0)), ["map_batches(clean)"], ["2 dropped"]),
        (steps(10, (10, 8, 0, 0, 0, 2), (8, 5, 0, 3, 0, 0)), ["map(f)", "limit(5)"], ["5 cut by limit"]),
        (
            steps(100, (100, 90, 0, 10, 0, 0), (90, 85, 5, 0, 0, 0), (85, 60, 0, 25, 0, 0)),
            ["filter(a)", "map(f)", "limit(60)"],
            ["10 filtered", "25 cut by limit", "5 rejected"],
        ),
    ],
)
def test_every_row_is_accounted_for(ledger: Ledger, labels: list[str], expected: list[str]) -> None:
    assert [f"{number:,} {what}" for number, what in terms(ledger, labels)] == expected
    assert wrong_in(ledger, labels) == "" or not ledger.steps


def test_a_row_that_nobody_counted_is_no_loss_that_anybody_knows_of() -> None:
    lost = steps(100, (100, 60, 0, 0, 0, 0))
    assert terms(lost, ["predict(Net)"]) == []
    assert wrong_in(lost, ["predict(Net)"]).startswith("100 rows came to predict(Net) and 60 left it")


def test_no_rows_no_time() -> None:
    assert summary(finished(ledger=Ledger(), timings=Timings(), bytes=0, files=1, seconds=0.0)) == (
        "0 rows in, 0 out in 0.00 s\n1 file, 0 B in /out"
    )
    assert shares(Timings()) == ""


def test_what_fits_into_memory_is_told() -> None:
    ceilings = (Ceiling("map_batches(big)", 1), Ceiling("predict(Net)", 12_345))
    assert summary(finished(ceilings=ceilings)).splitlines()[-2:] == [
        "memory: map_batches(big) got 1 row at a time, more did not fit; batches of that size would avoid retries",
        "memory: predict(Net) got 12,345 rows at a time, more did not fit; batches of that size would avoid retries",
    ]


def test_a_failed_run_says_what_is_kept() -> None:
    assert summary(finished(error="StepError: clean failed\nTraceback")) == (
        "failed after 5.8 s: StepError: clean failed\n"
        "12,000,000 rows are safe in /out: the same command, run again, resumes from there"
    )
