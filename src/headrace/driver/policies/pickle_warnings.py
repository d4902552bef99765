"""Python objects that are pickled on their way cost time: the user is told, once for each column."""

from __future__ import annotations

from typing import Any

from headrace.core.warn import warn_of_pickling
from headrace.core.work import ObjectsPickled
from headrace.driver.policy import Policy


class PickleWarnings(Policy):
    """Warns of each column of Python objects that is pickled between processes."""

    def __init__(self) -> None:
        self._columns: set[str] = set()

    def on_message(self, message: Any, now: float) -> None:
        """Warn of a column of which the user was not told before."""
        if isinstance(message, ObjectsPickled) and message.column not in self._columns:
            self._columns.add(message.column)
            warn_of_pickling(message.column, message.kinds)
