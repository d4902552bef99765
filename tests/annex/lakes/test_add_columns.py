"""New columns for the rows of a table: old values stay, readers see all or nothing, others' commits are kept."""

from __future__ import annotations

import tempfile
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import unquote
from zlib import crc32

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import forked
import headrace as hr
from crossed import crossed, few
from headrace.core.work import Shard
from headrace.errors import (
    ArgumentError,
    ColumnExists,
    HeadraceError,
    PlanError,
    RequirementNotMet,
    SinkError,
)
from headrace.plan.partitioning import Partitioning

from .growing import Delta as GrowingDelta
from .growing import Iceberg as GrowingIceberg
from .growing import Lance as GrowingLance
from .growing import Table, half, pair

QUIET: dict[str, Any] = {"engine": "inline", "progress": False}
JOB = """
from pathlib import Path
from annex.lakes.test_add_columns import LAKES

getattr(LAKES[argv[0]](Path(argv[1])), argv[2])()
"""
FILES = [60, 40, 50]


def some(first: int, rows: int) -> pa.Table:
    ids = range(first, first + rows)
    texts = pa.array([f"t{i}" if i % 5 else None for i in ids], pa.string())
    return pa.table({"id": pa.array(ids, pa.int64()), "text": texts})


class Lake(Table):
    """A kind of table: made, read and changed by its own library; ``write`` is ours."""

    keeps: ClassVar[set[str]]  # what others may do meanwhile
    table: Callable[..., Any]

    def make(self, sizes: list[int]) -> None:
        first = 0
        for rows in sizes:
            self.add(some(first, rows))
            first += rows

    def remove(self, ids: list[int]) -> None:
        self.delete(f"id IN ({', '.join(map(str, ids))})")

    def widen(self) -> None:
        """Add a column of nulls, named ``wide``."""
        raise NotImplementedError

    def rows(self) -> list[dict[str, Any]]:
        """All rows, in the order of their ids."""
        return sorted(super().rows(), key=lambda row: row["id"])

    def write(self, data: hr.Dataset, **how: Any) -> hr.Result:
        return super().write(data, mode="add_columns", **how)

    def halved(self, **how: Any) -> hr.Result:
        data = self.read().with_options(**QUIET).predict(half, inputs=["id"], output="half")
        return self.write(data.predict(pair, inputs=["id"], output="pair"), **how)

    def fill(self, where: str = "half IS NULL", **how: Any) -> hr.Result:
        data = self.read().with_options(**QUIET).predict(half, inputs=["id"], output="half", replace=True)
        return self.write(data, where=where, **how)

    def publish(self) -> None:
        hr.publish(self.out, because="few rows", **self.told)

    def partition(self, schema: pa.Schema) -> None:
        """Make the table, partitioned by ``day`` and ``number``."""
        raise NotImplementedError

    def files(self) -> list[tuple[str, tuple[Any, ...]]]:
        """Each file: its partition, its rows, and what is stored of old columns."""
        return []

    @property
    def out(self) -> str:
        return f"{self.folder}/t/headrace-output"


class Lance(Lake, GrowingLance):
    keeps: ClassVar = {"append", "delete"}

    def widen(self) -> None:
        self.table().add_columns(pa.schema([("wide", pa.float64())]))

    def rows(self) -> list[dict[str, Any]]:
        self.table().validate()
        return super().rows()


class Delta(Lake, GrowingDelta):
    keeps: ClassVar = {"append"}

    def widen(self) -> None:
        import deltalake

        self.table().alter.add_columns(
            deltalake.Schema.from_arrow(pa.schema([("wide", pa.float64())])).fields
        )

    def partition(self, schema: pa.Schema) -> None:
        import deltalake

        deltalake.DeltaTable.create(self.folder / "t", schema, partition_by=["day", "number"])

    def files(self) -> list[tuple[str, tuple[Any, ...]]]:
        actions = pa.table(self.table().get_add_actions()).to_pylist()
        paths = [f"{self.folder}/t/{unquote(each['path'])}" for each in actions]
        return [
            (path, (str(each.get("partition")), each["num_records"], *stored(path)))
            for path, each in zip(paths, actions, strict=True)
        ]


