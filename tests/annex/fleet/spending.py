"""What machines of a fleet run that ask a language model, with one budget and one rate for all of them."""

from __future__ import annotations

import os
from typing import Any

import headrace as hr
from headrace.annex.fleet import board, machine, shares, writing
from headrace.annex.llm import client, turns
from headrace.output.places import lease

ROWS = 60
TURN, LATE, GRACE = 0.2, 0.1, 0.1
"""Of turns to send; shorter than usual, so that a second shows whether they are taken."""


def main(place: str, url: str, told: dict[str, Any]) -> None:
    """Be one machine. A token costs one cent in, and three out.

    ``cap`` None: no budget; ``rate``: requests a minute, None: any number.
    """
    client.FIRST_WAIT = 0.02
    machine.LONGEST_LOOK = writing.LONGEST_LOOK = 0.2
    board.GRACE = 0.5
    turns.LONGEST_TURN, turns.LATE_SECONDS, shares.GRACE = TURN, LATE, GRACE
    if told["apart"]:
        lease._machine = lambda: str(os.getpid())
        lease.SILENCE, lease.BEAT = 1.0, 0.1
    model = hr.llm.Endpoint(
        url, "m", prices={"input": 1e4, "output": 3e4}, timeout=told["timeout"], max_in_flight=told["in_flight"],
        max_retries=told["retries"], hedge=told["hedge"], requests_per_minute=told.get("rate"),
    )  # fmt: skip
    if told["cap"] is not None:
        model = model.with_options(budget=hr.llm.Budget(run=told["cap"]))
    model = model.with_options(sampling={"max_tokens": 20})
    rows = hr.from_items([{"i": f"{i} b c"} for i in range(ROWS)]).prompt("{i}", model)
    options = {"fleet": True, "engine": told["engine"], "workers": 2, "on_error": "reject", "progress": False}
    rows.with_options(**options, shard_rows=2, durability="process", report=False).write_parquet(place)
