"""A DataFrame's index on its way through a dataset: levels with names are columns."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

import headrace as hr
from headrace.errors import ArgumentError


def trips(index: Any) -> pd.DataFrame:
    return pd.DataFrame({"km": [1.0, 2.0, 3.0, 4.0]}, index=index)


@pytest.mark.parametrize(
    "index",
    [
        pd.Index(["a", "b", "c", "d"], name="trip"),
        pd.RangeIndex(10, 14, name="id"),
        pd.MultiIndex.from_product([["a", "b"], [1, 2]], names=["letter", "number"]),
        pd.MultiIndex.from_product([["a", "b"], [1, 2]], names=["letter", None]),
        pd.Index([1, 2, 3, 4], name=5),
    ],
    ids=str,
)
def test_levels_with_names_are_columns(index: Any) -> None:
    frame = trips(index)
    named = [name for name in index.names if name is not None]
    expected = frame.reset_index()[[*named, "km"]].rename(columns=str)
    data = hr.from_pandas([frame[:2], frame[2:]])
    assert data.columns() == expected.columns.tolist()
    pd.testing.assert_frame_equal(data.to_pandas(), expected)


def test_an_index_without_a_name_is_left_out() -> None:
    frame = hr.from_pandas(trips(["a", "b", "c", "d"])).to_pandas()
    assert frame.columns.tolist() == ["km"] and isinstance(frame.index, pd.RangeIndex)


def test_a_column_of_the_same_name_is_refused() -> None:
    with pytest.raises(ArgumentError, match="index is named 'km', and so is a column"):
        hr.from_pandas(trips(pd.Index([1, 2, 3, 4], name="km")))
