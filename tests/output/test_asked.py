"""Each kind of output does what ``core/asked.py`` says it can do, and refuses the rest in its words."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.core.asked import ASKED, KINDS, Kind, why_not
from headrace.errors import ArgumentError, HeadraceError, OutputExists, RequirementNotMet
from headrace.result import Result
from headrace.testing.fakes import failpoints
from stores.conftest import _proxy, bucket, port, proxy, raw  # noqa: F401 - fixtures
from targets import TARGETS

ROWS = 5  # of an input file, and of a shard
NAMES = {"folder": "parquet", "store": "s3", "database": "sqlite"}  # of targets


class Rig:
    """Input files with rows ``id`` and ``value``, and an output of one kind that has rows ``id`` and ``made``."""

    def __init__(self, kind: Kind, place: Path) -> None:
        self.kind, self.place = kind, place
        self.target = TARGETS[NAMES.get(kind, kind)](place)
        for number in range(3):
            self.arrive(number)

    def arrive(self, number: int, ids: range | None = None) -> None:
        ids = ids or range(number * ROWS, (number + 1) * ROWS)
        (self.place / "in").mkdir(exist_ok=True)
        table = pa.table({"id": pa.array(ids, pa.int64())})
        pq.write_table(table, self.place / "in" / f"{number}.parquet")

    def write(
        self, *, times: int = 2, version: str = "1", required: int = 0, fault: str = "", **given: Any
    ) -> Result:
        """Write rows whose ``made`` is ``id * times``; what is no argument of the verb is an option of the run."""
        run = {
            name: given.pop(name) for name in ("incremental", "refresh", "key", "durability") if name in given
        }
        data = made(self.data(**run), times, version)
        data = data.require(rows=hr.at_least(required)) if required else data
        with failpoints({fault.partition("@")[0]: f"EIO@{fault.partition('@')[2]}"} if fault else {}):
            return self.verb(data, **given)

    def data(self, **options: Any) -> hr.Dataset:
        data = hr.read_parquet(str(self.place / "in"))
        return data.with_options(engine="inline", progress=False, shard_rows=ROWS, **options)

    @property
    def verb(self) -> Callable[..., Result]:
        return self.target.write

    def table(self) -> list[dict[str, Any]]:
        return self.target.rows()

    def found(self) -> list[tuple[int, int]]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of an output that is not finished
            return self.target.pairs()


def made(data: hr.Dataset, times: int = 2, version: str = "1") -> hr.Dataset:
    return data.map_batches(lambda batch: {**batch, "made": batch["id"] * times}, version=version)


def rows(times: int, stop: int = 3 * ROWS) -> list[tuple[int, int]]:
    return [(number, number * times) for number in range(stop)]


# ------------------------------------------------------------ what is tried of each


def overwrite(rig: Rig) -> None:
    rig.write()
    rig.write(times=3, version="2", mode="overwrite")
    assert rig.found() == rows(3)


def error(rig: Rig) -> None:
    rig.write(mode="error")
    with pytest.raises(OutputExists):
        rig.write(mode="error")
    assert rig.found() == rows(2)


def ignore(rig: Rig) -> None:
    rig.write()
    assert rig.write(times=3, version="2", mode="ignore").resumed
    assert rig.found() == rows(2)


def incremental(rig: Rig) -> None:
    rig.write(incremental=True)
    rig.arrive(3)
    rig.write(incremental=True)
    assert rig.found() == rows(2, 4 * ROWS)


def key(rig: Rig) -> None:
    rig.write(incremental=True, key="id")
    rig.arrive(2, range(2 * ROWS, 3 * ROWS + 2))
    rig.write(incremental=True, key="id")
    assert rig.found() == rows(2, 3 * ROWS + 2)


def refresh(rig: Rig) -> None:
    rig.write(incremental=True)
    rig.write(times=3, version="2", incremental=True, refresh="changed")
    assert rig.found() == rows(3)


def retry(rig: Rig) -> None:
    def write(**given: Any) -> Result:
        data = rig.data(on_error="reject").map_batches(picky, version="1")
        return rig.verb(data, **given)

    assert write().rejected == 3
    again = write(refresh="rejected", fix=lambda batch: {"id": batch["id"] + 99})
    ids = [i + 99 * (i % ROWS == 3) for i in range(3 * ROWS)]
    assert (rig.found(), again.rejected) == (sorted((i, i * 2) for i in ids), 0)


def picky(batch: dict[str, Any]) -> dict[str, Any]:
    if (batch["id"] % ROWS == 3).any():
        raise ValueError("a bad row")
    return {**batch, "made": batch["id"] * 2}


def go_on(rig: Rig) -> None:
    with contextlib.suppress(HeadraceError, OSError):
        rig.write(fault="stage.closed@3")
    rig.write(times=3, version="2", on_change="continue")
    assert rig.found() == rows(2, 2 * ROWS) + rows(3)[2 * ROWS :]


def restart(rig: Rig) -> None:
    first = "1" if rig.kind == "database" else "3"  # see ``but``
    with contextlib.suppress(HeadraceError, OSError):
        rig.write(fault=f"stage.closed@{first}")
    rig.write(times=3, version="2", on_change="restart")
    assert rig.found() == rows(3)


def require(rig: Rig) -> None:
    with pytest.raises(RequirementNotMet):
        rig.write(required=3 * ROWS + 1)
    with contextlib.suppress(HeadraceError, OSError):
        assert rig.found() == []
    if "catalog" in rig.target.told:
        with pytest.raises(ArgumentError, match="publish: "):
            hr.publish(rig.target.output, because="nobody says in which catalogue the table is")
    rig.arrive(3)
    rig.write(required=3 * ROWS + 1, mode="overwrite")
    assert rig.found() == rows(2, 4 * ROWS)


def durability(rig: Rig) -> None:
    rig.write(durability="process")
    assert rig.found() == rows(2)


def schema(rig: Rig) -> None:
    rig.write(schema=pa.schema({"id": pa.int64(), "made": pa.float64()}))
    assert {type(row["made"]) for row in rig.table()} == {float}


def min_rows(rig: Rig) -> None:
    files = rig.write(min_rows_per_file=2 * ROWS).runs[-1]["files"]
    assert (rig.found(), files) == (rows(2), 2)


def max_rows(rig: Rig) -> None:
    files = rig.write(max_rows_per_file=2).runs[-1]["files"]
    assert (rig.found(), files) == (rows(2), 9)


def partition_by(rig: Rig) -> None:
    files = rig.write(partition_by="id").runs[-1]["files"]
    assert (rig.found(), files) == (rows(2), 3 * ROWS)


def storage_options(rig: Rig) -> None:
    verb, out = {"store": "parquet"}.get(rig.kind, rig.kind), f"s3://bucket{rig.place}/out"
    options = {"region": "us-east-1"}
    getattr(made(rig.data()), f"write_{verb}")(out, storage_options=options)
    assert getattr(hr, f"read_{verb}")(out, storage_options=options).count() == 3 * ROWS


PLAYS: dict[str, tuple[Callable[[Rig], None], dict[str, Any]]] = {
    "mode='overwrite'": (overwrite, {}),
    "mode='error'": (error, {}),
    "mode='ignore'": (ignore, {"mode": "ignore"}),
    "incremental": (incremental, {}),
    "key": (key, {"incremental": True, "key": "id"}),
    "refresh='changed'": (refresh, {"incremental": True, "refresh": "changed"}),
    "refresh='rejected'": (retry, {}),
    "on_change='continue'": (go_on, {}),
    "on_change='restart'": (restart, {}),
    "require": (require, {}),
    "durability='process'": (durability, {}),
    "schema": (schema, {}),
    "min_rows_per_file": (min_rows, {"min_rows_per_file": 10}),
    "max_rows_per_file": (max_rows, {"max_rows_per_file": 2}),
    "partition_by": (partition_by, {"partition_by": "id"}),
    "storage_options": (storage_options, {"storage_options": {"region": "x"}}),
}
"""What is done where it can be done, and what is given where it is refused."""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("asked", ASKED)
def test_each_cell(asked: str, kind: Kind, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    pytest.importorskip({"delta": "deltalake", "iceberg": "pyiceberg", "lance": "lance"}.get(kind, "pyarrow"))
    play, given = PLAYS[asked]
    if kind == "store" or asked == "storage_options":
        request.getfixturevalue("bucket")
    rig, why = Rig(kind, tmp_path), why_not(asked, kind)
    if not why:
        play(rig)
        return
    said = why if asked != "mode='ignore'" else "mode="
    with pytest.raises(ArgumentError) as raised:
        rig.write(**given)
    assert said in str(raised.value)
