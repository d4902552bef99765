"""`headrace status`: how a run is, once or as it goes on."""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.annex.cli import texts
from headrace.annex.cli.answer import DONE, FAILED, UNPUBLISHED, Answer, wants_json
from headrace.core.human import duration, plural
from headrace.core.tables import Table
from headrace.core.terminal import one_line, say
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from rich.console import Group

    from headrace.annex.fleet.board import FleetView
    from headrace.annex.report.follow import Follower, RunStatus

EXAMPLES = """\
  headrace status fares/
  headrace status fares/ --watch       Ctrl-C ends the display, not the run
  headrace status fares/ --json | jq .rows_per_second
"""

_LINES = 10.0  # seconds between two looks where there is no terminal


def status(
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="An output folder or address.", show_default=False)
    ],
    *,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Go on until the run has ended.")] = False,
) -> Answer:
    """Say how the run in an output is: rows, speed, time left, workers, memory, failed rows.

    May be asked at any time, from any terminal. Exit code 0: complete, or under way; 1: it ended and is not complete,
    so the same command, run again, goes on from there; or files, or the table with its rows, are gone since; 4: it is
    complete, and not published, as a requirement was not met. Where machines work together (--fleet), it lists them.
    """
    from headrace.annex.fleet.board import fleet_of
    from headrace.annex.report.follow import Follower

    fleet = fleet_of(texts.output_of(out))
    if fleet is not None:
        return _of_fleet(texts.output_of(out), fleet)
    follower = Follower(texts.output_of(out))
    found = follower.poll()
    if watch and not found.ended:
        found = _watched(follower, found, shown=not wants_json())
    return answer_of_status("status", found)


def answer_of_status(command: str, found: RunStatus) -> Answer:
    """Return how a run is, as the answer of a command."""
    code = DONE if found.facts.status in ("complete", "under way") and not found.gone else FAILED
    code = UNPUBLISHED if found.facts.status == "unpublished" else code
    data = found.data()
    first = {"command": command, "status": data["status"], "exit_code": code}
    return Answer(code, {**first, **data}, _text(found))


def _of_fleet(out: str, fleet: FleetView) -> Answer:
    """Say what each of many machines has done of an output, which is complete when none is left."""
    from headrace.annex.report.follow import Follower

    machines = []
    for name, place in fleet.machines.items():
        with contextlib.suppress(HeadraceError):  # it has just begun, or all is complete meanwhile
            found = Follower(place).poll()
            at_work = found.facts.status == "under way"
            state = "ended" if name in fleet.ended else "at work" if at_work else "gone"
            speed = round(found.state.speed(time.time())) if at_work else 0
            if at_work or found.state.rows:
                machines.append((name, state, found.state.rows, speed))
    rows, speed = sum(each[2] for each in machines), sum(each[3] for each in machines)
    workers = sum(each[1] == "at work" for each in machines)
    status = f"under way, by {plural(workers, 'machine')}" if workers else "being completed"
    if not workers and not fleet.completes:
        status = "not complete, and no machine works; the same command goes on"
    of = "" if fleet.rows < 0 else f" of {fleet.rows:,}"
    lines = [
        ("status", status),
        ("slices", f"{fleet.taken:,} of {fleet.slices:,} taken"),
        ("rows", f"{rows:,}{of} read" + (f", {speed:,} a second" if speed else "")),
    ]
    left = (fleet.rows - rows) / speed if speed and fleet.rows > rows else 0.0
    if left:
        lines.append(("left", f"about {duration(left)}"))
    cells = [(name, state, f"{rows:,}", f"{speed:,}") for name, state, rows, speed in machines]
    table = Table(("machine", "state", "rows", "rows/s"), cells, numbers={2, 3}).text()
    shown = [*Table((), lines).text().splitlines(), *([""] * bool(cells)), *table.splitlines() * bool(cells)]
    code = DONE if workers or fleet.completes else FAILED
    names = ("machine", "state", "rows", "rows_per_second")
    data = {
        "command": "status",
        "status": "under way" if code == DONE else "not complete",
        "exit_code": code,
        "slices": {"all": fleet.slices, "taken": fleet.taken},
        "rows": rows,
        "rows_per_second": speed,
        "seconds_left": round(left) if left else None,
        "machines": [dict(zip(names, each, strict=True)) for each in machines],
    }
    return Answer(code, data, "\n".join([out, *(f"  {line}".rstrip() for line in shown)]))


def _text(found: RunStatus) -> str:
    driver = found.state.last
    typed = driver.described.resume if driver is not None and driver.described is not None else ""
    words = texts.in_flags if typed.startswith("headrace ") else str  # as it was told where it ran
    lines = [(name, words(told) if name == "status" else told) for name, told in found.lines()]
    return "\n".join([found.facts.output, *(f"  {line}" for line in Table((), lines).text().splitlines())])


def _watched(follower: Follower, found: RunStatus, *, shown: bool) -> RunStatus:
    """Follow a run until it has ended, or until Ctrl-C."""
    try:
        if shown and sys.stdout.isatty():
            return _live(follower, found)
        due = 0.0
        while not found.ended:
            if shown and time.monotonic() >= due:
                say(f"{_text(found)}\n", sys.stdout)
                due = time.monotonic() + _LINES
            time.sleep(follower.pause)
            found = follower.poll()
    except KeyboardInterrupt:
        found = follower.poll()
    return found


def _live(follower: Follower, found: RunStatus) -> RunStatus:
    from rich.live import Live

    with Live(_drawn(found), refresh_per_second=4, transient=True) as live:
        while not found.ended:
            live.update(_drawn(found))
            time.sleep(follower.pause)
            found = follower.poll()
    return found


def _drawn(found: RunStatus) -> Group:
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    for name, words in found.lines():
        table.add_row(Text(name, style="dim"), Text(one_line(words)))
    bar = Table.grid()
    bar.add_row(ProgressBar(total=1.0, completed=found.state.share or 0.0, width=60))
    return Group(Text(one_line(found.facts.output), style="bold"), bar, table)
