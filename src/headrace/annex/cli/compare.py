"""`headrace compare`: two outputs, tables or files row by row."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace.annex.cli import texts
from headrace.annex.cli.answer import DONE, Answer

EXAMPLES = """\
  headrace compare yesterday/ today/                       the same input: row by row
  headrace compare fares.csv today/ --on id --sample 5     rows with the same id
  headrace compare yesterday/ today/ --report page.html    with charts, and the rows that changed most
  headrace compare yesterday/ today/ --label tipped        which is better, and is it chance?
"""


def compare(
    old: Annotated[str, typer.Argument(metavar="OLD", help="An output, a table, files.", show_default=False)],
    new: Annotated[str, typer.Argument(metavar="NEW", help="What to compare with it.", show_default=False)],
    *,
    on: Annotated[
        list[str] | None,
        typer.Option(
            "--on", metavar="COLUMN", help="What tells a row: --on id, --on day,shop. Default: its position."
        ),
    ] = None,
    columns: Annotated[
        list[str] | None,
        typer.Option("--columns", metavar="COLUMN", help="What to compare. Default: all that both have."),
    ] = None,
    label: Annotated[
        str | None, typer.Option("--label", metavar="COLUMN", help="The truth, by which both are judged.")
    ] = None,
    sample: Annotated[
        int,
        typer.Option(
            "--sample", metavar="N", min=0, help="Rows to keep of each column, for --report and --json."
        ),
    ] = 20,
    report: Annotated[
        Path | None, typer.Option("--report", metavar="FILE", help="Write a page with charts and rows there.")
    ] = None,
) -> Answer:
    """Compare two outputs, tables or files: which rows are the same, which changed, and how each column differs.

    The exit code is 0, whether or not rows changed; --require is what stops a run.
    """
    from headrace.annex.compare import compare

    found = compare(
        old,
        new,
        on=texts.names("--on", on),
        columns=texts.names("--columns", columns),
        sample=sample,
        label=label,
    )
    text, data = str(found), {"command": "compare", "status": "done", "exit_code": DONE, **found.data()}
    if report is not None:
        data["report"] = str(found.write_report(report))
        text += f"\nreport: {data['report']}"
    return Answer(DONE, data, text)
