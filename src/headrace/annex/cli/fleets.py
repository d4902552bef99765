"""How the machines of a fleet are, until their rows are one output: in words, and as the page of `headrace watch`."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from headrace.annex.cli.answer import DONE, FAILED
from headrace.annex.fleet.board import FleetView, fleet_of
from headrace.annex.report.follow import Follower, RunStatus
from headrace.annex.report.live import Pages
from headrace.annex.report.template import made_page, plain, table, table_of
from headrace.core.human import duration, plural
from headrace.core.tables import Table
from headrace.errors import HeadraceError


class FleetTold(msgspec.Struct):
    """How the machines of a fleet are: what `headrace status` prints, as JSON and in lines, and its page."""

    code: int
    data: dict[str, Any]
    lines: list[tuple[str, str]]
    machines: Table


def fleet_told(fleet: FleetView) -> FleetTold:
    """Ask each machine how far it is."""

    def polled(place: str) -> RunStatus | None:
        with contextlib.suppress(HeadraceError):  # it has just begun, or all is complete meanwhile
            return Follower(place).poll()
        return None

    machines = []
    with ThreadPoolExecutor(
        max(1, len(fleet.machines))
    ) as threads:  # each may have to wait for a sign of life
        polls = threads.map(polled, fleet.machines.values())
    for name, found in zip(fleet.machines, polls, strict=True):
        if found is not None:
            at_work = found.facts.status == "under way"
            state = "ended" if name in fleet.ended else "at work" if at_work else "gone"
            speed = round(found.rows_per_second) if at_work else 0
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
    table = Table(("machine", "state", "rows", "rows/s"), cells, numbers={2, 3})
    code = DONE if workers or fleet.completes else FAILED
    names = ("machine", "state", "rows", "rows_per_second")
    data = {
        "status": "under way" if code == DONE else "not complete",
        "slices": {"all": fleet.slices, "taken": fleet.taken},
        "rows": rows,
        "rows_per_second": speed,
        "seconds_left": round(left) if left else None,
        "machines": [dict(zip(names, each, strict=True)) for each in machines],
    }
    return FleetTold(code, data, lines, table)


_AGE = 90.0  # seconds: as a run of that age, as each machine has to be asked


class OutputPages(Pages):
    """Makes the page of an output by its path, and of the machines of a fleet while they work on it."""

    def __init__(self, follower: Follower, output: str) -> None:
        super().__init__(follower)
        self._output = output

    def page(self, *, anew: bool = False) -> tuple[bytes, bool]:
        """Return the page as it is now, and whether the run has ended."""
        fleet = fleet_of(self._output)
        if fleet is None:
            return super().page(anew=anew)
        self._age = _AGE
        told = fleet_told(fleet)
        (_, status), *lines = told.lines
        ended = told.code != DONE
        page = {
            "title": f"{status} – {self._output}",
            "place": self._output,
            "sentence": f"{status.capitalize()}.",
            "sections": [("machines", plain(tables=[
                table("So far", ("What", "How much"), lines, words=(0, 1)), table_of("Each machine", told.machines),
            ]))],
            "figures": {},
            "live": {"state": "ended" if ended else "under way"},
        }  # fmt: skip
        return made_page(page), ended
