"""A warning of what works in this process, and could not travel to another."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from headrace.core.warn import warn
from headrace.plan.functions import Function
from headrace.plan.pickling import refusal
from headrace.plan.steps.base import Step

_known: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()  # what was tried, by its id


def warn_of_unpicklable(steps: Sequence[Step]) -> None:
    """Warn of the first function that a run with workers would refuse, with what in it cannot be pickled.

    Each function is tried once, and no more than its first MiB: whoever looks at some rows does not wait for it.
    """
    untried = [step for step in steps if not all(_tried(each.function) for each in step.functions())]
    if not untried:
        return
    from headrace.engines.out_of_band_pickle import try_pickling

    told = refusal(untried, try_pickling)
    if told:
        warn(f"This works here, in one process. It will not work in a run with worker processes: {told}")


def _tried(function: Function) -> bool:
    """Say whether a function was tried before, and remember it."""
    if function.args or function.kwargs or function.init_args or function.init_kwargs:
        return False
    call = function.call
    if _known.get(id(call)) is call:
        return True
    try:
        _known[id(call)] = call
    except TypeError:  # what has slots, or is built in, may have no weak references
        return False
    return False
