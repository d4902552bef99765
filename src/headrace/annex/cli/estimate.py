"""`headrace estimate`: what a job would need, from a sample of it."""

from __future__ import annotations

import math
import re
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.annex.cli import jobs
from headrace.annex.cli.answer import DONE, Answer, UsageMistake
from headrace.annex.cli.flags import Flags
from headrace.annex.cli.prediction import Prediction
from headrace.core.tables import Table
from headrace.core.terminal import say

if TYPE_CHECKING:
    from headrace.dataset.estimate import Estimate
    from headrace.dataset.estimate_tokens import Range

EXAMPLES = """\
  headrace estimate fare.onnx trips/ --inputs km,hour
  headrace estimate job.py --seconds 30 --price-per-hour 3.20
  headrace estimate fares:Fare trips/ --workers 8 --json
"""


def estimate(
    what: Prediction,
    *,
    seconds: Annotated[
        float,
        typer.Option("--seconds", metavar="N", min=0.1, help="How long the sample runs, start-up left out."),
    ] = 10.0,
    price: Annotated[
        str | None,
        typer.Option(
            "--price-per-hour", metavar="PRICE", help="What this machine costs: 3.20, or '3.20 EUR'."
        ),
    ] = None,
    flags: Flags,
) -> Answer:
    """Run a small sample of a job for some seconds, and estimate all of it: time, memory, output, cost.

    The sample is taken from all over the input, and written to a folder that is gone afterwards. Numbers come with
    ranges: the slowest and the fastest of the last rounds in which every worker did a shard. They hold for this
    machine, and as far as the sample is like the rest. Language models are asked for the sample, and say how many
    tokens all would use, and what that would cost by the endpoint's prices.
    """
    from headrace.dataset.estimate import estimate as sampled

    cost = _price(price)
    with jobs.dataset_of(what, flags, "estimate") as data:
        pass  # a script may not write; the sample is written when it is over
    say(f"headrace: running a sample for about {seconds:g} s …", sys.stderr)
    found = sampled(data, seconds)
    return Answer(DONE, _data(found, cost), _text(found, cost))


def _price(text: str | None) -> tuple[float, str] | None:
    if text is None:
        return None
    match = re.fullmatch(r"\s*([^\d\s.]*)\s*(\d+(?:\.\d+)?)\s*([^\d\s.]*)\s*", text)
    if match is None:
        raise UsageMistake(f"--price-per-hour {text}: it takes a number, such as 3.20, or '3.20 EUR'.")
    return float(match[2]), match[1] or match[3]


def _data(found: Estimate, price: tuple[float, str] | None) -> dict[str, Any]:
    data: dict[str, Any] = {
        "command": "estimate",
        "status": "done",
        "exit_code": DONE,
        "rows": _numbers(found.rows, 0),
        "rows_per_second": _numbers(found.rate, 1),
        "startup_seconds": round(found.startup, 3),
        "seconds": _numbers(found.seconds, 3),
        "memory_bytes": _numbers(found.memory, 0),
        "output_bytes": _numbers(found.size, 0),
        "cost": None,
        "tokens_in": _numbers(found.read, 0) if found.read else None,
        "tokens_out": _numbers(found.written, 0) if found.written else None,
        "tokens_cost": _numbers(found.spent, 6) if found.spent else None,
        "sample": {
            "rows": found.sampled,
            "shards": found.shards,
            "seconds": round(found.took, 3),
            "rejected": found.rejected,
            "whole_input": found.whole,
        },
        "notes": list(found.notes),
    }
    if price is not None:
        data["cost"] = {**_numbers(_cost(found, price[0]), 6), "currency": price[1] or None}
    return data


def _numbers(value: Range, digits: int) -> dict[str, float | int | None]:
    def number(each: float) -> float | int | None:
        if not math.isfinite(each):
            return None
        return round(each, digits) if digits else round(each)

    return {"low": number(value.low), "likely": number(value.likely), "high": number(value.high)}


def _cost(found: Estimate, per_hour: float) -> Range:
    from headrace.dataset.estimate_tokens import Range

    return Range(
        *(each / 3600 * per_hour for each in (found.seconds.low, found.seconds.likely, found.seconds.high))
    )


def _text(found: Estimate, price: tuple[float, str] | None) -> str:
    from headrace.core import human

    def shown(value: Range, text_of: Any, *, unit: str = "") -> str:
        low, likely, high = (
            text_of(each) if math.isfinite(each) else "?" for each in (value.low, value.likely, value.high)
        )
        return f"{likely}{unit}" + (f"   ({low} to {high})" if low != high else "")

    whole = ", which is all there is" if found.whole else ""
    rows = [
        (
            "sample",
            f"{human.plural(found.sampled, 'row')} in {human.plural(found.shards, 'part')}, "
            f"{human.duration(found.took)}{whole}",
        ),
        ("rows", shown(found.rows, human.count)),
        ("speed", shown(found.rate, human.count, unit=" rows/s")),
        ("start-up", human.duration(found.startup)),
        ("time", shown(found.seconds, human.duration)),
        ("memory", shown(found.memory, human.size)),
        ("output", shown(found.size, human.size)),
    ]
    if found.read is not None and found.written is not None:
        rows.append(
            ("tokens", f"{shown(found.read, human.count)} in, {shown(found.written, human.count)} out")
        )
    if found.spent is not None:
        rows.append(("price", f"{shown(found.spent, _money)} by prices="))
    if price is not None:
        unit = f" {price[1]}" if price[1] else ""
        cost = shown(_cost(found, price[0]), _money, unit=unit)
        rows.append(("cost", f"{cost} at {price[0]:g}{unit} an hour"))
    return Table((), rows + [("note", note) for note in found.notes]).text()


def _money(amount: float) -> str:
    return f"{amount:,.2f}" if amount >= 1 else f"{amount:.2g}"
