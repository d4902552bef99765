"""`millrace report`: the page about a run, made anew."""

from __future__ import annotations

import sys
from pathlib import Path

from millrace import reporting


def report(out: Path, *, output: Path | None = None, open_browser: bool = False, values: bool = False) -> int:
    """Make the report of the run in ``out`` anew, and print where it is. Return 0.

    It is put beside the run's record, or to ``output``. ``values``: it shows some of the rejected rows with their
    values. Raises ``NothingMatched`` if there is no run in the folder, ``OSError`` if the page cannot be written.
    """
    root = out.expanduser().absolute()
    folder = reporting.folder_of(root)
    history, facts = reporting.read(root, folder, alive=reporting.is_held(root), values=values)
    place = output.expanduser().absolute() if output is not None else folder / reporting.REPORT
    reporting.write(place, reporting.rendered(history, facts))
    print(place)
    if open_browser:
        import webbrowser

        if not webbrowser.open(place.as_uri()):
            print("There is no browser to open it with.", file=sys.stderr)
    return 0
