"""A remote function is pickled once."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

import headrace as hr
from headrace.annex.tasks.calls import pickled_once


def script(source: str, **names: Any) -> dict[str, Any]:
    """Run a program's text as if it were the main module: its functions are pickled by value."""
    namespace = {"__name__": "__main__", **names}
    exec(compile(source, "<script>", "exec", dont_inherit=True), namespace)
    return namespace


def test_a_function_is_what_it_was_when_it_was_pickled() -> None:
    names = script("LIMIT = 3\ndef f(x): return min(x, LIMIT)")
    once = pickled_once(names["f"])
    names["LIMIT"] = 300
    assert pickle.loads(pickle.dumps(once))(7) == 3


def test_functions_with_big_arrays_or_without_a_pickle_are_pickled_by_each_call() -> None:
    array, generator = np.ones(1 << 20), (n for n in ())
    for function in (lambda: array, lambda: generator):
        assert pickled_once(function) is function
    with hr.connect(workers=1) as executor:
        ref = executor.put(1)
        function = lambda: ref  # noqa: E731
        assert pickled_once(function) is function


@pytest.mark.parametrize("chunksize", [1, 2])
def test_map_sends_the_function_as_it_was(chunksize: int) -> None:
    names = script("LIMIT = 3\ndef f(x): return min(x, LIMIT)")
    with hr.connect(workers=1) as executor:
        found = executor.map(names["f"], range(6), chunksize=chunksize)
        names["LIMIT"] = 300
        assert list(found) == [0, 1, 2, 3, 3, 3]
