"""`headrace runs`: all outputs below a place, or all runs of one."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from headrace.annex.cli.answer import DONE, Answer, UsageMistake
from headrace.annex.cli.texts import output_of

EXAMPLES = """\
  headrace runs predictions/                       how is each output there?
  headrace runs predictions/fares/                 one output: all its runs
  headrace runs s3://bucket/ --report runs.html    as a page, with charts
  headrace runs predictions/ --json | jq '.runs[].status'
"""


def runs(
    place: Annotated[
        Path, typer.Argument(metavar="PLACE", help="A folder or an address with outputs, or an output.")
    ],
    *,
    report: Annotated[
        Path | None,
        typer.Option(
            "--report", metavar="FILE", help="Write a page, with metrics over time.", show_default=False
        ),
    ] = None,
) -> Answer:
    """Show how all outputs below a place are: rows, rejected rows, metrics, cost, requirements, age.

    Of one output, all its runs are shown. Only small files are read: `headrace status` says more of one run, and
    `headrace verify` reads the parts. The exit code is 0, however the runs are.
    """
    from headrace.annex.report.catalogue import runs as found_in

    found = found_in(output_of(place))
    data = {
        "command": "runs",
        "status": "done",
        "exit_code": DONE,
        "place": found.place,
        "history": found.history,
    }
    text = found.text(shutil.get_terminal_size().columns)
    if report is not None:
        path = report.expanduser().absolute()
        try:
            found.write_report(path)
        except OSError as error:
            raise UsageMistake(
                f"The page cannot be written to {path}: {error.strerror}.", "headrace runs"
            ) from error
        data["report"], text = str(path), f"{text}\n\nreport: {path}"
    return Answer(DONE, {**data, "runs": found.data()}, text)
