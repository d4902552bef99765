"""Arrow's file format, which rejected rows are kept in."""

from __future__ import annotations

import io

import pyarrow as pa

from headrace.sinks.files import ArrowEncoder


def words(values: list[str | None]) -> pa.Array:
    return pa.array(values, pa.string()).dictionary_encode()


def kept(batches: list[pa.RecordBatch]) -> pa.Table:
    """Write batches, and return what the file has."""
    stream = io.BytesIO()
    encoder = ArrowEncoder(stream, batches[0].schema)  # type: ignore[arg-type]
    for batch in batches:
        encoder.write(batch)
    assert encoder.close() == sum(batch.num_rows for batch in batches)
    return pa.ipc.open_file(stream.getvalue()).read_all()


def test_batches_may_have_other_dictionaries() -> None:
    batches = [
        pa.record_batch({"n": [1, 2, 3], "word": words(["a", "b", None]), "kind": words(["x", "x", "x"])}),
        pa.record_batch({"n": [4, 5], "word": words(["c", "a"]), "kind": words(["y", "x"])}),
        pa.record_batch({"n": [6], "word": words(["b", "d"]).slice(1), "kind": words(["x", "z"]).slice(1)}),
        pa.record_batch({"n": pa.array([], pa.int64()), "word": words(["a"])[:0], "kind": words(["e"])[:0]}),
        pa.record_batch({"n": [7, 8], "word": words([None, None]), "kind": words(["y", None])}),
    ]
    found = kept(batches)
    assert found.num_rows == 8
    assert found.schema == batches[0].schema
    assert found["n"].to_pylist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert found["word"].to_pylist() == ["a", "b", None, "c", "a", "d", None, None]
    assert found["kind"].to_pylist() == ["x", "x", "x", "y", "x", "z", "y", None]


def test_a_dictionary_without_values_may_be_the_first() -> None:
    batches = [
        pa.record_batch({"word": words(values)}) for values in ([None], [None, None], ["a", None], ["b"])
    ]
    found = kept(batches)
    assert found.num_rows == 6
    assert found["word"].to_pylist() == [None, None, None, "a", None, "b"]
