"""The fast road gives what the careful road gives: values, types, order, counts, rejected rows and errors."""

from __future__ import annotations

import datetime
import os
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import headrace as hr
from crossed import few
from headrace.errors import HeadraceError
from headrace.worker import fast_road
from headrace.worker.fast_road import FastRoad

Batch = dict[str, Any]

ROWS = 1_000


def rides(rows: int = ROWS) -> pa.Table:
    n = np.arange(rows)
    return pa.table(
        {
            "id": n,
            "x": n * 0.5,
            "small": (n % 100).astype(np.int8),
            "holes": pa.array([None if i % 7 == 0 else i for i in range(rows)], pa.int64()),
            "word": [f"w{i % 50}" for i in range(rows)],
            "list": [[i, None] if i % 5 == 0 else [i] for i in range(rows)],
            "when": pa.array(n * 1000, pa.timestamp("ms")),
            "money": pa.array([Decimal(i) / 4 for i in range(rows)], pa.decimal128(12, 2)),
        }
    )


TABLE = rides()


class Refills:
    """Fills one array, and one dict, again and again."""

    def __init__(self) -> None:
        self.space = np.zeros(4096)
        self.result: Batch = {}

    def __call__(self, batch: Batch) -> Batch:
        n = len(batch["x"])
        self.space[:n] = batch["x"] * 2
        self.result["y"] = self.space[:n]
        return self.result


class WritesLater:
    """Writes into what it has returned before."""

    def __init__(self) -> None:
        self.before: Any = None

    def __call__(self, batch: Batch) -> Batch:
        if self.before is not None:
            self.before[:] = -1
        self.before = batch["x"] + 1
        return {"y": self.before}


def shrinks(batch: Batch) -> Batch:
    return {"x": batch["x"][::2]}


def changes_type(batch: Batch) -> Batch:
    return {"y": batch["x"] if batch["id"][0] > 166 else batch["x"].astype(np.float32)}


def yields(batch: Batch) -> Iterator[Batch]:
    yield {"x": batch["x"]}
    yield {"x": batch["x"] + 1}


def raises(error: type[BaseException], what: Any) -> Any:
    raise error(what)


def at(row: Batch, *numbers: int) -> bool:
    """Say whether this is one of some rows, or a batch with one."""
    return any(number in np.atleast_1d(row["id"]) for number in numbers)


def warns(row: Batch) -> Batch:
    if at(row, 411):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.warn("odd", stacklevel=1)
    return {"x": row["x"]}


def recurses(row: Batch) -> Batch:
    return recurses(row) if at(row, 411, 833) else {"x": row["x"]}


class Text(str):
    pass


class Number(int):
    pass


class Row(dict[str, Any]):
    pass


class Thing:
    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)

    def __repr__(self) -> str:
        return f"Thing({self.__dict__})"


THING = Thing(id=3)


class Keeps:
    """Keeps all that it was given and has returned, and gives some of it again."""

    def __init__(self) -> None:
        self.given: list[Batch] = []
        self.returned: list[Batch] = []

    def __call__(self, row: Batch) -> Batch:
        self.given.append(row)
        self.returned.append({"id": row["id"], "x": row["x"], "word": row["word"]})
        return self.returned[-1]


class KeepsAndChanges(Keeps):
    def __call__(self, row: Batch) -> Batch:
        made = super().__call__(row)
        for before in (*self.given[-3:-1], *self.returned[-3:-1]):
            before["id"] = before["word"] = None
        return made


class ChangesColumnsBefore:
    """Returns the dict of arrays that it was given, and changes that of the call before."""

    def __init__(self) -> None:
        self.before: Any = {}

    def __call__(self, batch: Batch) -> Batch:
        for name in self.before:
            self.before[name] = None
        self.before = batch
        return batch


