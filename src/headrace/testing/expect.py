"""What contracts say when a promise is broken: in words, and in ``python -O`` too, which drops ``assert``."""

from __future__ import annotations

from typing import Any

from headrace.core.failures import shortened

_CHARS = 500


def check(holds: object, words: str) -> None:
    """Raise ``AssertionError`` with these words unless something holds.

    >>> check(3 > 2, "3 is more than 2")
    """
    if not holds:
        raise AssertionError(words)


def same(found: Any, expected: Any, what: str) -> None:
    """Raise ``AssertionError`` unless ``what`` is as expected; Arrow data is compared with its types.

    >>> same(1 + 1, 3, "the sum")
    Traceback (most recent call last):
    AssertionError: the sum: expected 3, and it is 2
    """
    equals = getattr(expected, "equals", None)
    if not (equals(found) if equals is not None else found == expected):
        raise AssertionError(f"{what}: expected {_shown(expected)}, and it is {_shown(found)}")


def _shown(value: Any) -> str:
    return shortened(str(value) if hasattr(value, "equals") else repr(value), _CHARS)
