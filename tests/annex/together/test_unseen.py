"""What is not published is read by nobody: requirements, also against another output, and repaired rows.

One driver after the other is killed at the points of the matrix. A reader looks all the while, with a library that is
not ours, and where a table takes them, another program adds rows. Readers see what was there before, or all of it.

The soak passes all points, and kills ``HEADRACE_SOAK_KILLS`` drivers (200) of each cell at moments by the clock.
"""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from faults.lives import Nursery
from headrace.errors import PlanError, RequirementNotMet
from headrace.sources.range import RangeSource
from servers import server  # noqa: F401 - fixtures of the soak
from stores.conftest import _proxy, bucket, port, proxy, raw  # noqa: F401
from targets import TARGETS

ROWS, BAD, MOVED, THEIRS = 120, 10, 1001, 1_000_000
KILLS = int(os.environ.get("HEADRACE_SOAK_KILLS", "200"))
Seen = frozenset[tuple[int, int]]
NONE: Seen = frozenset()
GOOD = frozenset((i, i * 3) for i in range(ROWS) if i % BAD != 7)
ALL = GOOD | {(i + MOVED, (i + MOVED) * 3) for i in range(7, ROWS, BAD)}


def times(batch: dict[str, Any]) -> Any:
    if (batch["id"] % BAD == 7).any():
        raise ValueError("a bad row")
    return batch["id"] * 3


def repaired(batch: dict[str, Any]) -> dict[str, Any]:
    return {"id": batch["id"] + MOVED}


def rows() -> hr.Dataset:
    data = hr.Dataset.from_source(RangeSource(ROWS, rows_per_split=20))
    data = data.predict(times, inputs=["id"], output="product", batch_size=5, version="1")
    return data.with_options(
        engine="inline", progress=False, shard_rows=20, durability="process", on_error="reject"
    )


# ------------------------------------------------------------ what others see

Look = Callable[[str], Seen | None]  # the rows that others read, None while there is no saying
Add = Callable[[str, int], None]  # another program adds a row, if there is a table


def seen(pairs: Any) -> Seen:
    found = [(int(i), int(product)) for i, product in pairs]
    assert len(found) == len({*found}), "a row is there twice"
    return frozenset(found)


def in_files(
    mark: Callable[[], Any], names: Callable[[], list[str]], read: Callable[[list[str]], Any]
) -> Seen | None:
    """Read files as a reader does who heeds ``_SUCCESS``; where others are without it, there is no saying."""
    before, there = mark(), names()
    if before is None:
        return None if there else NONE
    try:
        found = seen(read(there))
    except Exception:
        if before == mark():
            raise
        return None
    return found if before == mark() else None


def in_folder(place: str) -> Seen | None:
    import duckdb
    import pyarrow.parquet as pq

    out = Path(f"{place}/out")

    def read(paths: list[str]) -> Any:
        with closing(duckdb.connect()) as database:
            theirs = database.execute("SELECT id, product FROM read_parquet(?)", [paths]).fetchall()
        tables = [pq.read_table(path) for path in paths]
        assert sorted(theirs) == sorted(
            row for t in tables for row in zip(*t.to_pydict().values(), strict=True)
        )
        return theirs

    mark = lambda: (out / "_SUCCESS").read_bytes() if (out / "_SUCCESS").exists() else None  # noqa: E731
    return in_files(mark, lambda: [str(path) for path in out.glob("part-*")], read)


def in_bucket(place: str) -> Seen | None:
    import pyarrow.parquet as pq
    from pyarrow import fs

    store = fs.S3FileSystem(endpoint_override=os.environ["AWS_ENDPOINT_URL"], scheme="http")
    out = TARGETS["s3"](place).output.removeprefix("s3://")

    def mark() -> Any:
        found = store.get_file_info(f"{out}/_SUCCESS")
        return (found.mtime_ns, found.size) if found.is_file else None

    def names() -> list[str]:
        listed = store.get_file_info(fs.FileSelector(out, allow_not_found=True))
        return [each.path for each in listed if each.base_name.startswith("part-")]

    def read(paths: list[str]) -> Any:
        tables = [pq.read_table(path, filesystem=store) for path in paths]
        return [row for t in tables for row in zip(*t.to_pydict().values(), strict=True)]

    return in_files(mark, names, read)


def of_lake(target: str, put: Callable[[Any, Any], Any], *conflicts: str) -> tuple[Look, Add]:
    """Read a table with its own library, and add rows with it. ``conflicts``: what it raises if we came first."""

    def look(place: str) -> Seen:
        return ours((row["id"], row["product"]) for row in TARGETS[target](place).rows())

    def add(place: str, number: int) -> None:
        import pyarrow as pa

        lake: Any = TARGETS[target](place)
        if lake.there():
            row = pa.table({"id": [THEIRS + number], "product": [0]})
            try:
                put(lake.table(), row)
            except Exception as error:
                if type(error).__name__ not in conflicts:
                    raise

    return look, add