BATCHES: dict[str, Callable[..., Any] | type] = {
    "arithmetic": lambda b: {"y": b["x"] * 2 + b["small"], "id": b["id"]},
    "adds to the dict": lambda b: b.update(y=b["x"] + 1) or b,
    "returns the input": lambda b: b,
    "renames": lambda b: {"was": b["holes"], "list": b["list"], "small": b["small"]},
    "views": lambda b: {"y": b["holes"][:], "z": b["x"].view(), "w": b["small"][::-1]},
    "swaps columns later": lambda b: {"y": b["id"] if b["id"][0] < 233 else b["small"].astype(np.int64)},
    "carried until later": lambda b: {"y": b["x"] if b["id"][0] < 233 else b["x"] + 1},
    "lists": lambda b: {"y": [int(i) for i in b["id"]], "t": [f"{i}" for i in b["id"]]},
    "lists of other types": lambda b: {"y": [1 if i < 300 else 1.5 for i in b["id"].tolist()]},
    "lists with nulls": lambda b: {"y": [None if i % 3 else i for i in b["id"].tolist()]},
    "lists of None": lambda b: {"y": [None for _ in b["id"]], "id": b["id"]},
    "wider texts": lambda b: {"y": np.array([f"{i * 999}" for i in b["id"]])},
    "objects": lambda b: {"y": np.array([f"{i}" for i in b["id"]], object)},
    "mixed objects": lambda b: {"y": np.array([i if i % 2 else "a" for i in b["id"].tolist()], object)},
    "matrices": lambda b: {"y": np.stack([b["x"], b["x"]], axis=1)},
    "other shapes": lambda b: {"y": np.zeros((len(b["x"]), 2 if b["id"][0] < 213 else 3))},
    "times": lambda b: {"y": b["when"] + np.timedelta64(1, "ms"), "when": b["when"]},
    "bytes": lambda b: {"y": np.array([b"a" * (i % 5) for i in b["id"].tolist()], dtype="S")},
    "big endian": lambda b: {"y": b["x"].astype(">f8")},
    "refills": Refills,
    "writes later": WritesLater,
    "shrinks": shrinks,
    "changes type": changes_type,
    "yields": yields,
    "key order": lambda b: {"a": b["x"], "b": b["id"]} if b["id"][0] < 100 else {"b": b["id"], "a": b["x"]},
    "a key too many": lambda b: {"a": b["x"]} | ({"b": b["id"]} if b["id"][0] > 266 else {}),
    "no dict": lambda b: pa.table({"y": b["x"]}),
    "an ordered dict": lambda b: OrderedDict(y=b["x"] * 3),
    "a matrix of nothing": lambda b: {"y": np.zeros((len(b["x"]), 0))},
    "masked": lambda b: {"y": np.ma.masked_array(b["x"], b["id"] % 2 == 0)},
    "fails": lambda b: {"y": b["x"]} if b["id"].max() < 411 or b["id"].min() > 411 else 1 / 0,
    "no columns": lambda b: {},
    "wrong length": lambda b: {"y": b["x"], "z": b["x"][:1]},
    "None": lambda b: None,
    "keeps": Keeps,
    "keeps and changes": KeepsAndChanges,
    "changes columns before": ChangesColumnsBefore,
    "warns": warns,
    "recurses": recurses,
    "a subclass of dict": lambda b: Row(x=b["x"]) if at(b, 300) else {"x": b["x"]},
    "a subclass of array": lambda b: {"x": b["x"].view(np.ma.MaskedArray) if at(b, 300) else b["x"] + 0},
    "masked later": lambda b: {"x": np.ma.masked_greater(b["x"], 450) if at(b, 300) else b["x"] + 0},
    "an array's own memory": lambda b: {"x": b["x"], "y": b["x"].base if at(b, 300) else b["x"] + 0},
    "integers and floats": lambda b: {"y": b["id"] if at(b, 300) else b["x"] + 0},
    "big integers later": lambda b: {"y": [2**63 if i == 300 else i for i in b["id"].tolist()]},
    "lists of subclasses": lambda b: {"y": [Number(i) for i in b["id"]], "z": [Text(i) for i in b["id"]]},
    "lists of numpy": lambda b: {"y": [*b["small"]], "z": [np.float32(i) for i in b["x"]]},
    "lists of lists": lambda b: {"y": [[i] for i in b["id"].tolist()]},
    "texts that end in zeros": lambda b: {"y": np.array([f"{i}\0" for i in b["id"]])},
    "objects of bytes": lambda b: {"y": np.array([b"a"] * len(b["id"]), object)},
    "objects of None": lambda b: {"y": np.array([None if i > 233 else "a" for i in b["id"]], object)},
    "structured": lambda b: {"y": np.zeros(len(b["x"]), [("a", "i4"), ("b", "f8")])},
    "a scalar": lambda b: {"y": np.array(1.0)},
    "complex": lambda b: {"y": b["x"] + 1j},
    "half floats": lambda b: {"y": b["x"].astype(np.float16)},
    "days": lambda b: {"y": b["when"].astype("M8[D]" if at(b, 300) else "M8[s]")},
    "durations": lambda b: {"y": b["when"] - b["when"][0]},
    "objects with attributes": lambda b: {"y": [Thing(i=i) for i in b["id"]]},
    "keys of other types": lambda b: {Text("x"): b["x"]} if at(b, 300) else {"x": b["x"]},
    "a generator": lambda b: ({"x": b["x"]} for _ in range(1)),
    "the same dict again": lambda b: (b for _ in range(2)),
    "writes to the input": lambda b: b["list"][0].append(1) or b if at(b, 300) else b,
}
for kind in (StopIteration, GeneratorExit, SystemExit, MemoryError, OSError, AssertionError):
    BATCHES[kind.__name__] = lambda b, kind=kind: raises(kind, 3) if at(b, 411, 833) else {"x": b["x"] + 1}


