"""What is done for each of many columns does not look at all the others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.core.arrow import input_view
from headrace.core.arrow.input_view import InputView


def test_copies_that_a_function_got_are_recognised_without_looking_at_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = 0
    addresses = input_view._addresses

    def counted(column: pa.Array) -> list[int]:
        nonlocal asked
        asked += 1
        return addresses(column)

    monkeypatch.setattr(input_view, "_addresses", counted)
    values = np.arange(8.0)
    given = pa.record_batch({f"x{i}": values + i for i in range(300)})
    copies: list[Any] = [np.array(column) for column in given.columns]
    shown = pa.record_batch(dict(zip(given.schema.names, copies, strict=True)))
    view = InputView(given, None, shown, None)

    copies[7][0] = -1.0  # written to, behind the view's back
    made = view.owned_batch(shown.append_column("more", pa.array(values)))

    assert asked < 5 * 300
    for name in given.schema.names:
        same = made[name].buffers()[1].address == given[name].buffers()[1].address
        assert same == (name != "x7")
    assert made["x7"].to_pylist() == [-1.0, *(values[1:] + 7)]
    assert made["x7"].buffers()[1].address != shown["x7"].buffers()[1].address
    assert made["more"].to_pylist() == values.tolist()