def to_delta(table: Any, row: Any) -> None:
    import deltalake

    deltalake.write_deltalake(table, row, mode="append")


def to_lance(table: Any, row: Any) -> None:
    import lance

    lance.write_dataset(row, table, mode="append")


def ours(pairs: Any) -> Seen:
    return seen(pair for pair in pairs if pair[0] < THEIRS)


QUERY = f"SELECT id, product FROM t WHERE id < {THEIRS}"
INSERT = f"INSERT INTO t (id, product) VALUES ({THEIRS} + {{number}}, 0)"


def sqlite(place: str, sql: str) -> list[Any]:
    if not os.path.exists(f"{place}/a.db"):
        return []
    with closing(sqlite3.connect(f"{place}/a.db", timeout=60)) as database, database:
        if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 't'").fetchall():
            return []
        return database.execute(sql).fetchall()


def postgresql(place: str, sql: str) -> list[Any]:
    from adbc_driver_postgresql import dbapi

    with dbapi.connect(TARGETS["postgresql"](place).told["uri"]) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT to_regclass('t')::text")
        if cursor.fetchall() == [(None,)]:
            return []
        cursor.execute(sql)
        found = cursor.fetchall() if cursor.description else []
        connection.commit()
        return found


def of_database(run: Callable[[str, str], list[Any]]) -> tuple[Look, Add]:
    def add(place: str, number: int) -> None:
        run(place, INSERT.format(number=number))

    return lambda place: seen(run(place, QUERY)), add


OTHERS: dict[str, tuple[Look, Add]] = {
    "parquet": (in_folder, lambda place, number: None),
    "s3": (in_bucket, lambda place, number: None),
    "delta": of_lake("delta", to_delta, "CommitFailedError"),
    "iceberg": of_lake("iceberg", lambda table, row: table.append(row), "CommitFailedException"),
    "lance": of_lake("lance", to_lance),
    "sqlite": of_database(sqlite),
    "postgresql": of_database(postgresql),
}


# ------------------------------------------------------------ what drivers do


def written(target: str, place: str) -> None:
    TARGETS[target](place).write(rows())


def required(target: str, place: str) -> None:
    asking(target, place, rows().require(rejected=hr.at_most(0.05)))


def changed(target: str, place: str) -> None:
    """Against the output of yesterday, in which a tenth of the rows are others."""
    asking(target, place, rows().require(changed=hr.at_most(0.05), against=f"{place}/yesterday", on="id"))


def asking(target: str, place: str, data: hr.Dataset) -> None:
    with suppress(RequirementNotMet):
        TARGETS[target](place).write(data)
        raise AssertionError("the requirement was met")


def published(target: str, place: str) -> None:
    hr.publish(TARGETS[target](place).output, because="it is a test", **TARGETS[target](place).told)


def retried(target: str, place: str) -> None:
    TARGETS[target](place).write(rows(), refresh="rejected", fix=repaired)


def retried_as_required(target: str, place: str) -> None:
    asked = rows().require(rejected=hr.at_most(0.05))
    TARGETS[target](place).write(asked, refresh="rejected", fix=repaired)


def main(function: str, *arguments: Any) -> None:
    globals()[function](*arguments)


# ------------------------------------------------------------ the matrix

Points = list[tuple[str, int]]  # and how often each is passed before a driver is killed there
MAKING: Points = [("run.opened", 1), ("recover.opened", 1), ("journal.append", 1), ("attempt.started", 3)]
MAKING += [("stage.closed", 2), ("recover.swept", 1), ("store.uploaded", 2), ("journal.synced", 1)]
ENDING: Points = [("store.appended", 1), ("swap.recorded", 1), ("swap.removed", 1), ("publish.rename", 2)]
ENDING += [("table.filled", 1), ("publish.renamed", 1), ("swap.pointed", 1), ("finish.manifest", 1)]
ENDING += [("finish.success", 1), ("finish.closed", 1)]


@dataclass(frozen=True)
class Case:
    """What is done first and undisturbed; then each with its points; what readers may see in the end, and before."""

    steps: tuple[tuple[str, Points], ...]
    first: str = ""
    before: Seen = NONE
    after: Seen = GOOD


CASES = {
    "published": Case((("required", [*MAKING, ("finish.withheld", 1)]), ("published", ENDING))),
    "changed": Case((("changed", [*MAKING, ("finish.withheld", 1)]), ("published", ENDING))),
    "repaired": Case((("retried", [*MAKING, *ENDING]),), "written", GOOD, ALL),
    "repaired before": Case((("retried_as_required", [*MAKING, *ENDING]),), "required", NONE, ALL),
}


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    found = Nursery()
    yield found
    found.close()