class Last:
    """Changes the row that it has returned before."""

    def __init__(self) -> None:
        self.row: Any = {}

    def __call__(self, row: Batch) -> Batch:
        self.row["id"] = -1
        self.row = {"id": row["id"], "x": row["x"]}
        return self.row


class OneDict:
    def __init__(self) -> None:
        self.row: Any = {}

    def __call__(self, row: Batch) -> Batch:
        self.row["id"] = row["id"]
        return self.row


MAPS: dict[str, Callable[..., Any] | type] = {
    "arithmetic": lambda r: {"id": r["id"], "y": r["x"] * 2, "word": r["word"]},
    "adds to the row": lambda r: r.update(y=r["small"] + 1) or r,
    "returns the row": lambda r: r,
    "renames": lambda r: {"was": r["holes"], "list": r["list"]},
    "one column": lambda r: {"y": r["x"]},
    "changes the list": lambda r: r["list"].append(1) or {"list": r["list"]},
    "last": Last,
    "one dict": OneDict,
    "a key too many": lambda r: {"a": 1} | ({"b": 2} if r["id"] % 333 == 332 else {}),
    "a key too few": lambda r: {"a": 1, "b": 2} if r["id"] % 333 != 332 else {"a": 1},
    "other keys": lambda r: {"a": 1} if r["id"] < 666 else {"b": 1},
    "mixed numbers": lambda r: {"y": r["id"] if r["id"] % 2 else r["x"]},
    "mixed types": lambda r: {"y": r["id"] if r["id"] % 2 else "text"},
    "numpy's numbers": lambda r: {
        "y": np.float32(r["x"]),
        "z": np.int8(r["small"]),
        "b": np.bool_(r["id"] % 2),
    },
    "times": lambda r: {"y": r["when"] + datetime.timedelta(days=1), "d": r["when"].date()},
    "decimals": lambda r: {"y": r["money"] * 2},
    "big integers": lambda r: {"y": 2**63 + r["id"]},
    "bigger integers": lambda r: {"y": 2**65 if r["id"] == 999 else 1},
    "nulls": lambda r: {"y": None if r["id"] % 3 else r["word"], "z": None},
    "bytes": lambda r: {"y": r["word"].encode(), "z": bytearray(b"a")},
    "arrays": lambda r: {"y": np.arange(3) + r["id"]},
    "nested": lambda r: {"y": {"a": r["id"], "b": [r["word"]]}},
    "number as a key": lambda r: {1: 2},
    "lone surrogate": lambda r: {"y": "\ud800" if r["id"] == 833 else "a"},
    "fails": lambda r: {"y": 1 / (r["id"] - 411)},
    "no dict": lambda r: r["x"],
    "no columns": lambda r: {},
    "an ordered dict": lambda r: OrderedDict(y=r["x"]),
    "changes the row before": ChangesColumnsBefore,
    "keeps": Keeps,
    "keeps and changes": KeepsAndChanges,
    "warns": warns,
    "recurses": recurses,
    "a subclass of dict": lambda r: Row(x=r["x"]) if at(r, 833) else {"x": r["x"]},
    "subclasses": lambda r: {"y": Text(r["word"]), "z": Number(r["id"]), "n": r["small"]},
    "subclasses later": lambda r: {"y": Text(r["word"]) if at(r, 833) else r["word"]},
    "key order": lambda r: {"a": 1, "b": 2} if r["id"] < 666 else {"b": 2, "a": 1},
    "key order at first": lambda r: {"a": 1, "b": 2} if r["id"] % 1000 else {"b": 2, "a": 1},
    "keys of other types": lambda r: {Text("x"): 1} if at(r, 833) else {"x": 1},
    "equal keys": lambda r: {True: 1} if at(r, 833) else {1: 1},
    "long texts": lambda r: {"y": "long " * (300_000 if r["id"] % 60 == 0 else 1)},
    "objects with attributes": lambda r: {"y": THING},
    "objects later": lambda r: {"y": Thing(id=r["id"]) if at(r, 833) else r["id"]},
    "masked": lambda r: {"y": np.ma.masked if at(r, 833) else np.ma.array([1.5, r["x"]], mask=[0, 1])},
    "numpy's scalars later": lambda r: {"y": np.int16(r["small"]) if at(r, 833) else r["small"]},
    "mixed numpy": lambda r: {"y": np.float32(r["x"]) if r["id"] % 2 else np.float64(r["x"])},
    "numpy's times": lambda r: {"y": np.datetime64(r["id"], "s"), "z": np.timedelta64(r["id"], "ms")},
    "numpy's texts": lambda r: {"y": np.str_(r["word"]), "z": np.bytes_(b"a")},
    "None now and then": lambda r: None if at(r, 833) else {"x": r["x"]},
    "not a number": lambda r: {"y": str(float("nan") if r["id"] % 3 else None), "z": 1e308 * r["id"]},
    "true or a number": lambda r: {"y": True if r["id"] % 2 else 1},
    "bytes or text": lambda r: {"y": b"a" if at(r, 833) else "a"},
    "exact numbers": lambda r: {
        "y": Decimal(r["id"]) / 3,
        "z": Decimal("NaN") if at(r, 833) else Decimal(1),
    },
    "zones": lambda r: {
        "y": r["when"].replace(tzinfo=datetime.timezone(datetime.timedelta(hours=r["id"] % 3)))
    },
    "some zones": lambda r: {"y": r["when"].replace(tzinfo=datetime.UTC if r["id"] % 2 else None)},
    "dates or times": lambda r: {"y": r["when"] if r["id"] % 2 else r["when"].date()},
    "the wrong column": lambda r: {"id": r["small"], "small": r["id"], "x": r["holes"]},
    "a column changed once": lambda r: {"id": r["id"] if r["id"] != 833 else -1, "word": r["word"]},
    "equal but not the same": lambda r: {"id": float(r["id"]) if at(r, 833) else r["id"], "x": r["x"]},
    "a surrogate": lambda r: {"word": "\ud800" if at(r, 833) else r["word"]},
}

