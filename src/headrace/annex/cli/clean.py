"""`headrace clean`: what runs have left behind in an output that nothing needs any more."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from headrace.annex.cli.answer import DONE, Answer, UsageMistake, wants_json
from headrace.annex.cli.texts import in_shell, output_of
from headrace.core.tables import Table
from headrace.core.terminal import say

EXAMPLES = """\
  headrace clean fares/                   what is there to remove? (on a terminal, asks)
  headrace clean fares/ --yes             remove it
  headrace clean fares/ --unfinished      a run that will not be resumed, too
  headrace clean fares/ --all --yes       the whole output
"""


def clean(
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="An output folder or address.", show_default=False)
    ],
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Remove it, without asking.")] = False,
    unfinished: Annotated[
        bool,
        typer.Option(
            "--unfinished", help="Runs that are not complete, too, with the parts that they have written."
        ),
    ] = False,
    all: Annotated[
        bool, typer.Option("--all", help="All that Headrace has written here, the complete output included.")
    ] = False,
) -> Answer:
    """Remove what is left over in an output: abandoned attempts, runs that were given up or replaced.

    Only shows what would go, with its size, unless --yes is given or you say so on a terminal. The parts of a
    complete output, and what a run needs to be resumed, stay, unless --all or --unfinished is given. Files that
    Headrace has not written are never touched. Refused while a run is writing.
    """
    from headrace.core import human
    from headrace.output import clean as cleaning
    from headrace.output.places.place import place_at

    if all and unfinished:
        raise UsageMistake("--all includes --unfinished: give one of them.", "headrace clean")
    given = output_of(out)
    found = cleaning.leftovers(given, unfinished=unfinished, everything=all)
    size = sum(each.bytes for each in found)
    data = {
        "command": "clean",
        "status": "nothing to do" if not found else "dry run",
        "exit_code": DONE,
        "output": place_at(given).name,
        "bytes": size,
        "items": [{"path": each.path, "bytes": each.bytes, "why": each.why} for each in found],
        "removed": False,
    }
    if not found:
        return Answer(DONE, data, f"{given}: nothing is left over.")
    rows = [(each.path, human.size(each.bytes), each.why) for each in found]
    lines = [Table((), rows, numbers={1}).text()]
    total = f"{human.plural(len(found), 'item')}, {human.size(size)}"
    flag = " --all" if all else " --unfinished" if unfinished else ""
    if not yes and not wants_json() and sys.stdin.isatty() and sys.stdout.isatty():
        say("\n".join(lines), sys.stdout)
        if not typer.confirm(f"Remove {total}?"):
            return Answer(DONE, data, "Nothing was removed.")
        lines, yes = [], True
    if not yes:
        last = f"{total}. Nothing was removed; to remove it: headrace clean {in_shell([given])}{flag} --yes"
        return Answer(DONE, data, "\n".join([*lines, last]))
    cleaning.remove(given, found, unfinished=unfinished, everything=all)
    data |= {"status": "done", "removed": True}
    return Answer(DONE, data, "\n".join([*lines, f"Removed {total}."]))