@contextmanager
def watched(target: str, place: str) -> Iterator[list[Any]]:
    """Read in a loop meanwhile, and have another program add rows; what was found, or raised, is in the list."""
    found: list[Any] = []
    (look, add), over = OTHERS[target], threading.Event()

    def read() -> None:
        number = 0
        while not over.wait(0.002):  # a core is for the driver
            try:
                if number % 8 == 0 and number < 200:
                    add(place, number)
                saw: Any = look(place)
            except Exception as error:
                saw = repr(error)
            number += 1
            if saw is not None and saw not in found:
                found.append(saw)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()


def played(
    case: str,
    target: str,
    place: Path,
    live: Callable[..., int],
    kills: Callable[[Points], list[dict[str, Any]]],
) -> int:
    """Play a cell in a new place; return how many drivers were killed."""
    place.mkdir()
    told, how, died = CASES[case], TARGETS[target](place), 0
    how.prepare()
    if case == "changed":
        other = rows().map_batches(
            lambda batch: {**batch, "product": batch["product"] + (batch["id"] % 9 == 0)}
        )
        other.with_options(on_error="reject").write_parquet(f"{place}/yesterday")
    if told.first:
        main(told.first, target, str(place))
    for number, (step, points) in enumerate(told.steps, 1):
        allowed = {told.before} | ({told.after} if number == len(told.steps) else set())
        allowed |= {NONE} if target in ("parquet", "s3") else set()  # while ``_SUCCESS`` is gone
        with watched(target, str(place)) as saw:
            for end in kills(points):
                died += live(step, target, str(place), **end) != 0
            live(step, target, str(place))
        assert {*saw} <= allowed, [len(each) if isinstance(each, frozenset) else each for each in saw]
    out, look = how.output, OTHERS[target][0]
    assert look(str(place)) == told.after
    found = hr.verify(out, **how.told)
    assert found.good, found
    assert hr.read_rejected(out).count() == (0 if told.after == ALL else ROWS // BAD)
    main(told.steps[-1][0], target, str(place))  # once more: nothing is another
    assert look(str(place)) == told.after
    return died


@pytest.fixture
def live(
    target: str,
    nursery: Nursery,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., int]:
    """Has a driver live, with the server of the target."""
    log = tmp_path / "log"
    if target == "postgresql":
        monkeypatch.setenv("HEADRACE_TEST_POSTGRESQL", request.getfixturevalue("server"))
    if target == "s3":
        request.getfixturevalue("bucket")
    pytest.importorskip("duckdb" if target == "parquet" else TARGETS[target](tmp_path).imports or "pyarrow")
    given = {key: value for key, value in os.environ.items() if key.startswith(("AWS_", "HEADRACE_TEST"))}

    def lives(*arguments: Any, **end: Any) -> int:
        code = nursery.live("annex.together.test_unseen", [*arguments], log, environment=given, **end)
        assert code in (0, -signal.SIGKILL), log.read_text()
        return code

    return lives


CELLS = [(case, target) for target in OTHERS for case in CASES if (case, target) != ("changed", "lance")]
BY_DAY = [
    ("repaired before", "parquet"),
    ("changed", "delta"),
    ("published", "lance"),
    ("published", "sqlite"),
]


def test_parts_that_no_reader_has_a_file_of_are_compared_by_none(tmp_path: Path) -> None:
    """The cell that the matrix lacks: rows of Lance lie in files of its own, so this is refused before any work."""
    pytest.importorskip("lance")
    rows().write_parquet(f"{tmp_path}/yesterday")
    with pytest.raises(PlanError, match="rows of the output are in a Lance table, and not in files"):
        changed("lance", str(tmp_path))
    assert not TARGETS["lance"](tmp_path).there()


@pytest.mark.parametrize(("case", "target"), BY_DAY)
def test_readers_see_what_was_before_or_all(
    case: str, target: str, live: Callable[..., int], tmp_path: Path
) -> None:
    """A third of the points in each cell, others in the next."""
    shift = [*CASES].index(case) + [*OTHERS].index(target)

    def kills(points: Points) -> list[dict[str, Any]]:
        return [{"faults": {point: f"kill@{passage}"}} for point, passage in points[shift % 3 :: 3]]

    assert played(case, target, tmp_path / uuid.uuid4().hex[:10], live, kills) > 1


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(("case", "target"), CELLS)
def test_soak(
    case: str, target: str, live: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dice, died, number = random.Random(f"{case} {target}"), 0, 0

    def kills(points: Points) -> list[dict[str, Any]]:
        if number == 1:
            return [{"faults": {point: f"kill@{passage}"}} for point, passage in points]
        ends: list[dict[str, Any]] = [{"seconds": 0.6 * dice.random()} for _ in range(4)]
        some = dice.sample(points, 4)
        return [*ends, *({"faults": {point: f"kill@{dice.randint(1, 3)}"}} for point, _ in some)]

    while died < KILLS:
        number += 1
        died += played(case, target, tmp_path / uuid.uuid4().hex[:10], live, kills)
    with capsys.disabled():
        print(f"\n{case}, {target}: {died} kills in {number} outputs", flush=True)
