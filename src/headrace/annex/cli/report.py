"""`headrace report`: the page about a run, made anew."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.annex.cli import texts
from headrace.annex.cli.answer import DONE, Answer, UsageMistake
from headrace.core.terminal import size_of

if TYPE_CHECKING:
    from headrace.annex.report.facts import Facts, History
    from headrace.output.places.place import Place

_REJECTED = 5  # files of rejected rows that are looked into

EXAMPLES = """\
  headrace report fares/                          where is it? (made anew)
  headrace report fares/ --open                   in a browser
  headrace report fares/ --values --to page.html  with some of the rejected rows
  headrace report before/ after/                  two runs side by side
"""


def report(
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="An output folder or address.", show_default=False)
    ],
    other: Annotated[
        Path | None,
        typer.Argument(metavar="[OUT2]", help="Another, to compare the first with.", show_default=False),
    ] = None,
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

    Every run leaves one when it ends; a run that was killed, or that goes on, has none until it is asked for. With
    two outputs, the page compares their runs, and the terminal shows the same in tables; it lies beside the record of
    the second.
    """
    from headrace.annex.report import writing
    from headrace.output.names import REPORT

    root, folder, (history, facts) = _read(out, values=values)
    name, page = REPORT, b""
    if other is not None:
        first = history, facts
        root, folder, (history, facts) = _read(other, values=values)
        name, page = writing.COMPARISON, writing.render_comparison(first, (history, facts))
    if to is None and folder is None:
        raise UsageMistake(
            f"{root} is in a store: say where to write the page, with --to FILE.", "headrace report"
        )
    place = to.expanduser().absolute() if to is not None else Path(folder or "", name)
    try:
        writing.write(place, page or writing.render(history, facts))
    except OSError as error:
        raise UsageMistake(
            f"The report cannot be written to {place}: {error.strerror}.", "headrace report"
        ) from error
    text = str(place)
    if other is not None:
        from headrace.annex.report.comparison import in_words

        text = f"{in_words(first, (history, facts), size_of(sys.stdout)[0])}\n\n{text}"
    if open_browser:
        import webbrowser

        if not webbrowser.open(place.as_uri()):
            text += "\nNo browser was found to open it."
    data = {
        "command": "report",
        "status": facts.status,
        "exit_code": DONE,
        "output": root,
        "run": facts.run,
    }
    return Answer(DONE, {**data, "report": str(place)}, text)


def _read(out: Path, *, values: bool) -> tuple[str, Path | None, tuple[History, Facts]]:
    """Return an output's name, the folder of its run unless it is in a store, and what is known of it."""
    from headrace.annex.report import writing
    from headrace.output.places.place import looked_at

    with looked_at(texts.output_of(out)) as output:
        folder = writing.folder_of(output.root)
        if output.copied:
            _copy_rejected(output)
        alive = output.writer() is not None
        found = writing.read(output.root, folder, alive=alive, values=values, output=output.name)
        return output.name, None if output.copied else folder, found


def _copy_rejected(output: Place) -> None:
    """Copy some of the rejected rows of an output in a store, for the report."""
    from headrace.core.work import REJECTED

    (output.root / REJECTED).mkdir()
    rejected = sorted(name for name in output.listed(REJECTED) if name.startswith(f"{REJECTED}/part-"))
    for name in rejected[:_REJECTED]:
        with output.opened(name) as path:
            path.rename(output.root / REJECTED / name.rpartition("/")[2])