class Iceberg(Lake, GrowingIceberg):
    keeps: ClassVar = {"append"}

    @property
    def out(self) -> str:
        return f"{self.table().location().removeprefix('file://')}/data/headrace-output"

    def partition(self, schema: pa.Schema) -> None:
        with self.table(schema).update_spec() as update:
            update.add_field("day", "identity", "day")
            update.add_field("number", "identity", "number")

    def files(self) -> list[tuple[str, tuple[Any, ...]]]:
        found = [task.file for task in self.table().scan().plan_files()]
        paths = [each.file_path.removeprefix("file://") for each in found]
        return [
            (path, (str(each.partition), each.record_count, *stored(path)))
            for path, each in zip(paths, found, strict=True)
        ]

    def widen(self) -> None:
        from pyiceberg.types import DoubleType

        with self.table().update_schema() as update:
            update.add_column("wide", DoubleType())


LIBRARIES = {"lance": "lance", "delta": "deltalake", "iceberg": "pyiceberg"}
LAKES: dict[str, Callable[[Path], Lake]] = {"lance": Lance, "delta": Delta, "iceberg": Iceberg}


@pytest.fixture(params=sorted(LAKES))
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    pytest.importorskip(LIBRARIES[request.param])
    return LAKES[request.param](tmp_path)


def values(row: dict[str, Any]) -> dict[str, Any]:
    """The row as it must be with its new columns."""
    return {**row, "half": row["id"] / 2, "pair": [row["id"], -row["id"]]}


def lacking(row: dict[str, Any]) -> dict[str, Any]:
    """The row as it must be with a value, if it had none."""
    return {**row, "half": row["id"] / 2 if row["half"] is None else row["half"]}


def with_values(first: int, rows: int, known: Callable[[int], bool]) -> pa.Table:
    made = some(first, rows)
    found = [-1.0 if known(i) else None for i in range(first, first + rows)]
    return made.append_column("half", pa.array(found, pa.float64()))


class State:
    """What a library reads again and again while others write."""

    def __init__(self, lake: Lake) -> None:
        self._lake, self._over = lake, threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self.seen: list[list[dict[str, Any]]] = []

    def _read(self) -> None:
        while not self._over.wait(0.002):
            found = self._lake.rows()
            if found not in self.seen:
                self.seen.append(found)

    def __enter__(self) -> State:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


KILLED = [
    ("attempt.batch", 2),
    ("journal.synced", 2),
    ("publish.renamed", 2),
    ("table.joined", 1),
    ("table.filled", 1),
    ("finish.success", 1),
    ("finish.closed", 1),
]
MEANWHILE: dict[str, Callable[[Lake], None]] = {
    "nothing": lambda lake: None,
    "append": lambda lake: lake.add(some(900, 3)),
    "delete": lambda lake: lake.remove([7, 70]),
    "delete elsewhere": lambda lake: lake.remove([7]),  # of a file in which no row lacks a value
}
DONE: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {"halved": values, "fill": lacking}
CASES = [
    ("halved", "nothing"),
    ("fill", "append"),
    ("fill", "delete elsewhere"),
    ("halved", "append"),
    ("fill", "nothing"),
    ("halved", "delete"),
    ("fill", "delete"),
]


@pytest.mark.parametrize(("at", "case"), crossed(KILLED, CASES))
def test_killed_anywhere(lake: Lake, at: tuple[str, int], case: tuple[str, str]) -> None:
    (point, passage), (verb, meanwhile), done = at, case, DONE[case[0]]
    if verb == "halved":
        lake.make(FILES)
        lake.remove([3, 4, 115])
    else:
        lake.add(with_values(0, 60, lambda i: True))
        lake.add(with_values(60, 40, lambda i: i % 2 > 0))
        lake.add(with_values(100, 50, lambda i: False))
    before = lake.rows()
    after = [done(row) for row in before]
    kind = type(lake).__name__.lower()
    with State(lake) as state:
        killed = forked.killed(f"{point}@{passage}", JOB, kind, lake.folder, verb)
    assert all(each in (before, after) for each in state.seen)
    if not killed:  # the point is not passed by this kind
        assert point == "table.joined" and verb == "halved"
        return
    committed = point.startswith("finish")
    assert lake.rows() == (after if committed else before)
    MEANWHILE[meanwhile](lake)
    now = lake.rows()
    if not committed and meanwhile == "delete" and meanwhile not in lake.keeps:
        with pytest.raises(SinkError, match=r"was changed during this run: .*It was not touched.*output="):
            getattr(lake, verb)()
        assert lake.rows() == now
        return
    with State(lake) as state, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = getattr(lake, verb)()
    warned = [each for each in caught if "3 rows that others added" in str(each.message)]
    assert len(warned) == (meanwhile == "append" and not committed)
    found, there = lake.rows(), {row["id"] for row in now}
    assert all(each in (now, found) for each in state.seen)
    assert result.rows == len([row for row in before if verb == "halved" or row["half"] is None])
    assert [row for row in found if row["id"] < 900] == [row for row in after if row["id"] in there]
    new = [row for row in found if row["id"] >= 900]
    assert len(new) == (3 if meanwhile == "append" else 0) and all(row["half"] is None for row in new)
    assert getattr(lake, verb)().resumed and lake.rows() == found
    assert hr.verify(lake.out).good


