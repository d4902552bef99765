"""User code may fill its memory again for the next batch or row: what it gave before stays as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import headrace as hr
from headrace.core.arrow.input_view import InputView
from headrace.core.arrow.values import from_result


def looks_fixed(array: Any) -> Any:
    view = array.view()
    view.flags.writeable = False
    return view


KINDS: dict[str, Callable[[Any], Any]] = {
    "array": lambda space: {"id": space},
    "read-only view": lambda space: {"id": looks_fixed(space)},
    "list of arrays": lambda space: {"id": list(space)},
    "column": lambda space: {"id": pa.array(space)},
    "chunked": lambda space: {"id": pa.chunked_array([pa.array(space)])},
    "series": lambda space: {"id": pd.Series(space, copy=False)},
    "polars series": lambda space: {"id": pl.Series(space)},
    "table": lambda space: pa.table({"id": space}),
    "dictionary": lambda space: pa.table(
        {"id": pa.DictionaryArray.from_arrays(pa.array(np.arange(4)), pa.array(space))}
    ),
    "buffer": lambda space: pa.table(
        {"id": pa.Array.from_buffers(pa.int64(), len(space), [None, pa.py_buffer(space)])}
    ),
    "frame": lambda space: pd.DataFrame({"id": space}, copy=False),
    "frame of a block": lambda space: pd.DataFrame(space.reshape(-1, 1), columns=["id"], copy=False),
    "polars frame": lambda space: pl.DataFrame({"id": space}),
}


@pytest.mark.parametrize("kind", list(KINDS))
def test_memory_filled_again_for_the_next_batch(kind: str) -> None:
    class Fills:
        def __init__(self) -> None:
            self.space = np.zeros(4, np.int64)

        def __call__(self, batch: dict[str, Any]) -> Any:
            self.space[:] = batch["id"]
            return KINDS[kind](self.space)

    filled = hr.range(16).map_batches(Fills, batch_size=4).map_batches(lambda batch: batch, batch_size=16)
    assert [row["id"] for row in filled.take_all()] == list(range(16))


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_generator_that_yields_one_array_again_and_again(kind: str) -> None:
    def fills(batch: dict[str, Any]) -> Iterator[Any]:
        space = np.zeros(4, np.int64)
        for start in range(0, 16, 4):
            space[:] = batch["id"][start : start + 4]
            yield KINDS[kind](space)

    assert [row["id"] for row in hr.range(16).map_batches(fills).take_all()] == list(range(16))


@pytest.mark.parametrize(
    "wrap",
    [
        lambda space, row: {"x": space},
        lambda space, row: {"x": space[:]},
        lambda space, row: {"x": space.tolist()},
    ],
)
def test_an_array_filled_again_for_the_next_row(wrap: Any) -> None:
    class Fills:
        def __init__(self) -> None:
            self.space = np.zeros(2, np.int64)

        def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
            self.space[:] = row["id"]
            return dict(wrap(self.space, row))

    class FillsTwice(Fills):
        def __call__(self, row: dict[str, Any]) -> Any:
            for _ in range(2):
                yield super().__call__(row)

    assert [row["x"][1] for row in hr.range(4).map(Fills).take_all()] == [0, 1, 2, 3]
    assert [row["x"][1] for row in hr.range(3).flat_map(FillsTwice).take_all()] == [0, 0, 1, 1, 2, 2]


def test_a_dict_and_a_list_filled_again_for_the_next_row() -> None:
    class Fills:
        def __init__(self) -> None:
            self.row: dict[str, Any] = {"ids": [0], "nested": {"id": 0}}

        def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
            self.row["ids"][0] = self.row["nested"]["id"] = self.row["id"] = row["id"]
            return self.row

    assert hr.range(3).map(Fills).take_all() == [{"ids": [i], "nested": {"id": i}, "id": i} for i in range(3)]


def test_what_a_step_only_carries_is_not_copied() -> None:
    batch = pa.RecordBatch.from_pydict({f"c{i}": np.arange(10) for i in range(20)})
    handed = InputView(batch)
    table = pa.Table.from_batches([batch]).append_column("new", [np.arange(10)])
    made = from_result(table.slice(3), handed)
    for column, before in zip(made.columns, batch.columns, strict=False):
        assert column.buffers()[1].address == before.buffers()[1].address
    assert made.column("new").buffers()[1].address != table.column("new").chunk(0).buffers()[1].address
