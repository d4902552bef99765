"""What accumulators promise, as tests."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from headrace.testing.expect import check, same


class AccumulatorContract:
    """The contract of the ``Accumulator`` port. Override ``make`` and ``batches``."""

    def make(self) -> Any:
        """Return a new accumulator."""
        raise NotImplementedError

    def batches(self) -> Sequence[pa.RecordBatch]:
        """Return some batches with its columns, three of them or more."""
        raise NotImplementedError

    def same(self, one: Any, other: Any) -> None:
        """Assert that two results are the same; override it where ``==`` does not tell."""
        same(other, one, "the result")

    def _of(self, batches: Sequence[pa.RecordBatch]) -> Any:
        made = self.make().empty()
        for batch in batches:
            made.update(batch.select(list(made.columns)))
        return made

    def _merged(self, *parts: Any) -> Any:
        total = self.make().empty()
        for part in parts:
            total.merge(total.from_bytes(part.to_bytes()))
        return total

    def test_an_empty_one_knows_nothing(self) -> None:
        made = self._of(self.batches())
        before = copy.deepcopy(made.result())
        self.same(made.empty().result(), self.make().result())
        self.same(made.result(), before)
        self.same(self._merged(made, made.empty()).result(), before)
        self.same(self._merged(made.empty(), made).result(), before)

    def test_parts_give_what_the_whole_gives_in_any_order(self) -> None:
        batches = list(self.batches())
        check(len(batches) >= 3, f"batches() must return three or more, not {len(batches)}")
        a, b, c = self._of(batches[:1]), self._of(batches[1:2]), self._of(batches[2:])
        whole = self._of(batches).result()
        for merged in (
            self._merged(a, b, c),
            self._merged(self._merged(a, b), c),
            self._merged(a, self._merged(b, c)),
            self._merged(c, a, b),
        ):
            self.same(merged.result(), whole)

    def test_it_travels_as_bytes_and_by_pickle(self) -> None:
        made = self._of(self.batches())
        data = made.to_bytes()
        check(isinstance(data, bytes), f"to_bytes() returns bytes, not {type(data).__name__}")
        self.same(self.make().from_bytes(data).result(), made.result())
        self.same(pickle.loads(pickle.dumps(self.make())).from_bytes(data).result(), made.result())

    def test_a_batch_may_change_when_it_was_seen(self) -> None:
        made, copied = self.make().empty(), self.make().empty()
        for batch in self.batches():
            batch = batch.select(list(made.columns))
            stream = pa.BufferOutputStream()
            with pa.ipc.new_stream(stream, batch.schema) as writer:
                writer.write_batch(batch)
            memory = bytearray(stream.getvalue())
            made.update(pa.ipc.open_stream(pa.py_buffer(memory)).read_next_batch())
            copied.update(batch)
            memory[:] = bytes(len(memory))
        self.same(made.result(), copied.result())

    def test_batches_without_rows_change_nothing(self) -> None:
        made = self._of(self.batches())
        before = made.to_bytes()
        made.update(self.batches()[0].slice(0, 0).select(list(made.columns)))
        same(made.to_bytes(), before, "its bytes after a batch without rows")
