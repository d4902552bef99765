"""`headrace explain` and `headrace inspect`: what would run, and what is there. Nothing is written."""

from __future__ import annotations

import os
import sys
import warnings
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.annex.cli import jobs, texts
from headrace.annex.cli.answer import DONE, Answer
from headrace.annex.cli.flags import Flags
from headrace.annex.cli.prediction import Prediction
from headrace.core.files.formats import FORMATS
from headrace.core.files.paths import absolute
from headrace.core.tables import columns_table, rows_table
from headrace.core.terminal import size_of
from headrace.readers import by_name

if TYPE_CHECKING:
    from headrace.output.runs import SavedRun

EXPLAIN_EXAMPLES = """\
  headrace explain fare.onnx trips/ --inputs km,hour --workers 4
  headrace explain job.py
"""

INSPECT_EXAMPLES = """\
  headrace inspect trips/
  headrace inspect 'logs/*.txt' --format text --rows 3
  headrace inspect fares/          an output: its runs, too
"""


def explain(what: Prediction, *, flags: Flags) -> Answer:
    """Show what a model over inputs, or a script, would run: columns, parts, workers, memory. Nothing runs."""
    from headrace.session.explain import explain as in_words

    with jobs.dataset_of(what, flags, "explain") as data:
        text = in_words(data._plan, data._options)
        columns = data._plan.source.schema().names
    return Answer(
        DONE,
        {"command": "explain", "status": "done", "exit_code": DONE, "text": text, "columns": columns},
        text,
    )


def inspect(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="PATH", help="Files, folders or quoted patterns.", show_default=False),
    ],
    *,
    format: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="NAME",
            help=f"What the files are: {', '.join(FORMATS.ours)}. Default: by their names.",
            autocompletion=FORMATS.names,
        ),
    ] = None,
    read: Annotated[
        list[str] | None,
        typer.Option("--read", metavar="NAME=VALUE", help="An option of the reader: --read 'delimiter=;'."),
    ] = None,
    rows: Annotated[int, typer.Option("--rows", metavar="N", min=0, help="Show the first N rows, too.")] = 0,
) -> Answer:
    """Show what files hold: their schema, rows, size, and how they would be cut; of an output, its runs."""

    data: dict[str, Any] = {"command": "inspect", "status": "done", "exit_code": DONE}
    lines: list[str] = []
    roots = [Path(path) for path in paths if _is_output(path)]
    for root in roots:
        found, text = _output(root)
        data.setdefault("outputs", []).append(found)
        lines += [*text, ""]
    if any(_has_parts(root) for root in roots) or len(roots) < len(paths):
        with warnings.catch_warnings():
            if roots:  # the lines above say if one is not complete
                warnings.simplefilter("ignore")
            found, text = _files(paths, format, read, rows)
        data |= found
        lines += text
    return Answer(DONE, data, "\n".join(lines).rstrip())


def _is_output(path: str) -> bool:
    from headrace.output import runs as outputs

    return "://" not in path and outputs.is_output(Path(absolute(path, "The path")))


def _files(
    paths: list[str], format: str | None, read: list[str] | None, rows: int
) -> tuple[dict[str, Any], list[str]]:
    """Describe input files by what planning learns of them."""
    from headrace.core import human

    options = {name: texts.value_of(text) for name, text in texts.assignments("--read", read).items()}
    kind = format or by_name.format_of(paths)
    dataset = by_name.dataset_of(paths, kind, options)
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


def _has_parts(root: Path) -> bool:
    return any(not name.startswith(("_", ".")) for name in os.listdir(root))


def _output(root: Path) -> tuple[dict[str, Any], list[str]]:
    """Describe an output of ours: the current run, and one that will replace it."""
    from headrace.output import runs as outputs
    from headrace.output.places.place import place_at

    somebody = place_at(root).writer()
    runs, lines = (
        [],
        [f"{root}: an output of Headrace" + (f", being written by {somebody}" if somebody else "")],
    )
    for name, read in (("current", outputs.current_run), ("next", outputs.next_run)):
        run = read(root)
        if run is None:
            continue
        facts = _run(run, complete=(root / "_SUCCESS").exists() and name == "current")
        runs.append(facts)
        lines += _run_lines(facts)
    if not runs:
        lines.append("  no run has begun")
    return {"path": str(root), "running": somebody, "runs": runs}, lines


def _run(run: SavedRun, *, complete: bool) -> dict[str, Any]:
    from headrace.session import invocation

    ledger = run.state.ledger
    command = invocation.recorded(run.folder)
    return {
        "run": run.name,
        "state": "complete" if run.finished and complete else "unfinished",
        "overwrite": run.hidden,
        "created": datetime.fromtimestamp(run.plan.created).astimezone().isoformat(timespec="seconds"),
        "headrace": run.plan.headrace,
        "shards": len(run.shards),
        "shards_done": run.state.shards,
        "rows": {
            "read": ledger.read,
            "written": ledger.written,
            "rejected": ledger.rejected,
            "nulled": ledger.nulled,
        },
        "runs": len(run.state.runs),
        "files": run.state.files,
        "bytes": run.state.bytes,
        "command": command["argv"] if command is not None else None,
        "cwd": command["cwd"] if command is not None else None,
    }


def _run_lines(facts: dict[str, Any]) -> list[str]:
    from headrace.core import human

    rows = facts["rows"]
    aside = f", {human.count(rows['rejected'])} rejected" if rows["rejected"] else ""
    kind = "overwrite" if facts["overwrite"] else "run"
    lines = [
        f"  {kind} {facts['run']}: {facts['state']}, {facts['shards_done']:,} of {facts['shards']:,} parts, "
        f"{human.plural(rows['read'], 'row')} read, {human.count(rows['written'])} written{aside}, "
        f"{human.plural(facts['files'], 'file')}, {human.size(facts['bytes'])}",
        f"    begun {facts['created']}, by Headrace {facts['headrace']}"
        + (f"; {facts['runs']} runs, the later ones of new input files" if facts["runs"] > 1 else ""),
    ]
    if facts["command"] is not None:
        lines.append(f"    headrace {texts.in_shell(facts['command'])}")
        lines.append(f"    in {texts.in_shell([facts['cwd']])}")
    return lines
