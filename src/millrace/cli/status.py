"""`millrace status`: how a run is, once or as it goes on."""

from __future__ import annotations

import json as json_
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from millrace.following import Follower, State

if TYPE_CHECKING:
    from rich.console import Group

REFRESH = 0.5  # seconds
LINES = 10.0  # seconds between two looks where there is no terminal


def status(out: Path, *, json: bool = False, watch: bool = False) -> int:
    """Say how the run in ``out`` is; with ``watch``, until it has ended.

    Return 1 if nobody is at work and it is not complete, else 0. Raises ``NothingMatched`` if there is no run in
    the folder.
    """
    follower = Follower(out.expanduser().absolute())
    state = follower.look()
    if json:
        print(json_.dumps({"command": "status", **state.data()}))
        return code_of(state)
    if watch and not state.ended:
        state = _watched(follower, state)
    print(text_of(state))
    return code_of(state)


def code_of(state: State) -> int:
    """Return the exit code for a state."""
    return 0 if state.facts.status in ("complete", "under way") else 1


def text_of(state: State) -> str:
    """Return a state for people, in a few lines."""
    lines = state.lines()
    width = max(len(name) for name, _ in lines)
    return "\n".join([state.facts.output, *(f"  {name:<{width}}  {words}" for name, words in lines)])


def _watched(follower: Follower, state: State) -> State:
    """Show a run until it has ended; Ctrl-C ends the show, not the run."""
    try:
        if not sys.stdout.isatty():
            while not state.ended:
                print(f"{text_of(state)}\n", flush=True)
                state = _later(follower, LINES)
            return state
        from rich.live import Live

        with Live(_drawn(state), refresh_per_second=4, transient=True) as live:
            while not state.ended:
                live.update(_drawn(state))
                time.sleep(REFRESH)
                state = follower.look()
    except KeyboardInterrupt:
        pass
    return state


def _later(follower: Follower, seconds: float) -> State:
    until = time.monotonic() + seconds
    while True:
        time.sleep(REFRESH)
        state = follower.look()
        if state.ended or time.monotonic() >= until:
            return state


def _drawn(state: State) -> Group:
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    for name, words in state.lines():
        table.add_row(Text(name, style="dim"), Text(words))
    whole = state.rows_in_all
    done, shards = (state.rows, whole) if whole is not None else state.facts.shards
    bar = Table.grid()
    bar.add_row(ProgressBar(total=max(shards, 1), completed=min(done, shards), width=60))
    return Group(Text(state.facts.output, style="bold"), bar, table)
