"""Warnings that point at the user's line, however deep in here something was noticed."""

from __future__ import annotations

import sys
import warnings
from itertools import count

from headrace.core.terminal import visible


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the innermost frame that is not ours."""
    for level in count(1):
        try:
            name = str(sys._getframe(level).f_globals.get("__name__", ""))
        except ValueError:  # there is none
            break
        if name != "headrace" and not name.startswith("headrace."):
            break
    warnings.warn(visible(message), category, stacklevel=level + 1)


def warn_of_pickling(column: str, kinds: str) -> None:
    """Warn that a column of Python objects leaves its process; ``kinds`` names their types."""
    warn(
        f"Column {column!r} holds Python objects ({kinds}), which are pickled where they go from one process to "
        "another. It is faster to make arrays or plain values of them in the step that makes them."
    )
