"""How a fleet is at this moment, for who asks: its machines, and how much of the work is taken and done."""

from __future__ import annotations

import os

import msgspec

from headrace.annex.fleet.board import PLAN, Board, FleetPlan
from headrace.core.stores.options import Options
from headrace.core.work import FLEET, HOME, NOTES
from headrace.output.places.place import looked_at
from headrace.output.runs import is_output


class FleetView(msgspec.Struct, frozen=True):
    """Machines that work on an output, or have: their outputs by their names.

    ``slices`` of the input there are, and ``taken`` by some machine. ``rows`` of the input; -1: unknown.
    ``completes``: one of them puts the parts in order just now.
    """

    machines: dict[str, str]
    ended: tuple[str, ...]
    slices: int
    taken: int
    rows: int
    completes: bool


def fleet_of(path: str | os.PathLike[str], options: Options | None = None) -> FleetView | None:
    """Return the machines that write an output; None where there are none, or not any more."""
    with looked_at(path, options) as place:
        if not is_output(place.root) or FLEET not in place.folders(HOME):
            return None
        notes = place.notes(f"{FLEET}/{NOTES}")
        data = notes.read(PLAN)
        if data is None:
            return None
        fleet = FleetPlan.decode(data, place.name)
        board = Board(fleet, notes.read)
        board.look(notes.names())
        machines = sorted(place.folders(f"{HOME}/{FLEET}") - {NOTES})
        rows = [shard.rows for shard in fleet.plan.shards]
        return FleetView(
            {name: str(place.at(f"{HOME}/{FLEET}/{name}")) for name in machines},
            tuple(board.ended),
            len(fleet.sizes),
            board.taken,
            -1 if min(rows, default=0) < 0 else sum(rows),
            board.complete and place.writer() is not None,
        )
