"""How calls are pickled: those of plain data quickly, and a remote function once."""

from __future__ import annotations

import math
import pickle
from typing import Any

import numpy as np
import pytest

import headrace as hr
from headrace.annex.tasks.calls import PickledOnce, pickled_once, plain_call


def script(source: str, **names: Any) -> dict[str, Any]:
    """Run a program's text as if it were the main module: its functions are pickled by value."""
    namespace = {"__name__": "__main__", **names}
    exec(compile(source, "<script>", "exec", dont_inherit=True), namespace)
    return namespace


def received(what: Any, args: tuple[Any, ...]) -> Any:
    pickled = plain_call(what, args, {}, False)
    return None if pickled is None else pickle.loads(pickled)


def test_a_function_is_what_it_was_when_it_was_pickled() -> None:
    names = script("LIMIT = 3\ndef f(x): return min(x, LIMIT)")
    once = pickled_once(names["f"])
    names["LIMIT"] = 300
    function, args, _, _ = received(once, (7,))
    assert function(*args) == 3
    assert pickle.loads(pickle.dumps(once))(1) == 1


def test_functions_with_big_arrays_or_without_a_pickle_are_pickled_by_each_call() -> None:
    array, generator = np.ones(1 << 20), (n for n in ())
    for function in (lambda: array, lambda: generator):
        assert pickled_once(function) is function
    with hr.connect(workers=1) as executor:
        ref = executor.put(1)
        function = lambda: ref  # noqa: E731
        assert pickled_once(function) is function


def test_only_small_and_plain_calls_take_the_quick_way() -> None:
    plain = (1, "a", b"b", None, True, [1, (2,)], {"a": [1]})
    once = pickled_once(abs)
    assert isinstance(once, PickledOnce) and received(once, plain)[:2] == (abs, plain)
    for other in ({1}, range(3), [abs], "a" * 100_000, [0] * 1000, math, [[[[1]]]], {1: object}, 1j):
        assert plain_call(once, (other,), {}, False) is None
    assert plain_call(abs, plain, {}, False) is None
    assert plain_call("method", (1,), {"by": object()}, False) is None
    assert pickle.loads(plain_call("method", (1,), {"by": 2}, True) or b"") == (
        "method",
        (1,),
        {"by": 2},
        True,
    )


@pytest.mark.parametrize("chunksize", [1, 2])
def test_map_sends_the_function_as_it_was(chunksize: int) -> None:
    names = script("LIMIT = 3\ndef f(x): return min(x, LIMIT)")
    with hr.connect(workers=1) as executor:
        found = executor.map(names["f"], range(6), chunksize=chunksize)
        names["LIMIT"] = 300
        assert list(found) == [0, 1, 2, 3, 3, 3]
