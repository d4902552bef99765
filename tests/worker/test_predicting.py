"""Carried columns: every Arrow type comes through as it went in, by reference, whatever the batch size."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.core.arrow.batch import concat
from headrace.core.work import Split
from headrace.plan.functions import Function
from headrace.plan.steps.predict import Model, Predict
from headrace.worker.meter import Meter
from headrace.worker.rows import Rows, RowSpan
from headrace.worker.steps.base import StepChain

UTC = dt.UTC
WHEN = dt.datetime(2020, 2, 29, 12, 30, 15, 123456)
TYPES: dict[str, pa.Array] = {
    "null": pa.nulls(4),
    "bool": pa.array([True, None, False, True]),
    **{f"int{n}": pa.array([1, None, 2 ** (n - 1) - 1, -(2 ** (n - 1))], f"int{n}") for n in (8, 16, 32, 64)},
    **{f"uint{n}": pa.array([1, None, 2**n - 1, 0], f"uint{n}") for n in (8, 16, 32, 64)},
    "half": pa.array([np.float16(1.5), None, np.float16("nan"), np.float16("-inf")], pa.float16()),
    "float": pa.array([1.5, None, float("nan"), -0.0], pa.float32()),
    "double": pa.array([1e300, None, float("nan"), -0.0], pa.float64()),
    "decimal32": pa.array([Decimal("1.5"), None, Decimal("-9999.99"), Decimal(0)], pa.decimal32(6, 2)),
    "decimal64": pa.array([Decimal("1.5"), None, Decimal("-9999.99"), Decimal(0)], pa.decimal64(16, 2)),
    "decimal128": pa.array([Decimal("1.5"), None, Decimal("-9999.99"), Decimal(0)], pa.decimal128(38, 10)),
    "decimal256": pa.array([Decimal("1.5"), None, Decimal("-9999.99"), Decimal(0)], pa.decimal256(70, 10)),
    "string": pa.array(["a", None, "", "ß→😀"]),
    "large_string": pa.array(["a", None, "", "ß→😀"], pa.large_string()),
    "string_view": pa.array(["a", None, "", "ß→😀 and more than twelve bytes"], pa.string_view()),
    "binary": pa.array([b"a", None, b"", b"\x00\xff"]),
    "large_binary": pa.array([b"a", None, b"", b"\x00\xff"], pa.large_binary()),
    "binary_view": pa.array([b"a", None, b"", b"\x00\xff" * 10], pa.binary_view()),
    "fixed_binary": pa.array([b"abc", None, b"\x00\x01\x02", b"xyz"], pa.binary(3)),
    "date32": pa.array([dt.date(1969, 12, 31), None, dt.date(9999, 1, 1), dt.date(1, 1, 1)], pa.date32()),
    "date64": pa.array([dt.date(1969, 12, 31), None, dt.date(2020, 1, 1), dt.date(2021, 1, 1)], pa.date64()),
    "time32": pa.array([dt.time(1, 2, 3), None, dt.time(0), dt.time(23, 59, 59)], pa.time32("ms")),
    "time64": pa.array([dt.time(1, 2, 3, 4), None, dt.time(0), dt.time(23, 59, 59)], pa.time64("ns")),
    **{f"at_{unit}": pa.array([WHEN, None, WHEN, WHEN], pa.timestamp("us")).cast(pa.timestamp(unit), safe=False)
       for unit in ("s", "ms", "us", "ns")},
    "at_zone": pa.array([WHEN, None, WHEN, WHEN], pa.timestamp("us", "America/New_York")),
    "at_offset": pa.array([WHEN, None, WHEN, WHEN], pa.timestamp("ns", "+05:30")),
    **{f"for_{unit}": pa.array([1, None, -5, 0], pa.int64()).cast(pa.duration(unit))
       for unit in ("s", "ms", "us", "ns")},
    "interval": pa.array([(1, 2, 3), None, (0, 0, 0), (-1, -2, -3)], pa.month_day_nano_interval()),
    "list": pa.array([[1, None], None, [], [2]], pa.list_(pa.int16())),
    "large_list": pa.array([["a", None], None, [], ["b"]], pa.large_list(pa.string())),
    "list_view": pa.array([[1, None], None, [], [2]], pa.list_view(pa.int16())),
    "large_list_view": pa.array([[1, None], None, [], [2]], pa.large_list_view(pa.int16())),
    "fixed_list": pa.array([[1, 2], None, [3, None], [4, 5]], pa.list_(pa.float32(), 2)),
    "struct": pa.array([{"a": 1, "b": [None]}, None, {"a": None, "b": None}, {"a": 2, "b": []}],
                       pa.struct([("a", pa.int8()), ("b", pa.list_(pa.string()))])),
    "map": pa.array([[("a", 1)], None, [], [("b", None), ("c", 2)]], pa.map_(pa.string(), pa.int32())),
    "dictionary": pa.array(["x", None, "y", "x"]).dictionary_encode(),
    "small_dictionary": pa.DictionaryArray.from_arrays(pa.array([0, None, 1, 0], pa.uint8()), pa.array([1.5, 2.5])),
    "ordered": pa.DictionaryArray.from_arrays(pa.array([0, None, 1, 0], pa.int16()), pa.array(["lo", "hi"]),
                                              ordered=True),
    "ends": pa.RunEndEncodedArray.from_arrays(pa.array([1, 3, 4], pa.int32()), pa.array(["a", None, "b"])),
    "union": pa.UnionArray.from_sparse(pa.array([0, 1, 0, 1], pa.int8()),
                                       [pa.array([1, 2, 3, 4]), pa.array(list("abcd"))]),
    "dense": pa.UnionArray.from_dense(pa.array([0, 1, 0, 1], pa.int8()), pa.array([0, 0, 1, 1], pa.int32()),
                                      [pa.array([1, 2]), pa.array(list("ab"))]),
    "tensor": pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(24, dtype=np.float32).reshape(4, 2, 3)),
    "uuid": pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"0123456789abcdef"] * 3 + [None], pa.binary(16))),
    "json": pa.ExtensionArray.from_storage(pa.json_(), pa.array(['{"a": 1}', None, "[]", "1"])),
    "bool8": pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1, None, 0, 1], pa.int8())),
}  # fmt: skip


def step(batch_size: int | None, model: Any = None) -> Predict:
    function = Function(model or (lambda batch: batch["id"] * 2), model=True)
    return Predict((Model(function, "double", ("id",), False, batch_size, "numpy"),), None, False)


def rows_of(batch: pa.RecordBatch, cuts: list[int]) -> Iterator[Rows]:
    """The batch in pieces that begin at ``cuts``, as a source would read them."""
    split = Split(0, 0, 1)
    for start, stop in zip([0, *cuts], [*cuts, batch.num_rows], strict=True):
        yield Rows(batch.slice(start, stop - start), (RowSpan(split, start, stop - start),))


def run(batch: pa.RecordBatch, cuts: list[int], batch_size: int | None) -> list[Rows]:
    chain = StepChain([step(batch_size)], lambda rows: "here")
    return list(chain.run(rows_of(batch, cuts), Meter(1), []))


def addresses(array: pa.Array) -> list[int | None]:
    found = [buffer.address if buffer is not None else None for buffer in array.buffers()]
    return found + (addresses(array.dictionary) if pa.types.is_dictionary(array.type) else [])


@pytest.mark.parametrize("name", TYPES)
def test_every_type_is_carried_by_reference(name: str) -> None:
    column = TYPES[name]
    batch = pa.RecordBatch.from_arrays([pa.array(range(4)), column], names=["id", "value"])
    for batch_size in (None, 1, 3, 4, 100):
        parts = run(batch, [1, 3], batch_size)
        assert sum(map(len, parts)) == 4, batch_size
        at = 0
        for part in parts:
            carried = part.batch.column("value")
            assert carried.type == column.type, batch_size
            assert carried.equals(column.slice(at, len(part))) or name in ("half", "float", "double")  # NaN
            assert addresses(carried) == addresses(column), batch_size
            assert part.batch.column("double").to_pylist() == [2 * i for i in range(at, at + len(part))]
            at += len(part)


# What Arrow cannot write there, and fixed-size lists that are null, which it writes but cannot read.
NOT_IN_PARQUET = {"interval", "list_view", "large_list_view", "ends", "union", "dense", "fixed_list"}


@pytest.mark.parametrize("name", [name for name in TYPES if name not in NOT_IN_PARQUET])
def test_every_type_through_files(name: str, tmp_path: Path) -> None:
    table = pa.table({"before": TYPES[name], "id": range(4), "value": TYPES[name]})
    pq.write_table(table, tmp_path / "in.parquet", row_group_size=3)
    plain = hr.read_parquet(tmp_path / "in.parquet").with_options(engine="inline")
    plain.write_parquet(tmp_path / "plain")
    plain.predict(lambda b: b["id"], inputs=["id"], batch_size=2).write_parquet(tmp_path / "out")
    before = pa.concat_tables(pq.read_table(file) for file in sorted((tmp_path / "plain").glob("part-*")))
    after = pa.concat_tables(pq.read_table(file) for file in sorted((tmp_path / "out").glob("part-*")))
    assert after.column_names == ["before", "id", "value", "prediction"]
    assert after.schema.field("value").type == before.schema.field("value").type
    assert repr(after.column("value").to_pylist()) == repr(before.column("value").to_pylist())
    assert repr(after.column("value").to_pylist()) == repr(TYPES[name].to_pylist())


@given(
    rows=st.integers(1, 60),
    cuts=st.lists(st.integers(0, 60), max_size=6),
    sizes=st.lists(st.one_of(st.none(), st.integers(1, 70)), min_size=1, max_size=3),
)
def test_any_cuts_and_any_sizes_give_the_same_rows(
    rows: int, cuts: list[int], sizes: list[int | None]
) -> None:
    """Models of different batch sizes in one step: every row gets the results that belong to it."""
    batch = pa.record_batch({"id": pa.array(range(rows)), "text": [f"t{i}" for i in range(rows)]})
    models = tuple(
        Model(Function(_scaled(number), model=True), f"m{number}", ("id",), False, size, "numpy")
        for number, size in enumerate(sizes)
    )
    chain = StepChain([Predict(models, None, False)], lambda part: "here")
    within = sorted(min(cut, rows) for cut in cuts)
    done = list(chain.run(rows_of(batch, within), Meter(1), []))
    numbers = [int(row) for part in done for span in part.spans for row in span.numbers()]
    assert numbers == list(range(rows)), "every row knows where it came from"
    whole = concat([part.batch for part in done])
    assert whole.select(["id", "text"]).equals(batch)
    for number in range(len(sizes)):
        assert whole.column(f"m{number}").to_pylist() == [i * 10 + number for i in range(rows)]


def _scaled(number: int) -> Any:
    return lambda batch: batch["id"] * 10 + number


def test_few_rows_are_held_while_wide_ones_wait() -> None:
    """Inputs are small and rows are big: what waits for a batch of inputs to fill stays bounded."""
    held: list[int] = []
    big = pa.array([b"x" * (1 << 20)] * 8)

    def parts() -> Iterator[Rows]:
        for i in range(20):
            held.append(i)
            batch = pa.record_batch({"id": pa.array(range(8)), "image": big})
            yield Rows(batch, (RowSpan(Split(0, 0, 1), 8 * i, 8),))

    chain = StepChain([step(None)], lambda rows: "here")
    done = chain.run(parts(), Meter(1), [])
    next(done)
    assert len(held) <= 3, "16 MiB are two parts"
