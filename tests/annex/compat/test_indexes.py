"""A DataFrame's index on its way through a dataset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.compat.ray.train.batch_predictor import BatchPredictor
from headrace.errors import ArgumentError


@pytest.fixture(autouse=True)
def inline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_ENGINE", "inline")


def trips() -> pd.DataFrame:
    labels = pd.Index(["a", "b", "c", "d"], name="trip")
    return pd.DataFrame({"km": [1.0, 2.0, 3.0, 4.0], "n": [1, 2, 3, 4]}, index=labels)


@pytest.mark.filterwarnings("ignore:Series.values returning")  # pyarrow asks pandas for them
@pytest.mark.parametrize(
    "index",
    [
        pd.Index(["a", "b", "c", "d"], name="trip"),
        pd.Index([7, 7, 3, 1], name="id"),
        pd.RangeIndex(10, 14, name="id"),
        pd.Index([1.5, np.nan, 2.5, 3.5], name="x"),
        pd.date_range("2024-01-01", periods=4, tz="Europe/Berlin", name="when"),
        pd.timedelta_range("1s", periods=4, name="took"),
        pd.CategoricalIndex(["u", "v", "u", "v"], name="kind"),
        pd.MultiIndex.from_product([["a", "b"], [1, 2]], names=["letter", "number"]),
        pd.Index([1, 2, 3, 4], name=5),
    ],
    ids=str,
)
def test_a_named_index_is_kept(index: Any) -> None:
    frame = trips().set_axis(index)
    back = hr.from_pandas(frame).to_pandas()
    pd.testing.assert_frame_equal(back, frame, check_freq=False)
    assert back.index.names == frame.index.names
    kept = hr.from_pandas(frame).filter(expr="n > 2").to_pandas()
    pd.testing.assert_frame_equal(kept, frame[frame["n"] > 2], check_freq=False)


def test_it_goes_through_the_verbs(tmp_path: Path) -> None:
    data = hr.from_pandas(trips())
    assert data.columns() == ["trip", "km", "n"]
    made = (
        data.predict(lambda batch: batch["km"] * 2, inputs="km", output="p")
        .limit(3)
        .materialize()
        .drop_columns("n")
    )
    expected = trips().assign(p=trips()["km"] * 2).drop(columns="n")[:3]
    pd.testing.assert_frame_equal(made.to_pandas(), expected)
    mapped = data.map_batches(lambda frame: frame.assign(n=frame["n"] + 1), batch_format="pandas").to_pandas()
    pd.testing.assert_frame_equal(mapped, trips().assign(n=[2, 3, 4, 5]))
    data.write_parquet(tmp_path / "out")
    (part,) = (tmp_path / "out").glob("part-*")
    assert pq.read_table(part).column("trip").to_pylist() == ["a", "b", "c", "d"]


def test_a_model_does_not_read_it_by_itself() -> None:
    seen: list[list[str]] = []

    def model(batch: dict[str, Any]) -> Any:
        seen.append(list(batch))
        return batch["km"]

    hr.from_pandas(trips()).predict(model).take_all()
    assert seen[-1] == ["km", "n"]
    hr.from_pandas(trips()).predict({"a": model}, inputs=["trip", "km"]).take_all()
    assert seen[-1] == ["trip", "km"]


def test_what_drops_it() -> None:
    data = hr.from_pandas(trips())
    for dropped in (data.select_columns(["km"]), data.map_batches(lambda batch: {"km": batch["km"]})):
        frame = dropped.to_pandas()
        assert frame.columns.tolist() == ["km"] and isinstance(frame.index, pd.RangeIndex)
    swapped = data.drop_columns("km").rename_columns({"trip": "old", "n": "trip"}).to_pandas()
    assert swapped.columns.tolist() == ["old", "trip"] and isinstance(swapped.index, pd.RangeIndex)
    assert data.union(data).to_pandas().columns.tolist() == ["trip", "km", "n"]


def test_an_index_without_a_name_is_left_out() -> None:
    for frame in (pd.DataFrame({"x": [1, 2]}), pd.DataFrame({"x": [1, 2]}, index=["a", "b"])):
        back = hr.from_pandas(frame).to_pandas()
        assert isinstance(back.index, pd.RangeIndex) and back.index.name is None
        assert back.columns.tolist() == ["x"]


def test_a_column_of_the_same_name() -> None:
    both = trips().reset_index().set_index("trip", drop=False)
    data = hr.from_pandas(both)
    assert data.columns() == ["trip", "km", "n"]
    pd.testing.assert_frame_equal(data.to_pandas(), both)
    with pytest.raises(
        ArgumentError, match="index is named 'trip', and so is a column that holds something else"
    ):
        hr.from_pandas(both.assign(trip=["z", "b", "c", "d"]))


def test_several_frames_and_odd_levels() -> None:
    halves = [trips()[:2], trips()[2:]]
    pd.testing.assert_frame_equal(hr.from_pandas(halves).to_pandas(), trips())
    with pytest.raises(ArgumentError, match="equal columns"):
        hr.from_pandas([trips()[:2], trips()[2:].reset_index(drop=True)])
    levels = pd.MultiIndex.from_product([["a", "b"], [1, 2]], names=["letter", None])
    with pytest.raises(
        ArgumentError, match=r"levels of the index are named 'letter', None\. Give each a name"
    ):
        hr.from_pandas(trips().set_axis(levels))


def test_a_batch_predictor_does_not_read_it() -> None:
    seen: list[list[str]] = []

    def model(frame: pd.DataFrame) -> pd.DataFrame:
        seen.append(frame.columns.tolist())
        return pd.DataFrame({"y": frame["km"]})

    made = BatchPredictor.from_pandas_udf(model).predict(hr.from_pandas(trips()))
    assert made.take_all() == [{"y": 1.0}, {"y": 2.0}, {"y": 3.0}, {"y": 4.0}]
    assert seen[-1] == ["km", "n"]
