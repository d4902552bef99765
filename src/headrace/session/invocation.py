"""The command line that this process carries out, if it is the program ``headrace``.

It is recorded with each output that is written meanwhile, as plain data, so that ``headrace resume`` can carry it out
again. It collects the results, and may forbid writing. Here is, too, what is asked of a run while it goes on: by
Ctrl-C, or by a file.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.core.asked import EVERY_ROW, RunAsked
from headrace.core.events import Event
from headrace.core.files import safe_files
from headrace.core.files.storage import here
from headrace.errors import ArgumentError, PlanError
from headrace.output.names import ASKED
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


# ------------------------------------------------------------ what is asked of a run while it goes on


_log = logging.getLogger("headrace")

_NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Raising:
    """A signal handler that raises an interrupt. Only these, and Python's own for Ctrl-C, ever wait for a commit."""

    def __init__(self, interrupt: Callable[[int], BaseException]) -> None:
        self._interrupt = interrupt

    def __call__(self, number: int, frame: Any) -> None:
        signal.signal(number, signal.SIG_DFL)
        raise self._interrupt(number)


@contextlib.contextmanager
def committing(stop: Callable[[], None], say: Callable[[], None]) -> Iterator[None]:
    """Call ``stop`` and ``say`` at the first interrupt, and raise it when the body has ended.

    Whatever handler the program has set itself stays, and so does a signal that is ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _NUMBERS}
    ours = {
        number: handler
        for number, handler in before.items()
        if isinstance(handler, Raising) or handler is signal.default_int_handler
    }
    asked: list[signal.Signals] = []

    def first(number: int, frame: Any) -> None:
        restore()
        asked.append(signal.Signals(number))
        stop()
        threading.Thread(target=say, daemon=True).start()  # a handler may have interrupted another line

    def restore() -> None:
        for number, handler in ours.items():
            signal.signal(number, handler)

    for number in ours:
        signal.signal(number, first)
    try:
        yield
    finally:
        if not asked:
            restore()
    if asked:
        ours[asked[0]](asked[0], None)


class Ended(KeyboardInterrupt):
    """A signal ends the program, as Ctrl-C does; ``code`` is the exit code that shells know for it."""

    def __init__(self, number: int) -> None:
        super().__init__(f"ended by {signal.Signals(number).name}; finished work is kept")
        self.code = 128 + number


@contextlib.contextmanager
def as_interrupts() -> Iterator[None]:
    """Take the first SIGTERM or SIGHUP for a Ctrl-C; the second one ends the process at once.

    One that is ignored, such as SIGHUP under ``nohup``, stays ignored, and whoever handles it goes on to do so.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handled = [number for number in _NUMBERS[1:] if signal.getsignal(number) is signal.SIG_DFL]
    end = Raising(Ended)
    for number in handled:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, signal.SIG_DFL)


_MOST_BYTES = 10_000  # of a file that asks for something


class Requests:
    """An observer that looks for the file by which who watches the run asks for something, and passes it on.

    It says how the run is to go on, all of it, so whoever writes it last is heard. What was asked of an earlier
    driver does not count.
    """

    def __init__(self, folder: Path, ask: Callable[[RunAsked], None], *, every_row: bool = False) -> None:
        """``every_row``: none may be set aside, whoever asks for that."""
        self._path = folder / ASKED
        self._ask = ask
        self._every_row = every_row
        self._seen: tuple[int, int] | None = None  # of the file: its number, and when it was written
        self.close()

    def on_event(self, event: Event) -> None:
        """See no event."""

    def tick(self) -> None:
        """Look whether there is another file."""
        try:
            found = os.stat(self._path, follow_symlinks=False)
            if self._seen == (seen := (found.st_ino, found.st_mtime_ns)):
                return
            self._seen = seen
            asked = msgspec.json.decode(safe_files.content(self._path, _MOST_BYTES), type=RunAsked)
            if self._every_row and asked.on_error == "reject":
                _log.warning("on_error='reject' is left out: %s", EVERY_ROW)
                asked = msgspec.structs.replace(asked, on_error=None)
            self._ask(msgspec.structs.replace(asked, held=False))
        except FileNotFoundError:
            pass
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            _log.warning("What %s asks of the run is left out: %s", self._path, error)

    def close(self) -> None:
        """Remove the file."""
        with contextlib.suppress(OSError):
            self._path.unlink()
