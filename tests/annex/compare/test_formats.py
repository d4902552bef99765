"""Outputs in any format are compared by what was written, and a side that cannot be read is told in words."""

from __future__ import annotations

import datetime
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.errors import ArgumentError, PlanError, RequirementNotMet, UnreadableFile

SECOND = datetime.timedelta(seconds=1)


def written(out: Path, values: list[Any], verb: str = "csv", **options: Any) -> str:
    """Write an output with the columns ``id`` and ``v``."""
    rows = np.array([*values, None], dtype=object)[:-1]
    data = hr.range(len(values)).map_batches(lambda batch: {**batch, "v": rows[batch["id"]]}, version="1")
    getattr(data.with_options(engine="inline", progress=False), f"write_{verb}")(str(out), **options)
    return str(out)


@pytest.mark.parametrize("verb", ["csv", "json", "parquet"])
@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [
        (["001", "2"], ["1", "2"], 1),
        (["1e3", "x"], ["1000", "x"], 1),
        (["true", "no"], ["True", "no"], 1),
        (["2024-01-01", "a"], ["2024-01-01 ", "a"], 1),
        (["2024-01-01", "2024-01-02"], ["2024-01-01T00:00:00", "2024-01-02"], 1),
        (["", "a"], [None, "a"], 1),
        (["null", "NA", "nan"], [None, "NA", "NaN"], 2),
        (["a\nb", '"'], ["a\r\nb", '"'], 1),
        ([1.0, -0.0, 0.1], [1, 0, 2], 1),
    ],
)
def test_values_are_what_was_written(
    verb: str, old: list[Any], new: list[Any], changed: int, tmp_path: Path
) -> None:
    sides = [written(tmp_path / name, values, verb) for name, values in (("old", old), ("new", new))]
    for on in (None, "id"):
        assert hr.compare(*sides, on=on).columns["v"]["changed"] == changed


def test_nan_and_null_are_two_values_in_csv(tmp_path: Path) -> None:
    old, new = written(tmp_path / "old", [math.nan, 1.0]), written(tmp_path / "new", [None, 1.0])
    assert hr.compare(old, new).columns["v"]["emptied"] == 1
    assert hr.compare(old, old).changed == 0


@pytest.mark.parametrize(
    "options",
    [{"header": False}, {"delimiter": ";"}, {"compression": "gzip"}, {"escape_formulas": True}],
    ids=str,
)
def test_csv_with_options(options: dict[str, Any], tmp_path: Path) -> None:
    old = written(tmp_path / "old", ["=1", "b", "c"], **options)
    new = written(tmp_path / "new", ["=2", "b", "c"], **options)
    for on in (None, "id"):
        found = hr.compare(old, new, on=on)
        assert (found.rows, found.different, list(found.columns)[-1]) == (3, 1, "v")


def test_times_and_nested_values_in_json(tmp_path: Path) -> None:
    old = [{"when": datetime.date(2024, 2, 29), "s": [{"a": "1"}], "half": np.float16(0.5)}]
    new = [{"when": datetime.date(2024, 3, 1), "s": [{"a": "2"}], "half": np.float16(0.5)}]
    for name, values in (("old", old), ("new", new)):
        data = hr.range(1).map_batches(
            lambda batch, v=values: {
                "id": batch["id"],
                **pa.table({key: pa.array([v[0][key]]) for key in v[0]}).to_pydict(),
            },
            version="1",
        )
        data.with_options(engine="inline", progress=False).write_json(str(tmp_path / name))
    found = hr.compare(str(tmp_path / "old"), str(tmp_path / "new"))
    assert {name: each["changed"] for name, each in found.columns.items() if name != "id"} == {
        "when": 1,
        "s": 1,
        "half": 0,
    }


def test_tfrecords(tmp_path: Path) -> None:
    old, new = written(tmp_path / "old", [1, 2], "tfrecords"), written(tmp_path / "new", [1, 3], "tfrecords")
    assert hr.compare(old, new).different == 1


# ------------------------------------------------------------ keys


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (pa.array([SECOND]), pa.array([1], pa.duration("ms"))),
        (pa.array([datetime.time(1)], pa.time32("s")), pa.array([3600], pa.time64("us"))),
        (pa.array([[1]]), pa.array([["1"]])),
        (pa.array([{"a": 1}]), pa.array([{"a": "1"}])),
    ],
    ids=["durations", "times", "lists", "structs"],
)
def test_keys_of_two_types_are_not_taken_for_the_same(one: pa.Array, other: pa.Array) -> None:
    sides = [hr.from_arrow(pa.table({"k": each, "x": [1]})) for each in (one, other)]
    with pytest.raises(ArgumentError, match="so keys cannot be the same"):
        hr.compare(*sides, on="k")
    assert hr.compare(sides[0], sides[0], on="k").same == 1


# ------------------------------------------------------------ what cannot be read


def test_a_damaged_file_is_not_said_to_be_of_types_that_the_engine_lacks(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.parquet", tmp_path / "bad.parquet"
    pq.write_table(pa.table({"id": np.arange(50_000), "x": np.random.default_rng(1).random(50_000)}), good)
    data = bytearray(good.read_bytes())
    data[5_000:9_000] = bytes(4_000)
    bad.write_bytes(data)
    with pytest.raises(UnreadableFile, match="damaged") as raised:
        hr.compare(str(good), str(bad), on="id")
    assert "Traceback" not in str(raised.value)


def test_a_part_that_is_gone(tmp_path: Path) -> None:
    old, new = (written(tmp_path / name, [1, 2], "parquet") for name in ("old", "new"))
    next(Path(new).glob("part-*")).unlink()
    with pytest.raises(UnreadableFile, match="headrace verify"):
        hr.compare(old, new)


def test_an_old_side_that_waits_to_be_published(tmp_path: Path) -> None:
    data = hr.range(3).with_options(engine="inline", progress=False)
    with pytest.raises(RequirementNotMet):
        data.require(rows=hr.at_least(4)).write_parquet(str(tmp_path / "out"))
    with pytest.raises(PlanError, match="waits to be published"):
        hr.compare(str(tmp_path / "out"), str(tmp_path / "out"))


def test_what_is_no_name() -> None:
    data = hr.from_items([{"id": 1, "x": 1}])
    for given in ({"on": 3}, {"on": "id", "columns": 3}, {"on": [3]}):
        with pytest.raises(ArgumentError, match="takes the name of a column"):
            hr.compare(data, data, **given)
    with pytest.raises(ArgumentError, match="old is ''"):
        hr.compare("", data, on="id")
