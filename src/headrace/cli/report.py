"""`headrace report`: the page about a run, made anew."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.answer import Answer
from headrace.cli.exits import DONE, UsageMistake
from headrace.core.files.paths import absolute

EXAMPLES = """\
  headrace report fares/                          where is it? (made anew)
  headrace report fares/ --open                   in a browser
  headrace report fares/ --values --to page.html  with some of the rejected rows
"""


def report(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="An output folder.", show_default=False)],
    *,
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="FILE", help="Put it there instead of beside the run's record."),
    ] = None,
    values: Annotated[
        bool, typer.Option("--values", help="Show some of the rejected rows, with their values.")
    ] = False,
    open_browser: Annotated[bool, typer.Option("--open", help="Open it in a browser.")] = False,
) -> Answer:
    """Make the report of a run anew, and print where it is: one page, which needs no network.

    Every run leaves one when it ends; a run that was killed, or that goes on, has none until it is asked for.
    """
    from headrace.output import reporting
    from headrace.output.lock import holder

    root = Path(absolute(str(out), "The output path"))
    folder = reporting.folder_of(root)
    history, facts = reporting.read(root, folder, alive=holder(root) is not None, values=values)
    place = to.expanduser().absolute() if to is not None else folder / reporting.REPORT
    try:
        reporting.write(place, reporting.render(history, facts))
    except OSError as error:
        raise UsageMistake(
            f"The report cannot be written to {place}: {error.strerror}.", "headrace report"
        ) from error
    text = str(place)
    if open_browser:
        import webbrowser

        if not webbrowser.open(place.as_uri()):
            text += "\nThere is no browser to open it with."
    data = {
        "command": "report",
        "status": facts.status,
        "exit_code": DONE,
        "output": str(root),
        "run": facts.run,
    }
    return Answer(DONE, {**data, "report": str(place)}, text)
