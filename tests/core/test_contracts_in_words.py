"""A contract that is broken says so in words, in ``python -O`` too."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import headrace.testing
from headrace.testing.steps import check, same

TESTING = Path(headrace.testing.__file__).parent
SUITES = [
    path
    for path in sorted(TESTING.glob("*.py"))
    if "Contract:" in path.read_text() or "Contract(" in path.read_text()
]

BROKEN = """
import msgspec
from headrace.sources.range import RangeSource
from headrace.testing.sources import SourceContract

class Lies(RangeSource):
    def splits(self):
        return [msgspec.structs.replace(split, rows=7) for split in super().splits()]

assert False, "-O drops this"
try:
    SourceContract().test_what_splits_say_of_themselves_holds(Lies(10))
except AssertionError as error:
    print(error)
"""


@pytest.mark.parametrize("path", SUITES, ids=lambda path: path.stem)
def test_no_suite_has_a_statement_that_is_dropped_and_says_nothing(path: Path) -> None:
    found = [node.lineno for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Assert)]
    assert not found


def test_a_source_that_lies_is_told_so_without_assert_statements() -> None:
    done = subprocess.run([sys.executable, "-O", "-c", BROKEN], capture_output=True, text=True, check=True)
    assert "says rows=7, and has 10; -1: not known" in done.stdout


def test_what_is_expected_and_what_came() -> None:
    same([1], [1], "the list")
    check(True, "")
    with pytest.raises(AssertionError, match=r"the list: expected \[1\], and it is \[2\]"):
        same([2], [1], "the list")
    with pytest.raises(AssertionError, match="more than none"):
        check(0, "more than none")
    with pytest.raises(AssertionError) as caught:
        same("a" * 9_999, "b" * 9_999, "a long text")
    assert len(str(caught.value)) < 1_200
