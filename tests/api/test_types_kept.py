"""The type of a column is the same in every batch, whatever the values of one batch happen to be."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import headrace as hr
from headrace.core.arrow.batch import concat
from headrace.core.arrow.batch_formats import rows_of, to_numpy
from headrace.errors import BadInput, BadReturn, SinkError

UTC = dt.UTC
TABLE = pa.table(
    {
        "count": pa.array([1, 2**60 + 1, None, 4], pa.int64()),
        "small": pa.array([1, 2, 3, None], pa.int8()),
        "price": pa.array([Decimal("1.5"), None, Decimal("100.25"), Decimal(0)], pa.decimal128(12, 4)),
        "tags": pa.array([[("a", 1)], [], None, [("b", None)]], pa.map_(pa.string(), pa.int32())),
        "lists": pa.array([[], [], [1], None], pa.list_(pa.int16())),
        "kind": pa.array(["x", None, "y", "x"]).dictionary_encode().cast(pa.dictionary(pa.int8(), pa.string())),
        "at": pa.array([dt.datetime(2020, 1, 1, tzinfo=UTC), None, None, None], pa.timestamp("ns", "Asia/Tokyo")),
        "flag": pa.array([True, None, False, None]),
        "deep": pa.array([{"a": None}, {"a": [1]}, None, {"a": []}], pa.struct([("a", pa.list_(pa.int8()))])),
        "many": pa.array([[{"a": 1}], [], None, [None]], pa.list_(pa.struct([("a", pa.int8())]))),
        "vector": pa.array([[1, 2]] * 4, pa.list_(pa.float32(), 2)),
        "holes": pa.array([[1, 2], None, None, [3, 4]], pa.list_(pa.int8(), 2)),
        "word": pa.array(["a", None, "b", "c"], pa.large_string()),
        "day": pa.array([dt.date(2020, 1, 1), None, None, None], pa.date64()),
        "never": pa.nulls(4, pa.int32()),
    }
)  # fmt: skip


@pytest.fixture
def data() -> hr.Dataset:
    return hr.from_arrow(TABLE)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize(
    "carry",
    [
        lambda data, size: data.map_batches(lambda b: {**b, "new": b["small"]}, batch_size=size),
        lambda data, size: data.map_batches(
            lambda b: {**{k: v[:] for k, v in b.items()}, "new": b["small"]}, batch_size=size
        ),
        lambda data, size: data.map_batches(
            lambda t: t.append_column("new", t["small"]), batch_size=size, batch_format="pyarrow"
        ),
        lambda data, size: data.map_batches(lambda b: b, batch_size=size).map(
            lambda row: {**row, "new": row["small"]}
        ),
        lambda data, size: data.map_batches(lambda b: b, batch_size=size).flat_map(
            lambda row: [{**row, "new": row["small"]}]
        ),
    ],
    ids=["numpy", "views", "pyarrow", "map", "flat_map"],
)
def test_columns_that_are_only_carried_keep_their_type(data: hr.Dataset, carry: Any, size: int) -> None:
    made = carry(data, size).to_arrow()
    assert made.drop_columns("new").cast(TABLE.schema).to_pylist() == TABLE.to_pylist()
    assert made.drop_columns("new").schema.remove_metadata() == TABLE.schema


@pytest.mark.parametrize("size", [1, 2, 4])
def test_pandas_keeps_integers_decimals_and_maps(data: hr.Dataset, size: int) -> None:
    columns = ["count", "small", "price", "tags"]
    made = data.map_batches(
        lambda frame: frame.assign(new=1), columns=columns, batch_format="pandas", batch_size=size
    ).to_arrow()
    assert made.drop_columns("new").to_pylist() == TABLE.select(columns).to_pylist()
    assert made.drop_columns("new").schema.remove_metadata() == TABLE.select(columns).schema


def test_decimals_and_maps_of_some_rows_keep_their_type(data: hr.Dataset) -> None:
    made = data.map_batches(
        lambda b: {name: b[name][b["vector"][:, 0] > 0] for name in ("price", "tags")}, batch_size=1
    ).to_arrow()
    assert made.to_pylist() == TABLE.select(["price", "tags"]).to_pylist()


def test_what_was_changed_is_not_taken_for_what_it_was(data: hr.Dataset) -> None:
    def change(batch: dict[str, Any]) -> dict[str, Any]:
        batch["deep"][1]["a"] = [7, 8]
        more = [None if count is None else count + 1 for count in batch["count"]]
        return {"deep": batch["deep"], "small": batch["small"][::-1], "count": more}

    made = data.map_batches(change).to_arrow().to_pydict()
    assert made["deep"][1] == {"a": [7, 8]}
    assert made["small"][1:] == [3, 2, 1] and made["count"][:2] == [2, 2**60 + 2]

    def change_row(row: dict[str, Any]) -> dict[str, Any]:
        if row["lists"] is not None:
            row["lists"].append(5)
        return {"lists": row["lists"]}

    assert data.map(change_row).to_arrow()["lists"].to_pylist() == [[5], [5], [1, 5], None]


def test_what_was_changed_inside_of_a_dictionary_is_seen() -> None:
    values = pa.array([[1], [2]])
    data = hr.from_arrow(pa.table({"x": pa.DictionaryArray.from_arrays(pa.array([0, 1]), values)}))

    def change(row: dict[str, Any]) -> dict[str, Any]:
        row["x"].append(5)
        return row

    assert data.map(change).to_arrow()["x"].to_pylist() == [[1, 5], [2, 5]]


def test_flat_map_takes_carried_values_as_often_as_they_come(data: hr.Dataset) -> None:
    made = data.flat_map(lambda row: [row] * ((row["count"] or 0) % 3)).to_arrow()
    assert made.schema.remove_metadata() == TABLE.schema
    assert made.to_pylist() == TABLE.take([0, 1, 1, 3]).to_pylist()


def test_types_that_arrow_cannot_take_from() -> None:
    views = hr.from_arrow(pa.table({"a": pa.array(["a" * 20, None], pa.string_view())}))
    assert views.map(lambda row: row).to_arrow()["a"].type == pa.string_view()
    assert [row["a"] for row in views.flat_map(lambda row: [row, row]).take_all()] == ["a" * 20] * 2 + [
        None
    ] * 2


# ---------------------------------------------------------------- types of which Arrow cannot choose rows


ODD = {
    "string views": pa.array(["a" * 20, None, "b", "c"], pa.string_view()),
    "binary views": pa.array([b"a" * 20, None, b"b", b"c"], pa.binary_view()),
    "runs": pa.RunEndEncodedArray.from_arrays(pa.array([2, 4], pa.int32()), pa.array(["x", None])),
    "lists of views": pa.array([["a"], None, [], ["b"]], pa.list_(pa.string_view())),
    "structs of views": pa.array([{"a": "x"}, None, {"a": None}, {"a": "y"}], pa.struct([("a", pa.string_view())])),
    "a dictionary of views": pa.DictionaryArray.from_arrays(
        pa.array([0, 1, None, 0]), pa.array(["a", "b"], pa.string_view())
    ),
    "list views": pa.array([[1], [2, 3], None, []], pa.list_view(pa.int64())),
    "unions": pa.UnionArray.from_sparse(
        pa.array([0, 1, 0, 1], pa.int8()), [pa.array([1, 2, 3, 4]), pa.array(["a", "b", "c", "d"])]
    ),
    "booleans in bytes": pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1, 0, None, 1], pa.int8())),
    "nanoseconds of the day": pa.array([1, None, 2, 3], pa.time64("ns")),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:1 of 4 rows failed")
@pytest.mark.parametrize("kind", ODD)
def test_rows_are_chosen_of_every_type(kind: str) -> None:
    column = ODD[kind]
    data = hr.from_arrow(pa.table({"x": column, "k": range(4)}))
    chosen = {
        (0, 2, 3): [
            data.filter(lambda row: row["k"] != 1),
            data.filter(expr=pc.field("k") != 1),
            data.map(lambda row: {**row, "z": 1 // (row["k"] - 1)}).with_options(on_error="reject"),
            data.with_options(on_error="reject").map_batches(
                lambda batch: 1 / np.all(batch["k"] != 1) and batch
            ),
        ],
        (1, 2, 2): [data.flat_map(lambda row: [row] * (row["k"] % 3))],
        (0, 1, 2, 3): [
            data.map(lambda row: row),
            data.map_batches(lambda batch: batch, batch_size=3),
            data.map_batches(lambda table: table, batch_format="pyarrow", batch_size=3),
        ],
    }
    values = column.to_pylist()
    for places, ways in chosen.items():
        for way in ways:
            made = way.to_arrow()
            assert made["k"].to_pylist() == list(places)
            assert made["x"].type == column.type
            assert made["x"].to_pylist() == [values[i] for i in places]


@pytest.mark.parametrize("kind", ["string views", "binary views", "lists of views", "structs of views"])
def test_rejected_rows_of_every_type_are_set_aside(kind: str, tmp_path: Path) -> None:
    data = hr.from_arrow(pa.table({"x": ODD[kind], "k": range(4)})).with_options(on_error="reject")
    options = {"engine": "inline", "progress": False}
    made = data.with_options(**options).map(lambda row: {"z": 1 // (row["k"] % 2)})
    assert made.write_parquet(tmp_path / "out").rejected == 2
    aside = hr.read_rejected(tmp_path / "out").to_arrow()
    assert aside["x"].to_pylist() == ODD[kind].to_pylist()[::2]


@pytest.mark.parametrize("kind", ["runs", "a dictionary of views"])
def test_what_is_encoded_is_handed_out_as_what_it_stands_for(kind: str) -> None:
    column = ODD[kind]
    for start in range(4):
        assert to_numpy(column.slice(start)).tolist() == column.to_pylist()[start:]


def test_nested_values_of_one_length_are_handed_out_as_objects() -> None:
    maps = pa.array([[("a", 1)], [("b", 2)]], pa.map_(pa.string(), pa.int32()))
    assert to_numpy(maps).tolist() == maps.to_pylist()
    texts = pa.array([["a", "b"], ["c", "d"]], pa.list_(pa.string(), 2))
    assert [list(row) for row in to_numpy(texts)] == texts.to_pylist()
    assert [row["x"] for row in rows_of(pa.record_batch({"x": ODD["nanoseconds of the day"]}))] == [
        np.timedelta64(1, "ns"), None, np.timedelta64(2, "ns"), np.timedelta64(3, "ns"),
    ]  # fmt: skip


# ---------------------------------------------------------------- dictionaries, indexes


def test_batches_of_different_dictionaries_are_joined() -> None:
    def batch(words: list[str]) -> pa.RecordBatch:
        column = pa.array(words).dictionary_encode().cast(pa.dictionary(pa.int8(), pa.string()))
        return pa.RecordBatch.from_arrays([column], names=["x"])

    assert concat([batch(["a", "b"]), batch(["c", "a"])]).to_pydict() == {"x": ["a", "b", "c", "a"]}
    some, others = [f"a{i}" for i in range(100)], [f"b{i}" for i in range(100)]
    joined = concat([batch(some), batch(others)])
    assert joined.to_pydict() == {"x": some + others}
    assert joined.schema.field("x").type == joined.column(0).type


def test_named_levels_of_an_index_become_columns() -> None:
    def sums(frame: pd.DataFrame) -> Any:
        return frame.assign(odd=frame["id"] % 2, half=frame["id"] // 4).groupby(["odd", "half"]).sum()

    made = hr.range(8).map_batches(sums, batch_format="pandas").take_all()
    assert made[0] == {"odd": 0, "half": 0, "id": 2} and len(made) == 4
    unnamed = hr.range(4).map_batches(lambda frame: frame[frame["id"] > 1], batch_format="pandas")
    assert unnamed.take_all() == [{"id": 2}, {"id": 3}]
    clash = hr.range(4).map_batches(lambda frame: frame.set_index("id", drop=False), batch_format="pandas")
    with pytest.raises(BadReturn, match=r"index is named 'id', and so is a column.*drop=True"):
        clash.take_all()


# ---------------------------------------------------------------- weight


def test_rows_that_weigh_much_come_in_small_batches() -> None:
    sizes: list[int] = []

    def look(batch: dict[str, Any]) -> dict[str, Any]:
        sizes.append(len(batch["image"]))
        return {"n": batch["image"][:, 0, 0]}

    big = np.zeros((1024, 1024), np.uint8)
    hr.range(40).map(lambda row: {"image": big}).map_batches(look, batch_size=None).take_all()
    assert max(sizes) <= 17 and sum(sizes) == 40
    sizes.clear()
    made = hr.range(3).flat_map(lambda row: ({"image": big + row["id"]} for _ in range(20))).map_batches(look)
    assert [row["n"] for row in made.take_all()] == [0] * 20 + [1] * 20 + [2] * 20
    assert max(sizes) <= 17


_INT = pa.int32()
_INT_LISTS = pa.list_(_INT)
_PAIR = pa.struct([("a", _INT_LISTS), ("b", _INT)])
_CELLS = [[1, None], [2, 5], None, [3, 4]]


@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("batch_format", ["numpy", "pandas"])
@pytest.mark.parametrize(
    ("type_", "values"),
    [
        (pa.list_(_INT), _CELLS),
        (pa.list_(pa.int64()), [[1], [2], None, [3, None]]),
        (pa.large_list(_INT), _CELLS),
        (pa.list_(_INT, 2), _CELLS),
        (pa.list_view(_INT), _CELLS),
        (pa.large_list_view(pa.int64()), _CELLS),
        (pa.list_(pa.float32()), _CELLS),
        (pa.list_(pa.bool_()), [[True, None], [], None, [False]]),
        (pa.list_(pa.list_(_INT)), [[[1, None], [2]], [], None, [None]]),
        (_PAIR, [{"a": [1, None], "b": None}, None, {"a": [], "b": 1}, {"a": None, "b": 2}]),
        (pa.map_(pa.string(), pa.list_(_INT)), [[("a", [1, None])], [], None, [("b", None)]]),
        (pa.dictionary(pa.int8(), pa.list_(_INT)), _CELLS),
    ],
    ids=str,
)  # fmt: skip
def test_lists_with_nulls_keep_their_type(
    type_: pa.DataType, values: list[Any], batch_format: Any, size: int
) -> None:
    if pa.types.is_dictionary(type_):
        column = pa.DictionaryArray.from_arrays(
            pa.array([0, 1, 2, 3], pa.int8()), pa.array(values, _INT_LISTS)
        )
    else:
        column = pa.array(values, type_)
    table = pa.table({"id": [0, 1, 2, 3], "x": column})
    same = (
        hr.from_arrow(table).map_batches(lambda b: b, batch_format=batch_format, batch_size=size).to_arrow()
    )
    assert same["x"].type == type_ and same["x"].to_pylist() == values

    def some(batch: Any) -> Any:
        if batch_format == "pandas":
            return batch[batch["id"] != 1].rename(columns={"x": "y"})
        keep = batch["id"] != 1
        return {"id": batch["id"][keep], "y": batch["x"][keep]}

    if batch_format == "pandas" or not pa.types.is_fixed_size_list(type_):
        made = hr.from_arrow(table).map_batches(some, batch_format=batch_format).to_arrow()
        assert made["y"].type == type_ and made["y"].to_pylist() == values[:1] + values[2:]


def test_a_list_that_a_function_writes_to_is_seen_to_have_changed() -> None:
    def change(frame: pd.DataFrame) -> pd.DataFrame:
        frame["x"][0][0] = 7.0
        return frame

    data = hr.from_arrow(pa.table({"x": pa.array([[1, None], [2]], _INT_LISTS)}))
    made = data.map_batches(change, batch_format="pandas").to_arrow()["x"].to_pylist()
    assert made[0][0] == 7 and made[1] == [2]


DICTIONARY_OF_CODES = pa.DictionaryArray.from_arrays([1, 0, None], pa.array(["a", "b"]).dictionary_encode())
BYTES = pa.array([b"a" * 16, b"b" * 16], pa.binary(16))
IN_PANDAS = {
    "a dictionary of dictionaries": (DICTIONARY_OF_CODES, ["b", "a", None]),
    "a dictionary with a null": (
        pa.DictionaryArray.from_arrays([1, 0, None], pa.array([None, "b"])), ["b", None, None]
    ),
    "a union": (
        pa.UnionArray.from_sparse(pa.array([0, 1, 0], pa.int8()), [pa.array([1, 2, 3]), pa.array(["a", "b", "c"])]),
        [1, "b", 3],
    ),
    "flags of a byte": (
        pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1, 0, None], pa.int8())), [True, False, None]
    ),
    "lists of UUIDs": (
        pa.ListArray.from_arrays([0, 1, 1, 2], pa.ExtensionArray.from_storage(pa.uuid(), BYTES)),
        [[b"a" * 16], [], [b"b" * 16]],
    ),
    "times of nanoseconds": (pa.array([1, None, 2000], pa.time64("ns")), [pd.Timedelta(1), None, pd.Timedelta(2000)]),
}  # fmt: skip


@pytest.mark.parametrize("name", IN_PANDAS)
def test_odd_types_are_right_in_pandas(name: str, tmp_path: Path) -> None:
    column, expected = IN_PANDAS[name]
    data = hr.from_arrow(pa.table({"id": range(3), "x": column})).with_options(
        engine="inline", progress=False
    )
    seen: list[Any] = []

    def look(frame: pd.DataFrame) -> pd.DataFrame:
        values = [value.tolist() if isinstance(value, np.ndarray) else value for value in frame["x"]]
        seen.extend(None if value is pd.NaT or value != value else value for value in values)
        return frame

    data.map_batches(look, batch_format="pandas").count()
    assert seen == expected
    assert len(data.to_pandas()) == 3


def test_times_beyond_those_of_python_are_numpys_in_rows() -> None:
    table = pa.table(
        {
            "day": pa.array([-800_000, 1, None], pa.int32()).cast(pa.date32()),
            "at": pa.array([-(10**14), 1, None], pa.timestamp("s")),
            "for": pa.array([10**15, 1, None], pa.duration("s")),
        }
    )
    data = hr.from_arrow(table).with_options(engine="inline", progress=False)
    far = np.datetime64(-800_000, "D"), np.datetime64(-(10**14), "s"), np.timedelta64(10**15, "s")
    assert data.take_all() == [
        dict(zip(table.column_names, far, strict=True)),
        {"day": np.datetime64(1, "D"), "at": np.datetime64(1, "s"), "for": np.timedelta64(1, "s")},
        {"day": None, "at": None, "for": None},
    ]
    assert data.map(lambda row: {**row}).to_arrow().equals(table)


def test_values_that_python_or_pandas_cannot_show_are_refused_by_their_column() -> None:
    days = pa.array([-800_000, 1], pa.int32()).cast(pa.date32())
    data = hr.from_arrow(pa.table({"day": days, "days": pa.ListArray.from_arrays([0, 1, 2], days)}))
    data = data.with_options(engine="inline", progress=False)
    with pytest.raises(BadInput, match=r"column 'days' of list<item: date32.*Python cannot show"):
        data.map(lambda row: row).take_all()
    with pytest.raises(BadInput, match=r"column 'day' of date32.*pandas cannot show"):
        data.map_batches(lambda frame: frame, batch_format="pandas").count()


def test_a_dictionary_with_a_null_is_written_to_parquet(tmp_path: Path) -> None:
    column, expected = IN_PANDAS["a dictionary with a null"]
    hr.from_arrow(pa.table({"x": column})).write_parquet(tmp_path / "out")
    assert [row["x"] for row in hr.read_parquet(tmp_path / "out").take_all()] == expected


def test_calendar_intervals_stay_what_they_are() -> None:
    table = pa.table({"x": pa.array([pa.MonthDayNano([1, 2, 3]), None], pa.month_day_nano_interval())})
    data = hr.from_arrow(table).with_options(engine="inline", progress=False)
    for copied in (
        data.map_batches(lambda batch: {"x": list(batch["x"])}),
        data.map(lambda row: {"x": row["x"]}),
    ):
        assert copied.to_arrow().equals(table)


@pytest.mark.parametrize(
    ("column", "verb"),
    [
        (pa.DictionaryArray.from_arrays([0, 1], pa.array([[1], [2]])), "parquet"),
        (pa.array([[None], None]), "csv"),
        (pa.StructArray.from_arrays([pa.nulls(2)], ["n"]), "csv"),
    ],
    ids=["dictionary of lists", "list of nulls", "dict of nulls"],
)  # fmt: skip
def test_what_a_format_cannot_hold_is_refused_by_its_name(
    column: pa.Array, verb: str, tmp_path: Path
) -> None:
    data = hr.from_arrow(pa.table({"id": [1, 2], "x": column})).with_options(engine="inline", progress=False)
    with pytest.raises(SinkError, match="cannot hold column 'x'"):
        getattr(data, f"write_{verb}")(tmp_path / "out")


WIDE = pa.array([2**60 + 1, None, 2**60 + 1, 5])
ENCODED = {
    "dictionary": WIDE.dictionary_encode(),
    "runs": pa.RunEndEncodedArray.from_arrays(pa.array([1, 2, 3, 4], pa.int32()), WIDE),
    "lists of a dictionary": pa.ListArray.from_arrays([0, 1, 2, 3, 4], WIDE.dictionary_encode()),
}


@pytest.mark.parametrize("name", ENCODED)
@pytest.mark.parametrize("format_", ["numpy", "pandas"])
def test_encoded_integers_beside_nulls_are_not_rounded(name: str, format_: Any) -> None:
    """They are as they are, or refused: float64 does not have them."""
    data = hr.from_arrow(pa.table({"x": ENCODED[name]})).with_options(engine="inline", progress=False)
    seen: list[Any] = []

    def look(batch: Any) -> Any:
        seen.extend(batch["x"])
        return batch

    try:
        data.map_batches(look, batch_format=format_).count()
    except BadInput as error:
        assert "column 'x' holds nulls and the integer 1152921504606846977" in str(error)
        assert format_ == "numpy"
    else:
        found = [value[0] if isinstance(value, np.ndarray) else value for value in seen]
        assert [
            None if value is None or value != value else int(value) for value in found
        ] == WIDE.to_pylist()


FLAGS = pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1, None, 0, 1], pa.int8()))
SMALL = pa.array([5, None, 7, 7]).dictionary_encode()


@pytest.mark.parametrize(("column", "kind"), [(FLAGS, "O"), (SMALL, "f"), (WIDE.dictionary_encode(), "O")])
def test_encoded_columns_with_nulls_have_one_dtype(column: pa.Array, kind: str) -> None:
    data = hr.from_arrow(pa.table({"x": column})).with_options(engine="inline", progress=False)
    batches = [batch["x"] for batch in data.iter_batches(batch_size=1, batch_format="numpy")]
    assert [batch.dtype.kind for batch in batches] == [kind] * 4
    assert [None if x is None or x != x else x for (x,) in batches] == column.to_pylist()
    assert data.map_batches(lambda frame: frame, batch_format="pandas", batch_size=1).to_arrow()[
        "x"
    ].to_pylist() == (column.to_pylist())
