"""Asks for further shards while there is little left to do: a run of a fleet takes them as it gets to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from headrace.core.work import MoreShards, RunInterrupted
from headrace.driver.policy import Action, AddShards, Policy, RunView


class Growth(Policy):
    """Takes in the shards that messages bring, and has ``want`` called when fewer wait than there are workers.

    ``want`` returns at once; a ``MoreShards`` answers it, sooner or later. After one without shards, nobody is asked.
    """

    def __init__(self, want: Callable[[], None]) -> None:
        self._want = want
        self._came: list[MoreShards] = []
        self._asked = self._over = False

    def on_message(self, message: Any, now: float) -> None:
        """Note what came, and that the run is to end."""
        if isinstance(message, MoreShards):
            self._came.append(message)
        elif isinstance(message, RunInterrupted):
            self._over = True

    def before_schedule(self, view: RunView) -> Iterable[Action]:
        """Take in what came."""
        came, self._came = self._came, []
        for each in came:
            self._asked, self._over = False, self._over or not each.shards
            yield AddShards(each.shards)

    def after_schedule(self, view: RunView) -> Iterable[Action]:
        """Ask for more."""
        last = view.stages - 1
        if not self._asked and not self._over and view.tasks_waiting(last) < max(1, len(view.loads(last))):
            self._asked = True
            self._want()
        return ()