@pytest.mark.parametrize("kind", sorted(LAKES))
@settings(max_examples=few(4), deadline=None)
@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    gone=st.sets(st.integers(0, 35), max_size=6),
    known=st.sets(st.integers(0, 35), max_size=9),
    rows=st.sampled_from([0, 1, 5]),
)
def test_rows_that_lack_a_value(
    kind: str, sizes: list[int], gone: set[int], known: set[int], rows: int
) -> None:
    """Whatever is deleted or has a value, the table is what a naive program makes of its rows."""
    pytest.importorskip(LIBRARIES[kind])
    with tempfile.TemporaryDirectory() as folder:
        lake, first = LAKES[kind](Path(folder)), 0
        for count in sizes:
            lake.add(with_values(first, count, known.__contains__))
            first += count
        if gone & {*range(first)} and len(gone & {*range(first)}) < first:
            lake.remove(sorted(gone))
        before, files = lake.rows(), {path for path, _ in lake.files()}
        data = lake.read().with_options(**QUIET).predict(half, inputs=["id"], output="half", replace=True)
        with pytest.raises(
            (ColumnExists, PlanError), match=r"has a column 'half' already.*where=|changes 'half'"
        ):
            lake.write(data)
        with pytest.MonkeyPatch.context() as patch:
            if rows and kind == "lance":  # parts end where no fragment does, as those of divided shards
                patch.setattr("headrace.plan.partitioning.Partitioning.shards", cut_in(rows))
            result = lake.fill()
        assert result.rows == len([row for row in before if row["half"] is None])
        assert lake.rows() == [lacking(row) for row in before]
        full = files & {path for path, _ in lake.files()}  # which stay, unless a row got a value
        assert kind == "lance" or all(
            row["half"] == -1 for path in full for row in pq.read_table(path).to_pylist()
        )
        assert lake.fill(output="again").rows == 0 and lake.rows() == [lacking(row) for row in before]


