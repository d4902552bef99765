"""How calls are pickled: plain ones quickly, remote functions once. A warning if big arguments are sent again."""

from __future__ import annotations

import pickle
import types
import weakref
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

from headrace.core.human import size
from headrace.core.warn import warn
from headrace.engines.plain import is_plain
from headrace.engines.references import collecting_references

BIG = 1 << 20  # bytes
_MOST_REMEMBERED = 256  # objects
_MOST = 32 << 10  # bytes of a call


class PickledOnce:
    """Stands for a function in the pickles of many calls: unpickled, it is the function as it was at first."""

    __slots__ = ("_pickled",)

    def __init__(self, pickled: bytes) -> None:
        self._pickled = pickled

    def __reduce__(self) -> Any:
        return pickle.loads, (self._pickled,)


def pickled_once(function: Any) -> Any:
    """Return what stands for a function in calls; the function itself where each call must pickle it.

    That is where it holds references or big arrays, or cannot be pickled, which the call itself reports.
    """
    from headrace.engines.out_of_band_pickle import pickle_apart

    try:
        with collecting_references() as references:
            pickled, buffers = pickle_apart(function)
    except Exception:
        return function
    return function if references or buffers else PickledOnce(pickled)


def plain_call(what: Any, args: Sequence[Any], kwargs: dict[str, Any], strict: bool) -> bytes | None:
    """Return the pickle of ``(what, args, kwargs, strict)`` if all of it is small and plain, else None.

    ``what``: a method's name, or a function that is pickled once.
    """
    args = tuple(args)
    if type(what) not in (str, PickledOnce) or not is_plain(args) or (kwargs and not is_plain(kwargs)):
        return None
    pickled = pickle.dumps((what, args, kwargs, strict), protocol=5)
    return pickled if len(pickled) <= _MOST else None


# ---------------------------------------------------------------- big arguments that are sent again and again


class Repeats:
    """Warns once when an object of ``BIG`` bytes or more is an argument by value for the second time.

    An object is the same if it is alive since; one that cannot be weakly referenced (a list, a dict, bytes), if its
    pickle is the same, too.
    """

    def __init__(self) -> None:
        self._seen: dict[int, weakref.ref[Any] | int] = {}
        self._warned = False

    def check(self, label: str, sent: int, values: Iterable[Any]) -> None:
        """Warn if a call of ``sent`` bytes has an argument again."""
        if self._warned or sent < BIG:
            return
        for value in values:
            value = value.__self__ if isinstance(value, types.MethodType) else value
            if self._was_sent(value) and (nbytes := _size(value)) >= BIG:
                self._warned = True
                warn(
                    f"{label} was sent the same {type(value).__name__} of {size(nbytes)} again: each time it is "
                    "serialised and copied. Put it once, ref = executor.put(…), and pass ref instead.",
                )
                return

    def _was_sent(self, value: Any) -> bool:
        if isinstance(value, (int, float, type(None))):
            return False
        known = self._seen.get(id(value))
        fingerprint = _fingerprint(value)
        while len(self._seen) >= _MOST_REMEMBERED:
            del self._seen[next(iter(self._seen))]
        self._seen[id(value)] = fingerprint
        return (
            known() is value if isinstance(known, weakref.ref) else known is not None and known == fingerprint
        )


def _fingerprint(value: Any) -> weakref.ref[Any] | int:
    try:
        return weakref.ref(value)
    except TypeError:
        return zlib.crc32(value) if isinstance(value, bytes) else _pickled(value)[1]


def _size(value: Any) -> int:
    known = getattr(value, "nbytes", None)
    return known if isinstance(known, int) else _pickled(value)[0]


def _pickled(value: Any) -> tuple[int, int]:
    """Return the size of an object's pickle, and a checksum."""
    from headrace.engines.out_of_band_pickle import pickle_apart

    with collecting_references():
        pickled, buffers = pickle_apart(value)
    total, check = len(pickled), zlib.crc32(pickled)
    for buffer in buffers:
        with buffer.raw() as view:
            total, check = total + view.nbytes, zlib.crc32(view, check)
    return total, check
