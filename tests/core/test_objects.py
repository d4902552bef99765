"""Columns of Python objects: the very objects, as long as anything of the column is in use, and not longer."""

from __future__ import annotations

import gc
import pickle
import threading
import weakref
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.core.arrow import objects
from headrace.core.arrow.batch import (
    column_taken,
    concat,
    filtered,
    from_ipc,
    owned,
    schema_bytes,
    schema_from,
    taken,
    to_ipc,
)
from headrace.core.arrow.objects import (
    OBJECTS,
    bytes_of,
    object_column,
    objects_of,
    packed,
    unpacked,
)
from headrace.core.arrow.values import from_columns
from headrace.errors import BadInput, NotPicklable


class Thing:
    """An instance of a class that Arrow does not know."""

    def __init__(self, number: int) -> None:
        self.number = number


def batch_of(values: list[Any]) -> pa.RecordBatch:
    return pa.record_batch([object_column(values), pa.array(range(len(values)))], names=["x", "n"])


def test_cut_chosen_and_joined_columns_have_the_very_objects_after_the_first_column_is_gone() -> None:
    things = [Thing(i) if i != 3 else None for i in range(8)]
    batch = batch_of(things)
    mask = np.array([i % 2 == 1 for i in range(8)])
    cut = batch.slice(2, 4)
    made = {
        "cut": (cut, things[2:6]),
        "filtered": (filtered(cut, mask[:4]), [things[3], things[5]]),
        "taken": (taken(cut, np.array([3, 0, 3])), [things[5], things[2], things[5]]),
        "joined": (concat([cut, batch.slice(6), cut.slice(0, 1)]), [*things[2:8], things[2]]),
        "owned": (owned(cut), things[2:6]),
    }
    column = column_taken(batch.column("x"), np.array([7, -1, 0]))
    del batch, cut
    gc.collect()
    for name, (result, expected) in made.items():
        found = result.column("x").to_pylist()
        assert all(a is b for a, b in zip(found, expected, strict=True)), name
        assert result.column("x").null_count == expected.count(None), name
    assert [each and each.number for each in column.to_pylist()] == [7, None, 0]
    assert objects_of(pa.chunked_array([column, column.slice(1)])).tolist()[3:] == [None, things[0]]


def test_objects_are_let_go_with_the_last_of_their_column() -> None:
    thing = Thing(1)
    seen = weakref.ref(thing)
    before = len(objects._chunks)
    batch = batch_of([thing, None])
    part = batch.slice(0, 1)
    del thing, batch
    gc.collect()
    assert seen() is not None and part.column("x")[0].as_py() is seen()
    del part
    gc.collect()
    assert seen() is None and len(objects._chunks) == before


def test_numbers_whose_objects_are_gone_raise_and_never_give_another_object() -> None:
    column = object_column([Thing(1), Thing(2)])
    copied = pa.concat_arrays([column.slice(1), column.slice(0, 1)])
    assert [each.number for each in copied.to_pylist()] == [2, 1]
    del column
    gc.collect()
    object_column([Thing(3), Thing(4)])
    with pytest.raises(BadInput, match="objects are gone"):
        copied.to_pylist()


def test_numbers_of_another_process_are_refused() -> None:
    data = to_ipc(batch_of([1j]).schema, [batch_of([1j])])
    with pytest.raises(BadInput, match="another process"):
        from_ipc(data.replace(objects._HERE, bytes(8)))


def test_a_batch_travels_with_its_objects() -> None:
    shared = Thing(5)
    batch = batch_of([shared, None, "a", 2, shared, 1j])
    sent = packed(batch, (0,))
    assert sent.schema.field("x").type == pa.large_binary()
    (there,) = from_ipc(to_ipc(sent.schema, [sent]))
    found = unpacked(there, (0,)).column("x").to_pylist()
    assert found[1:4] == [None, "a", 2] and found[5] == 1j
    assert found[0] is found[4] and found[0] is not shared and found[0].number == 5
    for rows in (0, 1):
        few = unpacked(packed(batch.slice(0, rows), (0,)), (0,))
        assert few.num_rows == rows and few.schema.field("x").type == OBJECTS
    with pytest.raises(NotPicklable, match=r"Column 'x' holds Python objects \(_thread.lock and .*Thing\)"):
        packed(batch_of([threading.Lock(), shared]), (0,))


def test_a_file_that_claims_to_hold_pickles_is_never_unpickled() -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return pytest.fail, ("unpickled",)

    field = pa.field(
        "x",
        pa.large_binary(),
        metadata={
            b"ARROW:extension:name": b"headrace.pickled_object",
            b"ARROW:extension:metadata": b"",
            b"headrace.object": b"1",
        },
    )
    column = pa.array([pickle.dumps(Bomb())], pa.large_binary())
    batch = pa.RecordBatch.from_arrays([column], schema=pa.schema([field]))
    (there,) = from_ipc(to_ipc(batch.schema, [batch]))
    assert isinstance(there.to_pylist()[0]["x"], bytes)
    assert schema_from(schema_bytes(batch.schema)).field(0).type == pa.large_binary()


def test_a_schema_keeps_its_objects_on_the_way() -> None:
    schema = pa.schema([("x", OBJECTS), ("n", pa.int64())])
    assert schema_from(schema_bytes(schema)) == schema


def test_weights_are_those_of_what_objects_hold() -> None:
    class Image:
        def __init__(self) -> None:
            self.pixels = {"rgb": [np.zeros((100, 100, 3), np.uint8)]}

    PIL = pytest.importorskip("PIL.Image")
    for value, least in (
        (Image(), 30_000),
        (PIL.new("RGB", (100, 100)), 30_000),
        ("é" * 10_000, 10_000),
        (1j, 8),
    ):
        column = from_columns({"x": [value, object()] * 10})
        assert least * 5 <= bytes_of(column) <= least * 20 + 60_000