FLAT_MAPS: dict[str, Callable[..., Any] | type] = {
    "three": lambda r: [{"id": r["id"], "leg": i, "word": r["word"]} for i in range(3)],
    "some": lambda r: [{"id": r["id"], "holes": r["holes"]}] * (r["id"] % 4),
    "none": lambda r: [],
    "a generator": lambda r: ({"id": r["id"]} for _ in range(2)),
    "a tuple": lambda r: ({"id": r["id"]},),
    "very many": lambda r: [{"id": r["id"]}] * (200 if r["id"] % 100 == 0 else 0),
    "the same dict twice": lambda r: [r, r],
    "fails": lambda r: [{"y": 1 / (r["id"] - 411)}],
    "fails late": lambda r: ({"y": 1 / (r["id"] - 411 + i)} for i in range(2)),
    "no list": lambda r: 3,
    "one dict again": lambda r: (one := {"id": r["id"]}) and [one, one, {"id": -1}],
    "a generator of one dict": lambda r: (r for _ in range(3)),
    "fills one dict": lambda r: (r.update(id=i) or r for i in range(3)),
    "a dict": lambda r: {"id": r["id"]} if at(r, 833) else [{"id": r["id"]}],
    "None": lambda r: None if at(r, 833) else [{"id": r["id"]}],
    "None in a list": lambda r: [{"id": r["id"]}, None] if at(r, 833) else [{"id": r["id"]}],
    "other keys": lambda r: [{"a": 1}, {"b": 1}] if at(r, 833) else [{"a": 1}],
    "an empty row": lambda r: [{}] if at(r, 833) else [{"a": 1}],
    "a subclass of list": lambda r: type("Rows", (list,), {})([{"id": r["id"]}]),
    "warns": lambda r: [warns(r)],
    "recurses": lambda r: [recurses(r)],
}

