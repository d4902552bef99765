"""Before a run: `headrace explain` shows what would run, `inspect` what is there, `estimate` what it would need."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from headrace.annex.cli import texts
from headrace.annex.cli.answer import DONE, Answer, UsageMistake
from headrace.annex.cli.flags import Flags
from headrace.annex.cli.prediction import Prediction
from headrace.annex.cli.scripts import script_at
from headrace.annex.cli.texts import argument, flag
from headrace.core.files.formats import FORMATS
from headrace.core.tables import Table, columns_table, rows_table
from headrace.core.terminal import say, size_of
from headrace.readers import by_name
from headrace.session import invocation

if TYPE_CHECKING:
    from headrace.dataset.dataset import Dataset
    from headrace.dataset.estimate import Estimate, Range


EXPLAIN_EXAMPLES = """\
  headrace explain fare.onnx trips/ --inputs km,hour --workers 4
  headrace explain job.py
"""

INSPECT_EXAMPLES = """\
  headrace inspect trips/
  headrace inspect 'logs/*.txt' --format text --rows 3
"""


def explain(what: Prediction, *, flags: Flags) -> Answer:
    """Show what a model over inputs, or a script, would run: columns, parts, workers, memory. Nothing runs."""
    from headrace.session.explain import explain as in_words

    with dataset_of(what, flags, "explain") as data:
        text = in_words(data._plan, data._options)
        columns = data._plan.source.schema().names
    return Answer(DONE, {"text": text, "columns": columns}, text)


def inspect(
    paths: Annotated[list[str], argument("PATH", "Files, folders or quoted patterns.")],
    *,
    format: Annotated[
        str | None,
        flag(
            "--format NAME",
            f"What the files are: {', '.join(FORMATS.ours)}. Default: by their names.",
            one_of=FORMATS.names,
        ),
    ] = None,
    read: Annotated[
        list[str] | None, flag("--read NAME=VALUE", "An option of the reader: --read 'delimiter=;'.")
    ] = None,
    rows: Annotated[int, flag("--rows N", "Show the first N rows, too.", least=0)] = 0,
) -> Answer:
    """Show what files hold: their schema, rows, size, and how they would be cut."""
    data, lines = _files(paths, format, read, rows)
    return Answer(DONE, data, "\n".join(lines).rstrip())


def _files(
    paths: list[str], format: str | None, read: list[str] | None, rows: int
) -> tuple[dict[str, Any], list[str]]:
    """Describe input files by what planning learns of them."""
    from headrace.core import human

    kind = format or by_name.format_of(paths)
    dataset = by_name.dataset_of(paths, kind, texts.options("--read", read))
    source = dataset._plan.source
    schema, splits = source.schema(), source.splits()
    files = source.files()
    size = sum(each[1] for each in files)
    counted = all(split.rows >= 0 for split in splits)
    number = sum(split.rows for split in splits) if counted else None
    shards = _shards(dataset)
    data: dict[str, Any] = {
        "format": kind,
        "files": len(files),
        "bytes": size,
        "rows": number,
        "splits": len(splits),
        "shards": shards,
        "schema": [
            {"name": field.name, "type": str(field.type), "nullable": field.nullable} for field in schema
        ],
    }
    known = (
        human.plural(number, "row") if number is not None else "rows not counted (only reading them shows it)"
    )
    lines = [
        f"{kind}: {human.plural(len(files), 'file')}, {human.size(size)}, {known}",
        f"read in {human.plural(len(splits), 'piece')}, processed in {human.plural(shards, 'part')}",
        "columns",
        *(
            f"  {line}"
            for line in columns_table({field.name: field.type for field in schema}).text().splitlines()
        ),
    ]
    if rows:
        data["sample"], schemas = dataset._first(rows)
        lines += ["rows", rows_table(data["sample"], schemas).text(size_of(sys.stdout)[0])]
    return data, lines


def _shards(dataset: Any) -> int:
    from headrace.session.execution_plan import ExecutionPlan

    return len(ExecutionPlan(dataset._plan, dataset._options).shards)


ESTIMATE_EXAMPLES = """\
  headrace estimate fare.onnx trips/ --inputs km,hour
  headrace estimate job.py --seconds 30 --price-per-hour 3.20
  headrace estimate fares:Fare trips/ --workers 8 --json
"""


def estimate(
    what: Prediction,
    *,
    seconds: Annotated[
        float, flag("--seconds N", "How long the sample runs, start-up left out.", least=0.1)
    ] = 10.0,
    price: Annotated[
        str | None, flag("--price-per-hour PRICE", "What this machine costs: 3.20, or '3.20 EUR'.")
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
    with dataset_of(what, flags, "estimate") as data:
        pass  # a script may not write; the sample is written when it is over
    say(f"headrace: running a sample for about {seconds:g} s …", sys.stderr)
    found = sampled(data, seconds)
    return Answer(DONE, _estimate_data(found, cost), _estimate_text(found, cost))


def _price(text: str | None) -> tuple[float, str] | None:
    if text is None:
        return None
    match = re.fullmatch(r"\s*([^\d\s.]*)\s*(\d+(?:\.\d+)?)\s*([^\d\s.]*)\s*", text)
    if match is None:
        raise UsageMistake(f"--price-per-hour {text}: it takes a number, such as 3.20, or '3.20 EUR'.")
    return float(match[2]), match[1] or match[3]


def _estimate_data(found: Estimate, price: tuple[float, str] | None) -> dict[str, Any]:
    data: dict[str, Any] = {
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
    from headrace.dataset.estimate import Range

    return Range(
        *(each / 3600 * per_hour for each in (found.seconds.low, found.seconds.likely, found.seconds.high))
    )


def _estimate_text(found: Estimate, price: tuple[float, str] | None) -> str:
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


# ----------------------------------------------------------------
# The dataset that a command is about, without running it: of a model and inputs, or of a script.


@contextmanager
def dataset_of(what: Prediction, flags: Flags, command: str) -> Iterator[Dataset]:
    """Yield the dataset; a script is run for its variable ``dataset`` alone, and may write nothing."""
    if not _is_script(what):
        yield what.dataset().with_options(**flags.options())
        return
    path = Path(what.model)
    reason = (
        f"`headrace {command}` runs {path} only to get its dataset, but the script also writes an output. Set "
        "`dataset = …` in it and leave the writing to `headrace run`, or move the writing into main()."
    )
    present = invocation.current()
    assert present is not None  # the program carries out one command line
    with present.without_writing(reason):
        flags.into_environment()
        yield _described(path, command)


def _described(path: Path, command: str) -> Dataset:
    from headrace.dataset.dataset import Dataset

    data = script_at(path).carry_out((), guard=False).get("dataset")
    if not isinstance(data, Dataset):
        what = "no variable" if data is None else "something else in its variable"
        raise UsageMistake(
            f"{path} has {what} `dataset`. `headrace {command}` takes a script with `dataset = hr.read_…(…)`, or a "
            "model and inputs."
        )
    return data


def _is_script(what: Prediction) -> bool:
    return what.model.endswith(".py") and what.bare()
