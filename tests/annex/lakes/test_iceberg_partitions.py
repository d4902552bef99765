"""Iceberg tables with partitions: readers that pass over files by their partitions find every row."""

from __future__ import annotations

import datetime as dt
import hashlib
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.expressions import EqualTo, GreaterThanOrEqual, IsNull, LessThan
from pyiceberg.transforms import parse_transform
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
)

import headrace as hr
from crossed import few
from headrace.annex.lakes.iceberg.partitions import PartitionField, Partitions, text_of, transformed
from headrace.annex.lakes.iceberg.sink import IcebergTable
from headrace.errors import SinkError
from headrace.sinks import dividing

from .growing import Iceberg, hundred, rows

UTC = dt.UTC
MADE = {
    "int": (pa.int32(), IntegerType(), st.integers(-(2**31) + 999, 2**31 - 1)),
    "long": (pa.int64(), LongType(), st.integers(-(2**63) + 999, 2**63 - 1)),
    "string": (pa.string(), StringType(), st.text(max_size=12)),
    "binary": (pa.binary(), BinaryType(), st.binary(max_size=12)),
    "decimal": (
        pa.decimal128(38, 5),
        DecimalType(38, 5),
        st.decimals(-(10**32), 10**32, places=5).map(lambda d: d if d else abs(d)),
    ),
    "date": (pa.date32(), DateType(), st.dates()),
    "plain": (pa.timestamp("us"), TimestampType(), st.datetimes()),
    "when": (
        pa.timestamp("us", "UTC"),
        TimestamptzType(),
        st.datetimes(timezones=st.just(UTC)),
    ),
}
WHICH = {
    "identity": list(MADE),
    "bucket[7]": list(MADE),
    "truncate[3]": ["int", "long", "string", "binary", "decimal"],
    "year": ["date", "plain", "when"],
    "month": ["date", "plain", "when"],
    "day": ["date", "plain", "when"],
    "hour": ["plain", "when"],
}


@settings(max_examples=few(24))
@given(data=st.data(), which=st.sampled_from([(how, name) for how in WHICH for name in WHICH[how]]))
def test_values_are_those_of_the_specification(data: st.DataObject, which: tuple[str, str]) -> None:
    """As the library's own functions have them; and no two have one text."""
    how, name = which
    arrow, iceberg, values = MADE[name]
    given_ = data.draw(st.lists(st.none() | values, max_size=6))
    transform, _, width = how.partition("[")
    made = transformed(transform, int(width[:-1] or 0) if width else 0, pa.array(given_, arrow)).to_pylist()
    expected = [parse_transform(how).transform(iceberg)(value) for value in given_]
    if how == "identity":
        whole = {"date": pa.int32(), "plain": pa.int64(), "when": pa.int64()}.get(name, arrow)
        expected = pa.array(given_, arrow).cast(whole).to_pylist()
    assert made == expected
    texts = {value: text_of(transform, arrow, value) for value in made}
    assert len(set(texts.values())) == len(texts)


def test_hashes_of_the_specification() -> None:
    """Appendix B of https://iceberg.apache.org/spec/."""
    width = 2**31
    for values, expected in (
        (pa.array([34], pa.int32()), 2017239379),
        (pa.array([34]), 2017239379),
        (pa.array([Decimal("14.20")]), -500754589),
        (pa.array([dt.date(2017, 11, 16)]), -653330422),
        (pa.array([dt.datetime(2017, 11, 16, 22, 31, 8)]), -2047944441),
        (pa.array([dt.datetime(2017, 11, 16, 22, 31, 8, 1)]), -1207196810),
        (pa.array(["iceberg"]), 1210000089),
        (pa.array([b"\0\1\2\3"]), -188683207),
    ):
        assert transformed("bucket", width, values).to_pylist() == [expected & 0x7FFFFFFF]


def test_no_two_texts_share_a_folder() -> None:
    long = "x" * 300
    cut = f"xxxx~{hashlib.sha256(long.encode()).hexdigest()}"
    texts = [None, "null", "NULL", "", "%6Eull", long, cut, cut.upper(), long + "x", "../a", "a"]
    kinds, batch = pa.schema([("w", pa.string())]), pa.record_batch({"w": texts})
    by = PartitionField("a/b=", "w", 1, "identity")
    for caseless in (False, True):
        division = Partitions((by,), kinds, "shop.t", dividing.Folders((), 255, 4000, caseless))
        found = {folder: rows["w"].to_pylist() for folder, rows in division.divided(batch)}
        assert [*found.values()] == [[text] for text in texts]
        assert division.values == found
        assert len({folder.lower() if caseless else folder for folder in found}) == len(texts)
        assert all(len(folder) < 120 and "/" not in folder for folder in found)


# ------------------------------------------------------------ tables