FILTERS: dict[str, Callable[..., Any]] = {
    "true or false": lambda r: r["id"] % 3 == 0,
    "numpy's": lambda r: np.bool_(r["id"] % 2),
    "all": lambda r: True,
    "none": lambda r: False,
    "fails": lambda r: 1 / (r["id"] - 411) > 0,
    "None": lambda r: None if at(r, 833) else True,
    "numbers": lambda r: r["id"] % 3,
    "texts": lambda r: "no" if at(r, 833) else False,
    "warns": lambda r: bool(warns(r)),
    "recurses": lambda r: bool(recurses(r)),
    "changes the row": lambda r: not r.clear(),
    "changes a list": lambda r: not r["list"].clear(),
}
for kind in (StopIteration, GeneratorExit, SystemExit, MemoryError, OSError, StopAsyncIteration):
    MAPS[kind.__name__] = lambda r, kind=kind: raises(kind, r["x"]) if at(r, 411, 833) else {"id": r["id"]}
    MAPS[f"{kind.__name__} of new columns"] = lambda r, kind=kind: (
        raises(kind, r["x"]) if at(r, 411, 833) else {"y": r["x"] + 1}
    )
    FLAT_MAPS[kind.__name__] = lambda r, kind=kind: raises(kind, 3) if at(r, 411, 833) else [r, r]
    FILTERS[kind.__name__] = lambda r, kind=kind: raises(kind, 3) if at(r, 411, 833) else r["id"] % 2 == 0

Outcome = tuple[Any, ...]


