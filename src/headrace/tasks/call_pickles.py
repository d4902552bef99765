"""How calls are pickled: plain ones quickly, remote functions once."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

from headrace.engines.plain import is_plain
from headrace.engines.references import collecting_references

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