def make(shop: Iceberg, schema: pa.Schema, **fields: str) -> Any:
    """A table partitioned by ``column__2="bucket[3]"``."""
    shop.catalog.create_namespace_if_not_exists("shop")
    table = shop.catalog.create_table("shop.t", schema=schema)
    with table.update_spec() as update:
        for name, how in fields.items():
            update.add_field(name.partition("__")[0], how, f"p_{name}")
    return table.refresh()


@pytest.fixture
def shop(tmp_path: Path) -> Iceberg:
    return Iceberg(tmp_path)


WHEN = [
    None,
    dt.datetime(1, 1, 2),
    dt.datetime(1969, 12, 31, 23, 59, 59, 999999),
    dt.datetime(1970, 1, 1),
    dt.datetime(2024, 2, 29, 23, 30),
    dt.datetime(9999, 12, 30, 23),
    dt.datetime(1960, 2, 28),
    dt.datetime(2024, 3, 1),
]
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "i": (pa.int64(), [None, -1, 0, 1, -(2**62), 2**62, 10, -10]),
    "s": (pa.string(), [None, "null", "", "ü/=%~ +\0", "\U0001f600é", "A", "a", "x" * 300]),
    "b": (pa.binary(), [None, b"", b"\0\xff", b"null", b"ab", b"abc", b"\xff" * 20, b"a"]),
    "d": (
        pa.decimal128(30, 2),
        [None, *map(Decimal, ["0.00", "-0.01", "0.01", "-99.99", "1.10", "12345678901234567890123456.78", "1.11"])],
    ),
    "day": (pa.date32(), [None if when is None else when.date() for when in WHEN]),
    "plain": (pa.timestamp("us"), WHEN),
    "when": (pa.timestamp("us", "UTC"), [None if when is None else when.replace(tzinfo=UTC) for when in WHEN]),
    "yes": (pa.bool_(), [None, True, False, True, False, None, True, False]),
}  # fmt: skip
SPECS = [
    {"i": "identity", "yes": "identity"},
    {"s": "identity"},
    {"b": "identity", "d": "bucket[4]", "day": "year"},
    {"d": "identity", "plain": "hour"},
    {"day": "identity", "when": "month"},
    {"plain": "identity", "i": "bucket[3]"},
    {"when": "identity", "s": "bucket[2]", "when__2": "hour"},
    {"day": "bucket[3]", "when": "bucket[3]", "plain": "bucket[2]"},
    {"i": "truncate[10]", "s": "truncate[1]", "d": "truncate[50]", "b": "truncate[2]"},
    {"day": "month", "plain": "month", "when": "day", "i": "void"},
]


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_every_row_is_found_by_filters_on_what_it_is_partitioned_by(
    shop: Iceberg, spec: dict[str, str]
) -> None:
    given_ = pa.table({name: pa.array(values, kind) for name, (kind, values) in VALUES.items()})
    given_ = given_.append_column("row", pa.array(range(8)))
    zoned = given_.set_column(6, "when", given_["when"].cast(pa.timestamp("us", "Asia/Kolkata")))
    table = make(shop, given_.schema, **spec)
    assert rows(zoned).write_iceberg("shop.t", catalog=shop.lake).rows == 8
    table.refresh()
    assert table.scan().to_arrow().sort_by("row").to_pylist() == given_.to_pylist()
    records = table.inspect.files()
    assert len(records) > 1 and set(records["spec_id"].to_pylist()) == {table.metadata.default_spec_id}
    for name in {each.partition("__")[0] for each in spec}:
        for value in VALUES[name][1]:
            scan = table.scan(IsNull(name) if value is None else EqualTo(name, value))
            found = scan.to_arrow()
            assert len(list(scan.plan_files())) < len(records) or spec[name] == "void"
            expected = [row for row in range(8) if VALUES[name][1][row] == value]
            assert sorted(found["row"].to_pylist()) == expected, (name, value)
            if value is None or name == "yes":
                continue
            for lower in (True, False):
                compare = GreaterThanOrEqual(name, value) if lower else LessThan(name, value)
                found = table.scan(compare).to_arrow()["row"].to_pylist()
                expected = [
                    row
                    for row, other in enumerate(VALUES[name][1])
                    if other is not None and (other >= value if lower else other < value)
                ]
                assert sorted(found) == expected, (name, value)


