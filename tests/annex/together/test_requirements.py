"""An output that is to meet requirements: nobody reads a row of it before, whoever is killed and whenever."""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

import headrace as hr
from annex.together.sinks import ROWS, SINKS
from faults.lives import Nursery
from headrace.errors import RequirementNotMet

TOO_MANY = 10_000


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    found = Nursery()
    yield found
    found.close()


@contextmanager
def watched(look: Callable[[], Any]) -> Iterator[list[Any]]:
    """Read in a loop meanwhile; what was found, or raised, is in the list."""
    found: list[Any] = []
    over = threading.Event()

    def read() -> None:
        while not over.is_set():
            try:
                seen = look()
            except Exception as error:
                seen = repr(error)
            if not found or found[-1] != seen:
                found.append(seen)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()


def refused(sink: str, place: str, required: int) -> None:
    """What a driver does that is to be killed: write, and be refused."""
    try:
        SINKS[sink].write({"required": required}, place)
    except RequirementNotMet:
        print("refused", flush=True)


def published(place: str) -> None:
    """What a driver does that is to be killed: publish."""
    hr.publish(place, because="it is a test")


def in_folder(place: str) -> int:
    out = f"{place}/out"
    visible = (
        [f"{out}/{name}" for name in os.listdir(out) if not name.startswith("_")]
        if os.path.exists(out)
        else []
    )
    return int(ds.dataset(visible, format="parquet").count_rows()) if visible else 0


def in_sqlite(place: str) -> int:
    if not os.path.exists(f"{place}/a.db"):
        return 0
    with sqlite3.connect(f"file:{place}/a.db?mode=ro", uri=True, timeout=30) as database:
        there = database.execute("SELECT count(*) FROM sqlite_master WHERE name = 't'").fetchone()[0]
        return int(database.execute("SELECT count(*) FROM t").fetchone()[0]) if there else 0


def in_delta(place: str) -> int:
    import deltalake

    if not deltalake.DeltaTable.is_deltatable(f"{place}/out"):
        return 0
    return int(deltalake.DeltaTable(f"{place}/out").to_pyarrow_dataset().count_rows())


READERS = {"parquet": in_folder, "sqlite": in_sqlite, "delta": in_delta}
BEFORE = {"run.opened": 1, "attempt.started": 3, "stage.closed": 2, "recover.swept": 1, "journal.append": 2}
BEFORE |= {"recover.opened": 1, "journal.synced": 2, "finish.withheld": 1}
AFTER = (
    "recover.opened",
    "swap.recorded",
    "swap.removed",
    "publish.rename",
    "publish.renamed",
    "table.filled",
)
LAST = ("swap.pointed", "finish.manifest", "finish.success", "finish.closed")


@pytest.mark.parametrize("sink", READERS)
def test_no_row_is_read_before_it_is_published(sink: str, nursery: Nursery, tmp_path: Path) -> None:
    if sink == "delta":
        pytest.importorskip("deltalake")
    place, log = str(tmp_path), tmp_path / "log"
    look, died = READERS[sink], 0

    def live(main: str, *arguments: Any, point: str = "", passage: int = 1) -> int:
        faults = {point: f"kill@{passage}"} if point else {}
        code = nursery.live("annex.together.test_requirements", [main, *arguments], log, faults=faults)
        assert code in (0, -signal.SIGKILL), log.read_text()
        return code != 0

    with watched(lambda: look(place)) as seen:
        for point, passage in BEFORE.items():
            died += live("refused", sink, place, TOO_MANY, point=point, passage=passage)
        live("refused", sink, place, TOO_MANY)
        live("refused", sink, place, TOO_MANY + 1)
    assert seen == [0], f"of {ROWS} rows, readers saw {seen}"
    assert died == len(BEFORE) and log.read_text().count("refused") >= 2
    [out] = [str(each.parent.parent) for each in tmp_path.glob("out/**/_headrace/next")]
    for point in AFTER:
        live("published", out, point=point)
    live("published", out)
    assert look(place) == ROWS and hr.verify(out).good
    assert hr.publish(out, because="again").rows == ROWS
    assert sorted(SINKS[sink].read(place)) == list(SINKS[sink].expected)


def main(function: str, *arguments: Any) -> None:
    """What a driver does."""
    globals()[function](*arguments)
