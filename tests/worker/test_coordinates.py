"""Coordinates of rows: packed for another process, and in as few spans as will do."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.work import Split
from headrace.worker.rows import RowSpan, decode_spans, encode_spans, merged_spans

SPLITS = [Split(0, 0, 9, 100), Split(1, 0, 9, -1)]


@st.composite
def spans(draw: st.DrawFn) -> RowSpan:
    split = draw(st.sampled_from(SPLITS))
    kind = draw(st.sampled_from(["run", "index", "blurred"]))
    count = draw(st.integers(1, 4))
    first = draw(st.integers(0, 6))
    if kind == "index":
        return RowSpan(
            split, 0, count, np.array(draw(st.lists(st.integers(0, 50), min_size=count, max_size=count)))
        )
    return RowSpan(split, first, count, None, first + 7 if kind == "blurred" else None)


def told(several: list[RowSpan]) -> list[tuple[Split, int | tuple[int, int]]]:
    rows: list[tuple[Split, int | tuple[int, int]]] = []
    for span in several:
        if span.last is not None:
            rows += [(span.split, span.bounds())] * span.count
        else:
            rows += [(span.split, int(number)) for number in span.numbers()]
    return rows


@given(several=st.lists(spans(), max_size=12))
def test_merged_spans_say_the_same(several: list[RowSpan]) -> None:
    assert told(list(merged_spans(several))) == told(several)
    assert sum(span.count for span in merged_spans(several)) == sum(span.count for span in several)


@given(batches=st.lists(st.lists(spans(), max_size=4), max_size=4))
def test_packed_spans_come_back(batches: list[list[RowSpan]]) -> None:
    again = decode_spans(encode_spans(batches))
    assert [told(list(each)) for each in again] == [told(each) for each in batches]


def test_neighbours_become_one() -> None:
    ones = [RowSpan(SPLITS[0], i, 1) for i in range(100)]
    assert merged_spans(ones) == (RowSpan(SPLITS[0], 0, 100),)