def outcome(dataset: hr.Dataset, out: Path) -> Outcome:
    """Return everything that a run shows of itself; and of an error, what it says."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The output has no row")
            result = dataset.with_options(engine="inline", max_retries=0, commit_every=None).write_parquet(
                out
            )
    except HeadraceError as error:
        return type(error), str(error).replace(out.name, "OUT")
    rejected = hr.read_rejected(out).take_all() if result.rejected else []
    table = hr.read_parquet(out).to_arrow() if result.rows else result.rows
    return table, result.rows, result.rejected, str(result.ledger), str(rejected).replace(out.name, "OUT")


@pytest.fixture
def roads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[hr.Dataset], tuple[Outcome, Outcome, int]]:
    """Return what a dataset gives on both roads, and how many windows took the fast one."""
    monkeypatch.setattr(fast_road, "is_worker", lambda: True)
    runs = iter(range(1_000_000))
    taken: list[int] = []
    tried = FastRoad.tried

    def counted(self: FastRoad, part: Any, work: Any) -> Any:
        made = tried(self, part, work)
        taken.append(made is not None)
        return made

    def both(dataset: hr.Dataset) -> tuple[Outcome, Outcome, int]:
        taken.clear()
        monkeypatch.setattr(FastRoad, "tried", counted)
        fast = outcome(dataset, tmp_path / f"fast{next(runs)}")
        monkeypatch.setattr(FastRoad, "tried", lambda self, part, work: None)
        careful = outcome(dataset, tmp_path / f"slow{next(runs)}")
        return fast, careful, sum(taken)

    return both


ON_ERROR = ["raise", "reject", "null"]


EACH = [(name, way) for name in BATCHES for way in ON_ERROR]
SOME = [
    (name, way, (1, 40)[i % 2] if way == "raise" else 16)
    for i, (name, way) in enumerate(EACH)
    if i % 3 == i // 3 % 3
]


@pytest.mark.parametrize(
    "name, on_error, size",
    [
        pytest.param(*each, size, marks=() if (*each, size) in SOME else pytest.mark.soak)
        for each in EACH
        for size in (1, 16, 40)
    ],
)
def test_batches(name: str, on_error: str, size: int, roads: Any) -> None:
    dataset = hr.from_arrow(TABLE).with_options(on_error=on_error)
    fast, careful, _ = roads(dataset.map_batches(BATCHES[name], batch_size=size))
    assert fast == careful


ROW_FUNCTIONS = [
    (verb, name)
    for verb, functions in {"map": MAPS, "flat_map": FLAT_MAPS, "filter": FILTERS}.items()
    for name in functions
]


@pytest.mark.parametrize(
    "verb, name, on_error",
    [
        pytest.param(*each, way, marks=() if number % 3 == way_number else pytest.mark.soak)
        for number, each in enumerate(ROW_FUNCTIONS)
        for way_number, way in enumerate(ON_ERROR)
    ],
)
def test_rows(verb: str, name: str, on_error: str, roads: Any) -> None:
    function = {"map": MAPS, "flat_map": FLAT_MAPS, "filter": FILTERS}[verb][name]
    source = hr.from_arrow(pa.concat_tables([TABLE] * 2)).with_options(on_error=on_error)
    fast, careful, _ = roads(getattr(source, verb)(function))
    assert fast == careful


@pytest.mark.parametrize(
    "dataset",
    [
        hr.from_arrow(TABLE).map_batches(BATCHES["arithmetic"], batch_size=16),
        hr.from_arrow(TABLE).map_batches(BATCHES["adds to the dict"], batch_size=16),
        hr.from_arrow(TABLE).map_batches(Refills, batch_size=16),
        hr.from_arrow(TABLE).map_batches(BATCHES["wider texts"], batch_size=16),
        hr.from_arrow(TABLE).map_batches(BATCHES["lists"], batch_size=16),
        hr.from_arrow(pa.concat_tables([TABLE] * 3)).map(MAPS["arithmetic"]),
        hr.from_arrow(pa.concat_tables([TABLE] * 3)).flat_map(FLAT_MAPS["three"]),
        hr.from_arrow(pa.concat_tables([TABLE] * 3)).filter(FILTERS["true or false"]),
    ],
    ids=lambda dataset: "",
)
def test_plain_functions_take_the_fast_road(dataset: hr.Dataset, roads: Any) -> None:
    fast, careful, windows = roads(dataset)
    assert fast == careful
    assert windows


plans = st.lists(
    st.one_of(
        st.tuples(
            st.just("map_batches"), st.sampled_from(sorted(BATCHES)), st.sampled_from([1, 7, 64, 5_000])
        ),
        st.tuples(st.just("map"), st.sampled_from(sorted(MAPS)), st.none()),
        st.tuples(st.just("flat_map"), st.sampled_from(sorted(FLAT_MAPS)), st.none()),
        st.tuples(st.just("filter"), st.sampled_from(sorted(FILTERS)), st.none()),
    ),
    min_size=1,
    max_size=3,
)


@given(plans, st.sampled_from(ON_ERROR), st.integers(1, ROWS), st.integers(1, 500))
@settings(max_examples=few(12), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_random_plans(roads: Any, plan: Any, on_error: str, rows: int, block: int) -> None:
    tables = [TABLE.slice(at, min(block, rows - at)) for at in range(0, rows, block)]
    dataset = hr.from_arrow(tables).with_options(on_error=on_error)
    functions = {"map_batches": BATCHES, "map": MAPS, "flat_map": FLAT_MAPS, "filter": FILTERS}
    for verb, name, size in plan:
        extra = {"batch_size": size} if size else {}
        dataset = getattr(dataset, verb)(functions[verb][name], **extra)
    fast, careful, _ = roads(dataset)
    assert fast == careful


@pytest.mark.local
def test_a_row_that_ends_the_worker_amid_a_window_is_found(tmp_path: Path) -> None:
    def deadly(batch: Batch) -> Batch:
        if 12_345 in batch["id"]:
            os._exit(3)
        return {"id": batch["id"], "y": batch["id"] * 2}

    found = (
        hr.range(20_000).map_batches(deadly, batch_size=16).with_options(engine="local", on_error="reject")
    )
    result = found.write_parquet(tmp_path / "out")
    assert (result.rows, result.rejected) == (19_999, 1)
    assert [row["id"] for row in hr.read_rejected(tmp_path / "out").take_all()] == [12_345]


def test_a_window_that_is_not_plain_is_done_again_and_the_next_ones_are_not_tried(roads: Any) -> None:
    calls: list[int] = []

    def odd(batch: Batch) -> Batch:
        calls.append(len(batch["id"]))
        return {"y": batch["x"][:]}  # the input's own memory

    fast, careful, windows = roads(hr.from_arrow(rides(1_024)).map_batches(odd, batch_size=1))
    assert fast == careful
    assert windows == 0
    assert len(calls) < 2 * 1_024 + 1_000  # the careful road has made 1,024 of them


def test_libraries_that_write_to_memory_which_is_read_only(roads: Any) -> None:
    import torch

    def writes(batch: Batch) -> Batch:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it says that it should not, and does
            torch.from_numpy(batch["x"]).mul_(2)
        return {"x": batch["x"], "id": batch["id"], "word": batch["word"]}

    fast, careful, windows = roads(hr.from_arrow(TABLE).map_batches(writes, batch_size=16))
    assert fast == careful
    assert windows
