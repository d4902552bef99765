"""Pickles of functions are used again only where pickling them anew would give the same."""

from __future__ import annotations

import gc
import math
import pickle
import sys
import weakref
from typing import Any

import cloudpickle
import pytest

from headrace.tasks.function_pickles import FunctionPickles


def imported(x: int) -> int:
    return x


def script(source: str, **names: Any) -> dict[str, Any]:
    """Run a program's text as if it were the main module: its functions are pickled by value."""
    namespace = {"__name__": "__main__", **names}
    exec(compile(source, "<script>", "exec", dont_inherit=True), namespace)
    return namespace


def kept(pickles: FunctionPickles, function: Any, *args: Any) -> Any:
    """Return the call as a worker gets it from a pickle that was kept; None if there is none."""
    pickles.of_call(function, args, {}, False)  # one that is called once is not kept
    pickled = pickles.of_call(function, args, {}, False)
    return None if pickled is None else pickle.loads(pickled)


def answer(call: Any) -> Any:
    function, args, kwargs, _ = call
    return function(*args, **kwargs)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("def f(x): return x + 1", 8),
        ("def f(x, by=2): return x * by", 14),
        ("def f(x: int) -> 'int': return -x", -7),
        ("LIMIT = 3\ndef f(x): return min(x, LIMIT)", 3),
        ("import math\ndef f(x): return math.floor(x + 0.5)", 7),
        ("from math import floor\ndef f(x): return floor(x)", 7),
        ("def g(x): return x * 10\ndef f(x): return g(x)", 70),
        ("def f(x): return 1 if x < 2 else f(x - 1) + f(x - 2)", 21),
        ("f = lambda x: [y for y in range(x)]", list(range(7))),
    ],
)
def test_what_cannot_change_unseen_is_kept_and_answers_the_same(source: str, expected: Any) -> None:
    pickles, function = FunctionPickles(), script(source)["f"]
    assert answer(kept(pickles, function, 7)) == expected == function(7)
    assert pickles._again(function) is pickles._again(function), "it was pickled once"


@pytest.mark.parametrize(
    "source",
    [
        "items = []\ndef f(x): return len(items)",
        "def f(x, seen=[]): return seen",
        "def f(x):\n    global count\n    count = x",
        "def f(x): return f.n\nf.n = 1",
        "class A: pass\ndef f(x): return A()",
        "class A: pass\ndef f(x: A): return x",
        "def outer():\n    y = []\n    return lambda x: y\nf = outer()",
        "def outer(y):\n    return lambda x: y\ng = outer(1)\ndef f(x): return g(x)",
        "def f(x):\n    def g():\n        global n\n        n = 1\n    g()",
        "def f(*, x=[]): return x",
        "f = [].append",
        "f = type('A', (), {})()",
    ],
)
def test_what_can_change_unseen_is_pickled_each_time(source: str) -> None:
    assert kept(FunctionPickles(), script(source)["f"], 7) is None


def test_what_changes_is_seen() -> None:
    source = "import math\nLIMIT = 3\ndef g(x): return x\ndef f(x, by=2): return g(x) * by + LIMIT + late"
    names = script(source)
    function, pickles = names["f"], FunctionPickles()

    def same() -> bool:
        call = kept(pickles, function, 7)
        return answer(call) == function(7)  # type: ignore[no-any-return]

    names["late"] = 1
    assert same()
    names["LIMIT"] = 300
    assert same()
    names["late"] = 5
    assert same()
    function.__defaults__ = (11,)
    assert same()
    names["g"].__code__ = (lambda x: x + 1000).__code__
    assert same()
    names["g"] = math.sqrt
    assert same()
    function.__code__ = (lambda x, by=2: x).__code__
    assert same()
    names["late"] = []  # the new code does not name it
    assert same()
    function.tag = 1
    assert kept(pickles, function, 7) is None


def test_a_name_that_changes_all_the_time_is_not_kept() -> None:
    names, pickles = script("n = 0\ndef f(x): return n"), FunctionPickles()
    function = names["f"]
    found = []
    for names["n"] in range(1000, 1020):
        call = kept(pickles, function, 7)
        found.append(None if call is None else answer(call))
    assert found == [*range(1000, 1000 + len(found) - found.count(None)), *[None] * found.count(None)]
    assert found[-1] is None


def test_imported_functions_travel_by_name_unless_their_module_is_to_travel() -> None:
    pickles, module = FunctionPickles(), sys.modules[__name__]
    assert kept(pickles, imported, 7)[0] is imported
    assert kept(pickles, abs, 7)[0] is abs
    cloudpickle.register_pickle_by_value(module)
    try:
        assert kept(pickles, imported, 7) is None
    finally:
        cloudpickle.unregister_pickle_by_value(module)
    assert kept(pickles, imported, 7)[0] is imported


def test_only_plain_arguments_travel_so() -> None:
    pickles = FunctionPickles()
    plain = (1, "a", b"b", None, True, [1, (2,)], {"a": [1]})
    assert kept(pickles, abs, *plain)[1] == plain
    for other in ({1}, range(3), [abs], "a" * 100_000, [0] * 1000, math, [[[[1]]]], {1: object}, 1j):
        assert kept(pickles, abs, other) is None
    assert pickles.of_call("method", (1,), {"by": object()}, False) is None
    assert pickle.loads(pickles.of_call("method", (1,), {"by": 2}, True) or b"") == (
        "method",
        (1,),
        {"by": 2},
        True,
    )


def test_nothing_is_kept_alive() -> None:
    pickles = FunctionPickles()
    names = script("def g(x): return x\ndef f(x): return g(x) and f")
    gone = [weakref.ref(names["f"]), weakref.ref(names["g"])]
    assert kept(pickles, names["f"], 7) is not None
    names.clear()
    gc.collect()
    assert [each() for each in gone] == [None, None]
    assert not len(pickles._known)
