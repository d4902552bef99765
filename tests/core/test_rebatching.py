"""Cutting and joining keeps order, content and coordinates, whatever the sizes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.work import Split
from headrace.worker.rows import Rows, RowSpan, join, rebatch

SPLITS = [Split(0, 0, 1), Split(0, 1, 2), Split(1, 0, 1)]
sizes = st.lists(st.integers(0, 13), max_size=8)


def coordinate(split: Split, row: int) -> str:
    return f"{split.file}.{split.start}.{row}"


def told(rows: Rows) -> list[str]:
    """Spell the rows' coordinates as their spans tell them."""
    return [coordinate(span.split, int(row)) for span in rows.spans for row in span.numbers()]


def written(rows: Rows) -> list[str]:
    """Return the coordinates that were written into the rows themselves."""
    return list(rows.batch.column(0).to_pylist())


def stream(sizes: list[int]) -> Iterator[Rows]:
    """Yield batches of these sizes, as a shard of three splits would; each row holds its own coordinate."""
    at = [0, 0, 0]
    for i, size in enumerate(sizes):
        split = SPLITS[i * 3 // len(sizes)]
        first = at[i * 3 // len(sizes)]
        at[i * 3 // len(sizes)] += size
        texts = [coordinate(split, row) for row in range(first, first + size)]
        yield Rows(
            pa.RecordBatch.from_arrays([pa.array(texts, pa.string())], names=["at"]),
            (RowSpan(split, first, size),),
        )


@given(sizes, st.integers(1, 20))
def test_rebatching_keeps_order_content_and_coordinates(sizes: list[int], size: int) -> None:
    whole = [text for rows in stream(sizes) for text in written(rows)]
    out = list(rebatch(stream(sizes), size))
    assert [text for rows in out for text in written(rows)] == whole
    full = [rows for rows in out if len(rows)]
    assert all(len(rows) == size for rows in full[:-1])
    assert all(0 < len(rows) <= size for rows in full[-1:])
    for rows in out:
        assert told(rows) == written(rows)
        assert sum(span.count for span in rows.spans) == len(rows)


@given(sizes, st.integers(1, 20))
def test_a_stream_without_rows_keeps_its_schema(sizes: list[int], size: int) -> None:
    out = list(rebatch(stream([0 for _ in sizes]), size))
    assert [len(rows) for rows in out] == [0][: len(sizes)]


@given(sizes.filter(bool), st.data())
def test_cut_keep_and_spread(sizes: list[int], data: st.DataObject) -> None:
    rows = join(list(stream(sizes)))
    start = data.draw(st.integers(0, len(rows)))
    stop = data.draw(st.integers(start, len(rows)))
    cut = rows.cut(start, stop)
    assert told(cut) == written(cut) == written(rows)[start:stop]

    mask = np.array(data.draw(st.lists(st.booleans(), min_size=len(cut), max_size=len(cut))), np.bool_)
    kept = cut.masked(cut.batch.filter(pa.array(mask, pa.bool_())), mask)
    assert told(kept) == written(kept)

    counts = data.draw(st.lists(st.integers(0, 3), min_size=len(kept), max_size=len(kept)))
    texts = np.repeat(np.array(written(kept), object), np.array(counts, int)).tolist()
    spread = kept.repeated(pa.RecordBatch.from_arrays([pa.array(texts, pa.string())], names=["at"]), counts)
    assert told(spread) == written(spread) == texts

    again = [part for size in [data.draw(st.integers(1, 7))] for part in rebatch(iter([spread]), size)]
    assert [text for part in again for text in told(part)] == texts


@given(sizes.filter(bool), st.data())
def test_a_blurred_batch_knows_its_range(sizes: list[int], data: st.DataObject) -> None:
    """When only the user's function knows which row came from which, the range of rows is what is left."""
    parts = [rows for rows in stream(sizes) if len(rows)][:1]
    for rows in parts:
        made = data.draw(st.integers(0, 9))
        with_unknown_origin = rows.with_unknown_origin(
            pa.RecordBatch.from_arrays([pa.array(range(made))], names=["x"])
        )
        (span,) = with_unknown_origin.spans
        assert span.count == made
        assert span.bounds() == (rows.spans[0].first, rows.spans[0].first + len(rows) - 1)
        low = data.draw(st.integers(0, made))
        for piece in with_unknown_origin.cut(low, made).spans:
            assert piece.bounds() == span.bounds() and piece.count == made - low


def test_batches_of_other_columns_are_joined_and_what_one_lacks_is_null() -> None:
    def rows(name: str, count: int) -> Rows:
        batch = pa.RecordBatch.from_arrays([pa.array(range(count))], names=[name])
        return Rows(batch, (RowSpan(SPLITS[0], 0, count),))

    out = list(rebatch(iter([rows("a", 3), rows("b", 4), rows("b", 2)]), 5))
    assert [part.batch.to_pydict() for part in out] == [
        {"a": [0, 1, 2, None, None], "b": [None, None, None, 0, 1]},
        {"b": [2, 3, 0, 1]},
    ]


def test_cutting_copies_nothing() -> None:
    rows = next(stream([10]))
    assert rows.cut(3, 7).batch.column(0).buffers()[2].address == rows.batch.column(0).buffers()[2].address
    assert rows.cut(0, 10) is rows
