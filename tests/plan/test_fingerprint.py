"""What the fingerprint sees of every kind of value and program, in this process and in others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from headrace.plan.fingerprint import fingerprint
from headrace.plan.functions import Function
from headrace.plan.identity import unrecognised

from . import pairs


@pytest.mark.parametrize("name", pairs.VALUES)
def test_values_that_differ_have_different_digests_and_equal_ones_the_same(name: str) -> None:
    made = [fingerprint(make()) for make in pairs.VALUES[name]]
    assert not [each for each in made if each.startswith("unknown")]
    assert [fingerprint(make()) for make in pairs.VALUES[name]] == made
    assert len(set(made)) == len(made), [made.index(each) for each in made]


@pytest.mark.parametrize("name", pairs.PROGRAMS)
def test_programs_that_differ_have_different_digests_and_equal_ones_the_same(name: str) -> None:
    made = [pairs.of_program(text) for text in pairs.PROGRAMS[name]]
    assert not [each for each in made if each.startswith("unknown")]
    assert [pairs.of_program(text) for text in pairs.PROGRAMS[name]] == made
    assert len(set(made)) == len(made), [made.index(each) for each in made]


@pytest.mark.parametrize("name", pairs.ALIKE)
def test_programs_that_do_the_same_have_one_digest(name: str) -> None:
    one, other = pairs.ALIKE[name]
    assert pairs.of_program(one) == pairs.of_program(other)
    assert not pairs.of_program(one).startswith("unknown")


def test_another_process_with_another_hash_seed_has_the_same_digests() -> None:
    code = "import json; from tests.plan import pairs; print(json.dumps(pairs.digests()))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": "4321"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    there, here = json.loads(done.stdout.splitlines()[-1]), pairs.digests()
    differ = {name: [a == b for a, b in zip(here[name], there[name], strict=True)] for name in here}
    assert not {name: each for name, each in differ.items() if not all(each)}


@pytest.mark.parametrize("name", pairs.UNKNOWN)
def test_what_nobody_can_compare_is_never_equal_and_has_a_name(name: str) -> None:
    make, kind = pairs.UNKNOWN[name]
    value = make()
    try:
        one, other = fingerprint(value), fingerprint(value)
        assert one != other
        assert kind in one
    finally:
        getattr(value, "close", lambda: None)()


def test_the_way_to_what_nobody_can_compare() -> None:
    space: dict[str, Any] = {"__name__": "__main__", "WALK": (each for each in "abc")}
    exec("class C: pass\nHELD = C()\nHELD.walk = WALK\ndef f(x): return HELD.walk", space)
    assert unrecognised({"0: the code of map(f)": fingerprint(Function(space["f"]))}) == [
        "the code of map(f) → the variable 'HELD' → its attribute 'walk' → a value of type generator"
    ]


def test_eight_times_as_much_captured_state_costs_no_thirty_times_as_much() -> None:
    def seconds(size: int) -> float:
        value = ([[i] for i in range(size)], {(str(i), None) for i in range(size)})
        before = time.process_time()
        fingerprint(value)
        return time.process_time() - before

    assert seconds(32_000) < 30 * max(seconds(4_000), 0.01)
