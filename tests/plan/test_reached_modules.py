"""Which modules a function uses by name, as workers may import them before they get it."""

from __future__ import annotations

import collections
import functools
import json
import math
from fractions import Fraction
from typing import Any

import pytest

from headrace.plan.reached import modules_named

TABLE = collections.OrderedDict(a=1)


def uses_a_module(row: Any) -> Any:
    return json.dumps(row)


def uses_an_object(row: Any) -> Any:
    return TABLE[row]


class Model:
    def __init__(self, half: Fraction) -> None:
        self.half = half

    def __call__(self, row: Any) -> Any:
        return math.floor(row * self.half)


def closing(value: Fraction) -> Any:
    return lambda row: row * value


@pytest.mark.parametrize(
    ("call", "module"),
    [
        (uses_a_module, "json"),
        (uses_an_object, "collections"),
        (functools.partial(uses_a_module), "json"),
        (functools.partial(print, Fraction(1, 2)), "fractions"),
        (closing(Fraction(1, 2)), "fractions"),
        (Model, "math"),
        (Model(Fraction(1, 2)), "fractions"),
        (Model(Fraction(1, 2)).__call__, "math"),
        (Fraction(1, 2), "fractions"),
    ],
)
def test_modules_named(call: Any, module: str) -> None:
    assert module in modules_named(call)


def test_nothing_is_named() -> None:
    assert "json" not in modules_named(lambda row: row)
    assert modules_named(print) <= {"builtins"}
