"""The command line that this process carries out, if it is the program ``headrace``.

It is recorded with each output that is written meanwhile, as plain data, so that ``headrace resume`` can carry it out
again. It collects the results, and may forbid writing.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.core.files import safe_files
from headrace.core.files.storage import here
from headrace.errors import ArgumentError, PlanError
from headrace.version import __version__

if TYPE_CHECKING:
    from headrace.result import Result

COMMAND = "command.json"
_MOST_BYTES = 16 << 20  # longer than any system's command lines


class Invocation(msgspec.Struct):
    """A command line: its words after the program's name, and the folder in which it was given.

    ``origin``: the output in which the command was found, if it is carried out again. ``results`` are those of the
    outputs that were written so far. ``opened`` is the output that was opened last, and the run in it.
    """

    argv: tuple[str, ...]
    cwd: str | None  # None: it was removed
    origin: Path | None = None
    results: list[Result] = msgspec.field(default_factory=list)
    opened: tuple[Path | str, str] | None = None
    words: Callable[[str], str] = str  # how what is said to the user's scripts is said on this command line
    _forbidden: str = ""

    @property
    def wants_json(self) -> bool:
        """True if the answer is to be one JSON object; words after ``--`` belong to the user's script."""
        return "--json" in (self.argv[: self.argv.index("--")] if "--" in self.argv else self.argv)

    @contextmanager
    def without_writing(self, reason: str) -> Iterator[None]:
        """Refuse to write any output meanwhile; ``reason`` is the message."""
        self._forbidden = reason
        try:
            yield
        finally:
            self._forbidden = ""

    def check_writes(self) -> None:
        """Raise ``PlanError`` if no output may be written."""
        if self._forbidden:
            raise PlanError(self._forbidden)

    def record(self, folder: Path, root: Path | str) -> None:
        """Write the command into a run's folder; the latest one counts."""
        self.opened = (root, folder.name)
        from headrace.output.publishing import write_whole

        cwd, output = (
            os.path.realpath(self.cwd or here()),
            root if isinstance(root, str) else os.path.realpath(root),
        )  # a link may lead elsewhere by then
        known = {"argv": self.argv, "cwd": cwd, "output": output, "headrace": __version__}
        write_whole(folder / COMMAND, json.dumps(known, indent=2).encode() + b"\n")


_current: Invocation | None = None  # a process has one command line


@contextmanager
def running(
    argv: Sequence[str], *, origin: Path | None = None, words: Callable[[str], str] = str
) -> Iterator[Invocation]:
    """Make this the command line of the process; afterwards it is the one before again."""
    global _current
    before = _current
    origin = origin.resolve() if origin is not None else None
    _current = Invocation(tuple(argv), _here(), origin, words=words)
    try:
        yield _current
    finally:
        _current = before


def _here() -> str | None:
    with contextlib.suppress(ArgumentError):  # most commands go without one
        return here()
    return None


def current() -> Invocation | None:
    """Return the command line that is being carried out, if there is one."""
    return _current


def recorded(folder: Path) -> dict[str, Any] | None:
    """Read the command line in a run's folder; None if there is none that can be read."""
    try:
        known = json.loads(
            safe_files.content(folder / COMMAND, _MOST_BYTES)
        )  # half of a longer one is not JSON
    except (OSError, ValueError, RecursionError):
        return None
    whole = isinstance(known, dict) and isinstance(known.get("argv"), list)
    words = [*known["argv"], known.get("cwd"), known.get("output")] if whole else [None]
    return known if all(isinstance(word, str) for word in words) else None