def test_rows_of_many_partitions_and_shards(
    shop: Iceberg, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory and open files are bounded, columns are not copied past the division, and overwrite replaces all."""
    table = make(shop, pa.schema([("id", pa.int64()), ("w", pa.string())]), id="bucket[8]", w="identity")
    (tmp_path / "in").mkdir()
    for number in range(2):
        ids = range(number * 5000, number * 5000 + 5000)
        words = ["a" if i % 2 else None for i in ids]
        pq.write_table(pa.table({"id": ids, "w": words}), tmp_path / f"in/{number}.parquet")
    monkeypatch.setattr(dividing, "HELD_BYTES", 30_000)
    monkeypatch.setattr(dividing, "OPEN_FILES", 3)
    data = hr.read_parquet(str(tmp_path / "in")).with_options(
        engine="inline", progress=False, shard_rows=5000, durability="process"
    )
    assert data.write_iceberg("shop.t", catalog=shop.lake).rows == 10_000
    assert shop.ids() == [*range(10_000)] and shop.commits() == 1
    assert hr.verify(tmp_path / "shop/t/data/headrace-output").good
    few = data.map_batches(lambda batch: batch, batch_size=1000)
    few.write_iceberg("shop.t", catalog=shop.lake, mode="overwrite")
    assert shop.ids() == [*range(10_000)]
    for value in (0, 17, 9_999):
        assert table.refresh().scan(f"id = {value}").to_arrow()["id"].to_pylist() == [value]
    files = table.inspect.files()["file_path"].to_pylist()
    assert len(files) > 2 * 16  # a partition whose file was closed for another has a further one
    for path in files[:10]:
        ids = pa.array(pq.read_table(path)["id"].to_pylist())
        assert f"/p_id={transformed('bucket', 8, ids)[0]}/p_w=" in path
        assert len(set(transformed("bucket", 8, ids).to_pylist())) == 1
    with table.update_spec() as update:
        update.remove_field("p_w")
    data.filter(expr="id < 50").write_iceberg("shop.t", catalog=shop.lake, mode="overwrite")
    assert shop.ids() == [*range(50)] and shop.commits() == 3
    monkeypatch.setattr(dividing, "MOST_FOLDERS", 7)
    with pytest.raises(SinkError, match=r"partitioned by bucket\(8, id\).*more than 7 different"):
        data.write_iceberg("shop.t", catalog=shop.lake, output="more")
    assert len(shop.ids()) == 50


def test_a_spec_that_changes_meanwhile(shop: Iceberg, monkeypatch: pytest.MonkeyPatch) -> None:
    table = make(shop, pa.schema([("id", pa.int64())]), id="bucket[4]")
    begun, changes = IcebergTable._begun, ["rename", "bucket[5]", "none"]

    def changed(self: IcebergTable, *args: Any) -> Any:
        now = shop.table()
        with now.update_spec() as update:
            if changes[0] == "rename":
                update.rename_field("p_id", "other")
            else:
                update.remove_field(now.spec().fields[0].name)
                if changes[0] != "none":
                    update.add_field("id", changes[0], "p_5")
        return begun(self, shop.table(), *args[1:])

    monkeypatch.setattr(IcebergTable, "_begun", changed)
    hundred().write_iceberg("shop.t", catalog=shop.lake)  # a name makes no difference
    for change in changes[1:]:
        changes[0] = change
        with pytest.raises(SinkError, match=r"was changed during.*its partitions are .* now, and were"):
            hundred().write_iceberg("shop.t", catalog=shop.lake, output=f"to-{change[:4]}")
    monkeypatch.setattr(IcebergTable, "_begun", begun)
    with pytest.raises(
        SinkError, match=r"its partitions are none now, and were"
    ):  # the parts are the old ones
        hundred().write_iceberg("shop.t", catalog=shop.lake, output="to-buck")
    assert shop.ids() == [*range(100)] and table.refresh().spec().is_unpartitioned()


def test_what_cannot_be_divided(shop: Iceberg) -> None:
    inner = pa.struct([("x", pa.int64())])
    schema = pa.schema([("id", pa.int64()), ("f", pa.float64()), ("day", pa.date32()), ("s", inner)])
    table = make(shop, schema, f="identity")

    def divide_by(name: str, how: str) -> None:
        with table.update_spec() as update:
            update.remove_field(table.spec().fields[0].name)
            update.add_field(name, how, f"p_{name.replace('.', '_')}")
        table.refresh()

    def write(output: str = "run", **columns: Any) -> None:
        rows({"id": [1, 2], **columns}).write_iceberg("shop.t", catalog=shop.lake, output=output)

    with pytest.raises(SinkError, match="by the field 'p_f', and its column 'f' is of type double"):
        write()
    divide_by("s.x", "identity")
    with pytest.raises(SinkError, match="'p_s_x', and its column is within another one"):
        write()
    divide_by("day", "month")
    with pytest.raises(
        SinkError, match=r"by month\(day\), and a value of the column 'day'.*after 9999.*null"
    ):
        write(day=pa.array([3_000_000, 1], pa.int32()).cast(pa.date32()))
    divide_by("id", "truncate[10]")
    with pytest.raises(SinkError, match=r"truncate\(10, id\).*-9223372036854775808 cannot be truncated"):
        rows({"id": [-(2**63)]}).write_iceberg("shop.t", catalog=shop.lake, output="low")
    assert not table.refresh().metadata.snapshots
    divide_by("day", "year")
    write("left-out")  # a column that is not written is null
    assert table.refresh().scan(IsNull("day")).to_arrow()["id"].to_pylist() == [1, 2]
    assert [task.file.partition[0] for task in table.scan().plan_files()] == [None]
    hundred().filter(expr="id < 0").write_iceberg("shop.t", catalog=shop.lake, output="none")
    assert shop.ids() == [1, 2]
