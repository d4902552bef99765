"""The command line that this process carries out, if it is the program ``millrace``.

It is kept with each output that is written meanwhile, as plain data, so that ``millrace resume`` can carry it out
again; and it is told of the results.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millrace.core import regular
from millrace.errors import PlanError
from millrace.version import __version__

if TYPE_CHECKING:
    from millrace.core.ports import Observer
    from millrace.result import Result

COMMAND = "command.json"
_MOST_BYTES = 16 << 20  # no system takes longer command lines


@dataclass(slots=True)
class Launch:
    """A command line: its words behind the program's name, and the folder in which it was given.

    ``forbids``: why nothing may be written, if so. ``results`` are those of the outputs that were written so far.
    ``opened`` is the output that was opened last, and the run in it. ``observer`` sees their events.
    """

    argv: tuple[str, ...]
    cwd: str
    forbids: str = ""
    results: list[Result] = field(default_factory=list)
    opened: tuple[Path, str] | None = None
    observer: Observer | None = None

    def begins(self) -> None:
        """An output is about to be opened."""
        if self.forbids:
            raise PlanError(self.forbids)

    def keep(self, folder: Path, root: Path) -> None:
        """Note the command in a run's folder; the latest one counts."""
        self.opened = (root, folder.name)
        if not self.argv:
            return
        from millrace.run.output import write_whole

        cwd, output = os.path.realpath(self.cwd), os.path.realpath(root)  # a link may lead elsewhere by then
        known = {"argv": self.argv, "cwd": cwd, "output": output, "millrace": __version__}
        write_whole(folder / COMMAND, json.dumps(known, indent=2).encode() + b"\n")


_launch: Launch | None = None  # a process has one command line


def begin(argv: Sequence[str], cwd: str, *, forbids: str = "") -> Launch:
    """Say what this process carries out from here on."""
    global _launch
    _launch = Launch(tuple(argv), cwd, forbids)
    return _launch


def end() -> None:
    """The command is over."""
    global _launch
    _launch = None


def current() -> Launch | None:
    """Return the command line that is being carried out, if there is one."""
    return _launch


def kept(folder: Path) -> dict[str, Any] | None:
    """Read the command line that a run's folder has; None if there is none that can be read."""
    try:
        known = json.loads(
            regular.content(folder / COMMAND, _MOST_BYTES)
        )  # a part of a longer one is no JSON
    except (OSError, ValueError, RecursionError):
        return None
    whole = isinstance(known, dict) and isinstance(known.get("argv"), list)
    words = [*known["argv"], known.get("cwd"), known.get("output")] if whole else [None]
    return known if all(isinstance(word, str) for word in words) else None