def cut_in(rows: int) -> Callable[..., list[Shard]]:
    """Shards of so many rows of the input, also where they belong to several fragments."""

    def shards(self: Partitioning, source: Any) -> list[Shard]:
        splits = [
            msgspec.structs.replace(split, low=at, high=at + rows)
            for split in source.splits()
            for at in range(0, max(1, split.stop), rows)
        ]
        return [Shard(i, tuple(splits[i * 2 : i * 2 + 2])) for i in range(-(-len(splits) // 2))]

    return shards


@pytest.mark.parametrize("where", [None, "id >= 70 AND id < 110"])
def test_nothing_is_added_before_it_is_published(lake: Lake, where: str | None) -> None:
    lake.make(FILES)
    before = lake.rows()
    data = lake.read().with_options(**QUIET).predict(half, inputs=["id"], output="half")
    with pytest.raises(RequirementNotMet):
        lake.write(data.require(rows=hr.at_least(1000)), where=where)
    assert lake.rows() == before
    lake.publish()
    chosen = range(70, 110) if where else range(150)
    assert lake.rows() == [{**row, "half": row["id"] / 2 if row["id"] in chosen else None} for row in before]


def test_others_change_what_was_read(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Right before the commit: what the library does at that moment is kept, or the run is refused."""
    from headrace.core import failpoints

    def at_commit(act: Callable[[], None]) -> None:
        hit, left = failpoints.hit, [act]
        monkeypatch.setattr(
            failpoints, "hit", lambda point: left.pop()() if left and point == "table.filled" else hit(point)
        )

    lake.make(FILES)
    at_commit(lake.compact)
    with pytest.raises(SinkError, match=r"was changed during this run: .*put"):
        lake.halved()
    at_commit(lambda: lake.add(some(900, 3)))
    with pytest.warns(UserWarning, match="3 rows that others added"):
        lake.halved(output="b")
    assert [row for row in lake.rows() if row["id"] < 900] == [
        values(row) for row in some(0, 150).to_pylist()
    ]
    data = lake.read().with_options(**QUIET)
    at_commit(lake.widen)
    if isinstance(lake, Iceberg):  # its columns have numbers, which files name
        with pytest.raises(SinkError, match="others added columns, and 'second' has another number"):
            lake.write(data.predict(half, inputs=["id"], output="second"), output="w")
        assert "second" not in lake.rows()[0]
    else:
        lake.write(data.predict(half, inputs=["id"], output="second"), output="w")
        assert all(row["second"] == row["id"] / 2 and row["wide"] is None for row in lake.rows())
    data = lake.read().with_options(**QUIET)
    at_commit(lambda: lake.write(data.predict(half, inputs=["id"], output="third"), output="d") and None)
    with pytest.raises((ColumnExists, SinkError), match=r"has a column 'third' already|was changed during"):
        lake.write(data.predict(half, inputs=["id"], output="third"), output="c")


@pytest.mark.parametrize(("kind", "engine"), [("delta", "local"), ("iceberg", "inline")])
def test_old_columns_are_copied_as_they_are_stored(tmp_path: Path, kind: str, engine: str) -> None:
    """In a table with partitions, also of odd texts: their values, and the bytes of the old columns, stay."""
    pytest.importorskip({"delta": "deltalake", "iceberg": "pyiceberg"}[kind])
    days = ["a b/é", "x%y", None, "2026-11-26"]
    old = pa.table(
        {
            "id": pa.array(range(60_000), pa.int64()),
            "day": [days[i // 5000 % 4] for i in range(60_000)],
            "number": pa.array([i % 2 for i in range(60_000)], pa.int32()),
            "text": [f"text {i % 97}" for i in range(60_000)],
            "score": [i / 3 for i in range(60_000)],
        }
    )
    lake = LAKES[kind](tmp_path)
    lake.partition(old.schema)
    lake.add(old)
    before = dict(lake.files())
    options: dict[str, Any] = {"workers": 2} if engine == "local" else {}
    data = lake.read().with_options(engine=engine, progress=False, **options)
    lake.write(data.predict(half, inputs=["id"], output="half"))
    assert lake.rows() == [{**row, "half": row["id"] / 2} for row in old.to_pylist()]
    after = dict(lake.files())
    assert sorted(before.values()) == sorted(after.values()) and before.keys().isdisjoint(after)
    for path in before:
        Path(path).unlink()  # as VACUUM does
    again = lake.read().with_options(engine=engine, progress=False, **options)
    again = again.predict(half, inputs=["id"], output="half", replace=True).with_column("more", half)
    assert lake.write(again, where="number = 0 AND id < 11000", output="b").rows == 5500
    later = dict(lake.files())
    assert sorted(later.values()) == sorted(after.values()) and len({*after} - {*later}) == 3
    assert [row["more"] is None for row in lake.rows()] == [i % 2 > 0 or i >= 11_000 for i in range(60_000)]
    assert [{**row, "more": 0} for row in lake.rows()] == [
        {**row, "half": row["id"] / 2, "more": 0} for row in old.to_pylist()
    ]


def stored(path: str) -> tuple[int, ...]:
    """Digests of the bytes of the columns ``text`` and ``score`` in a file."""
    import pyarrow.parquet as pq

    data, group = Path(path).read_bytes(), pq.read_metadata(path).row_group(0)
    found = []
    for about in map(group.column, range(group.num_columns)):
        if about.path_in_schema in ("text", "score"):
            start = about.dictionary_page_offset or about.data_page_offset
            found.append(crc32(data[start : start + about.total_compressed_size]))
    return tuple(found)


def test_rows_of_another_version_of_the_model(lake: Lake) -> None:
    """A column says which version has computed a row; the next run computes the rows of others, and new ones."""
    lake.make([5, 5])

    def scored(version: str | None, factor: int, **how: Any) -> int:
        def model(batch: dict[str, Any]) -> Any:
            return batch["id"] * factor

        data = lake.read().with_options(**QUIET)
        data = data.predict(model, inputs=["id"], output="Score", replace=True, version=version)
        return lake.write(data, **{"provenance": "By", "refresh": "changed", **how}).rows

    assert (scored("it's 1", 1), scored("it's 1", 1)) == (10, 0)
    lake.add(some(10, 2))
    lake.remove([4])
    assert scored("it's 1", 2) == 2, "new rows alone"
    assert [(row["Score"], row["By"]) for row in lake.rows()][-3:] == [
        (9, "it's 1"),
        (20, "it's 1"),
        (22, "it's 1"),
    ]
    assert (scored(None, 3), scored(None, 3)) == (11, 0), "by its code"
    assert all(row["Score"] == row["id"] * 3 for row in lake.rows())
    for how in ({"where": "id = 1"}, {"provenance": None}):
        with pytest.raises(ArgumentError, match=r"chooses rows by a column.*provenance="):
            scored("2", 1, **how)


def test_lance_fills_or_adds(tmp_path: Path) -> None:
    pytest.importorskip("lance")
    lake = Lance(tmp_path)
    lake.make([3])
    data = lake.read().with_options(**QUIET).with_column("other", half)
    with pytest.raises(SinkError, match=r"fills the column 'text' .* and adds 'other'"):
        lake.write(data.with_column("text", lambda b: b["text"]), where="id = 1", output="x")


@pytest.mark.parametrize("what", ["delete", "append", "update", "fill", "compact"])
def test_rows_change_while_a_column_is_filled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """The library may take up such a commit in its own: what others did is there, or the run is refused."""
    pytest.importorskip("lance")
    from headrace.annex.lakes.lance.sink import LanceTable

    lake = Lance(tmp_path)
    lake.make([5, 5, 5])
    lake.table().add_columns(pa.schema([("half", pa.float64())]))
    acts: dict[str, Callable[[], object]] = {
        "delete": lambda: lake.remove([1, 7]),
        "append": lambda: lake.add(some(900, 2)),
        "update": lambda: lake.table().update({"text": "'u'"}, where="id = 7"),
        "fill": lambda: lake.table().update({"half": "-1.0"}, where="id = 7"),
        "compact": lake.compact,
    }
    send, left = LanceTable._send, [acts[what]]

    def late(self: LanceTable, transaction: Any) -> Any:
        if left:
            left.pop()()
        return send(self, transaction)

    monkeypatch.setattr(LanceTable, "_send", late)
    data = lake.read().with_options(**QUIET).predict(half, inputs=["id"], output="half", replace=True)
    if what == "compact":
        with pytest.raises(SinkError, match=r"\(Rewrite\) put the rows of fragment 0 into other files"):
            lake.write(data, where="half IS NULL")
    elif what in ("update", "fill"):
        with pytest.warns(UserWarning, match="1 row that others added"):
            lake.write(data, where="half IS NULL")
    else:
        lake.write(data, where="half IS NULL")
    theirs = {"update": {7: ("u", None)}, "fill": {7: ("t7", -1.0)}}.get(what, {})
    for row in lake.rows():
        kept = None if what == "compact" or row["id"] >= 900 else row["id"] / 2
        text, value = theirs.get(row["id"], (row["text"], kept))
        assert (row["text"], row["half"]) == (text, value)
    assert len(lake.rows()) == {"delete": 13, "append": 17}.get(what, 15)


REFUSED: dict[str, tuple[Callable[[hr.Dataset], hr.Dataset], dict[str, Any], type[HeadraceError], str]] = {
    "filter": (lambda d: d.filter(expr="id > 1"), {}, PlanError, "may change which rows"),
    "limit": (lambda d: d.limit(3), {}, PlanError, "may change which rows"),
    "map_batches": (lambda d: d.map_batches(lambda b: b), {}, PlanError, "may change which rows"),
    "reject": (lambda d: d.with_options(on_error="reject"), {}, PlanError, "on_error='null'"),
    "incremental": (lambda d: d, {"incremental": True}, ArgumentError, "incremental="),
    "another source": (lambda d: hr.range(3).with_options(**QUIET), {}, PlanError, "the plan reads"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused_before_anything_runs(lake: Lake, what: str) -> None:
    lake.make([3])
    change, how, error, words = REFUSED[what]
    data = change(lake.read().with_options(**QUIET)).with_column("new", lambda batch: 1 / 0)
    with pytest.raises(error, match=words):
        lake.write(data, **how)
    assert not Path(lake.out).exists()


def test_nothing_new(lake: Lake) -> None:
    lake.make([3])
    with pytest.raises(HeadraceError, match=r"no new column|keep at least one column"):
        lake.write(lake.read().with_options(**QUIET))


def test_a_name_with_a_dot(lake: Lake) -> None:
    """Lance has no such names, and says so before any work."""
    lake.make([3])
    data = lake.read().with_options(**QUIET).predict(half, inputs=["id"], output="a.half")
    if isinstance(lake, Lance):
        with pytest.raises(SinkError, match=r"cannot contain `\.`"):
            lake.write(data)
    else:
        assert lake.write(data).rows == 3
        assert [row["a.half"] for row in lake.rows()] == [0.0, 0.5, 1.0]
