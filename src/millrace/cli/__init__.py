"""The command line: a thin shell over ``Dataset``. ``millrace.cli:main`` is the program ``millrace``.

Nothing heavy is imported before a command that needs it: ``--help`` and completion answer at once.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Carry out a command line, by default that of this process; return its exit code.

    >>> main(["--version"])
    millrace ...
    0
    """
    given = list(sys.argv[1:] if argv is None else argv)
    if given == ["--version"]:
        from millrace.version import __version__

        print(f"millrace {__version__}")
        return 0
    try:
        from millrace.cli.app import carry_out
    except KeyboardInterrupt:
        from millrace.cli.exits import INTERRUPTED

        return INTERRUPTED
    return carry_out(given)
