"""`millrace status`: how a run is, once or as it goes on."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from millrace.cli import invocation
from millrace.cli.answer import Answer
from millrace.cli.exits import DONE, FAILED
from millrace.core.paths import absolute
from millrace.screen import one_line, say

if TYPE_CHECKING:
    from rich.console import Group

    from millrace.outputs.following import Follower, State

EXAMPLES = """\
  millrace status fares/
  millrace status fares/ --watch       Ctrl-C ends the show, not the run
  millrace status fares/ --json | jq .rows_per_second
"""

_REFRESH = 0.5  # seconds
_LINES = 10.0  # seconds between two looks where there is no terminal


def status(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="An output folder.", show_default=False)],
    *,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Go on until the run has ended.")] = False,
) -> Answer:
    """Say how the run in an output is: rows, speed, time left, shards, workers, memory, failed rows.

    May be asked at any time, from any terminal. Exit code 0: complete, or under way; 1: it ended and is not complete,
    so the same command, run again, goes on from there.
    """
    from millrace.outputs.following import Follower

    follower = Follower(Path(absolute(str(out), "The output path")))
    state = follower.look()
    if watch and not state.ended:
        state = _watched(follower, state, shown=not invocation.wants_json())
    code = DONE if state.facts.status in ("complete", "under way") else FAILED
    data = state.data()
    first = {"command": "status", "status": data["status"], "exit_code": code}
    return Answer(code, {**first, **data}, _text(state))


def _text(state: State) -> str:
    lines = state.lines()
    width = max(len(name) for name, _ in lines)
    return "\n".join([state.facts.output, *(f"  {name:<{width}}  {words}" for name, words in lines)])


def _watched(follower: Follower, state: State, *, shown: bool) -> State:
    """Follow a run until it has ended, or until Ctrl-C."""
    try:
        if shown and sys.stdout.isatty():
            return _live(follower, state)
        due = 0.0
        while not state.ended:
            if shown and time.monotonic() >= due:
                say(f"{_text(state)}\n", sys.stdout)
                due = time.monotonic() + _LINES
            time.sleep(_REFRESH)
            state = follower.look()
    except KeyboardInterrupt:
        state = follower.look()
    return state


def _live(follower: Follower, state: State) -> State:
    from rich.live import Live

    with Live(_drawn(state), refresh_per_second=4, transient=True) as live:
        while not state.ended:
            live.update(_drawn(state))
            time.sleep(_REFRESH)
            state = follower.look()
    return state


def _drawn(state: State) -> Group:
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    for name, words in state.lines():
        table.add_row(Text(name, style="dim"), Text(one_line(words)))
    whole = state.rows_in_all
    done, shards = (state.rows, whole) if whole is not None else state.facts.shards
    bar = Table.grid()
    bar.add_row(ProgressBar(total=max(shards, 1), completed=min(done, shards), width=60))
    return Group(Text(one_line(state.facts.output), style="bold"), bar, table)
