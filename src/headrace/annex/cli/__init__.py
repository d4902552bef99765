"""The command line: a thin shell over ``Dataset``. ``headrace.annex.cli:main`` is the program ``headrace``.

Nothing heavy is imported before a command that needs it: ``--help`` and completion answer at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Carry out a command line, by default that of this process; return its exit code.

    >>> main(["--version"])
    headrace ...
    0
    """
    if argv is None:
        _open_standard_streams()
    given = list(sys.argv[1:] if argv is None else argv)
    if given == ["--version"]:
        from headrace.core.terminal import say
        from headrace.version import __version__

        say(f"headrace {__version__}", sys.stdout)
        return 0
    try:
        from headrace.annex.cli.app import carry_out
    except KeyboardInterrupt:
        from headrace.annex.cli.answer import INTERRUPTED

        return INTERRUPTED
    return carry_out(given)


def _open_standard_streams() -> None:
    """Where a standard stream was closed, open one to nowhere: else the next file that is opened, such as a journal,
    gets its number, and with it whatever a library writes there."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free, which is this one
            os.set_inheritable(number, True)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)
