"""Plain data: numbers, texts and bytes, few of them, maybe in tuples, lists and dicts. The standard pickle does."""

from __future__ import annotations

from typing import Any

ATOMS = frozenset({int, float, bool, str, bytes, type(None)})
_MOST = 64  # items of one container
_LONGEST = 1 << 13  # bytes or characters of one item
_SIMPLE = frozenset({int, float, bool, type(None)})


def is_plain(value: Any, depth: int = 3) -> bool:
    """Say whether a value is small and plain: it has no buffers, references, classes or functions in it.

    >>> is_plain([1, "a", {"b": None}]), is_plain(range(3)), is_plain([[[[1]]]])
    (True, False, False)
    """
    kind = type(value)
    if kind in _SIMPLE:
        return True
    if kind is str or kind is bytes:
        return len(value) <= _LONGEST
    if kind is dict:
        return is_plain(list(value), depth) and is_plain(list(value.values()), depth)
    if (kind is not tuple and kind is not list) or not depth or len(value) > _MOST:
        return False
    for each in value:  # noqa: SIM110 - a generator takes twice as long, and this is done for each call
        if not is_plain(each, depth - 1):
            return False
    return True
