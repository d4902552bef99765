"""Lines at the foot of a terminal that are drawn again and again, while what is printed appears above them."""

from __future__ import annotations

import io
import logging
import os
import re
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any, TextIO, cast

from headrace.core.terminal import size_of, visible

_BEGIN, _END = "\x1b[?2026h", "\x1b[?2026l"  # a terminal that knows them shows the whole frame at once
_STYLE = re.compile(r"\x1b\[[0-9;]*m")
_ECHO = 3  # columns: a Ctrl-C, and the last one, after which a terminal goes on in the next row


class LiveLines:
    """Draws lines over the ones before, each frame in one write; nothing is written for a frame that is the same.

    The lines must fit the terminal: ``size()`` says how big it is now. While they are shown, the standard streams, if
    they are terminals, print above them, by whole lines, and so do handlers of ``logging`` that write to them. All
    methods may be called from any thread.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.RLock()
        self._shown: list[str] = []
        self._width = 0
        self._open = True
        self._redirected: list[tuple[str, _Above]] = []
        for name in ("stdout", "stderr"):
            if is_terminal(getattr(sys, name)):
                above = _Above(self, getattr(sys, name))
                self._redirected.append((name, above))
                for handler in _handlers_to(above.below):
                    handler.setStream(above)
                setattr(sys, name, above)

    def size(self) -> tuple[int, int]:
        """Return the columns and lines that may be written to.

        Some columns stay free: the terminal shows a Ctrl-C as ``^C``, and a line that goes on in the next row because
        of it could not be taken away.
        """
        columns, lines = size_of(self._stream)
        return max(1, columns - _ECHO), lines

    def draw(self, lines: Sequence[str]) -> None:
        """Show these lines in the place of those before."""
        with self._lock:
            width = size_of(self._stream)[0]
            if self._open and (list(lines) != self._shown or width != self._width):
                foot = "\n".join(f"{line}\x1b[K" for line in lines)
                fewer = len(lines) < len(self._shown) and width == self._width
                self._write(self._erased(width) + foot + ("\x1b[J" if fewer else ""))
                self._shown, self._width = list(lines), width

    def say(self, text: str) -> None:
        """Leave lines above; what a terminal obeys is made visible."""
        self.print_above(f"{visible(text)}\n")

    def print_above(self, text: str) -> None:
        """Leave whole lines above, as they are."""
        with self._lock:
            width = size_of(self._stream)[0]
            foot = "\n".join(f"{line}\x1b[K" for line in self._shown)
            self._write(f"{self._erased(width)}\x1b[J{text}{foot}")
            self._width = width

    def close(self) -> None:
        """Take the lines away and give the standard streams back. May be called more than once."""
        with self._lock:
            for name, above in self._redirected:
                if getattr(sys, name) is above:
                    setattr(sys, name, above.below)
                for handler in _handlers_to(above):
                    handler.setStream(above.below)
                above.end()
            self._redirected = []
            if self._open and self._shown:
                self._write(f"{self._erased(size_of(self._stream)[0])}\x1b[J")
            self._open, self._shown = False, []

    def _erased(self, width: int) -> str:
        """Return what moves the cursor to where the lines shown begin; the terminal may be narrower by now."""
        rows = 0
        for line in self._shown:
            length = len(_STYLE.sub("", line))
            rows += max(1, -(-length // max(1, width)) if width < self._width else 1)
        up = f"\x1b[{rows - 1}A" if rows > 1 else ""
        return f"\r{up}" + ("\x1b[J" if width != self._width and self._shown else "")

    def _write(self, text: str) -> None:
        self._stream.write(f"{_BEGIN}{text}{_END}")
        self._stream.flush()


def _handlers_to(stream: Any) -> Iterator[logging.StreamHandler[Any]]:
    """Yield the handlers of all loggers that write to a stream; they keep the one that they were made with."""
    loggers = [logging.root, *list(logging.root.manager.loggerDict.values())]
    for logger in loggers:
        for handler in getattr(logger, "handlers", ()):
            if isinstance(handler, logging.StreamHandler) and vars(handler).get("stream") is stream:
                yield handler


class _Above(io.TextIOBase):
    """Stands for a standard stream: whole lines go above the live ones, the rest waits for its end."""

    def __init__(self, live: LiveLines, below: TextIO) -> None:
        self._live = live
        self.below = below
        self._rest = ""
        self._lock = threading.RLock()

    def write(self, text: str) -> int:
        with self._lock:
            whole, newline, self._rest = (self._rest + text).rpartition("\n")
            if newline:
                self._live.print_above(f"{whole}\n")
        return len(text)

    def end(self) -> None:
        """Print what has no end of line yet, once the live lines are gone or about to go."""
        rest, self._rest = self._rest, ""
        if rest:
            self._live.print_above(f"{rest}\n")

    def flush(self) -> None:
        """A line without its end stays held."""

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return self.below.fileno()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self.below.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        return self.below.errors

    def __getattr__(self, name: str) -> Any:
        return getattr(self.below, name)


class ForgivingStream(io.TextIOBase):
    """A text stream that ignores what is written once the one below is broken: a closed pipe, a closed terminal."""

    def __init__(self, stream: TextIO | None) -> None:
        self._below = stream or io.StringIO()
        self.broken = stream is None

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return getattr(self._below, "encoding", None) or "utf-8"

    def write(self, text: str) -> int:
        if not self.broken:
            try:
                self._below.write(text)
            except UnicodeEncodeError:
                self._below.write(text.encode(self.encoding, "backslashreplace").decode(self.encoding))
            except (OSError, ValueError):
                self.broken = True
        return len(text)

    def flush(self) -> None:
        if not self.broken:
            try:
                self._below.flush()
            except (OSError, ValueError):
                self.broken = True

    def isatty(self) -> bool:
        return is_terminal(self._below)

    def fileno(self) -> int:
        return self._below.fileno()


def is_terminal(stream: Any) -> bool:
    """Say whether a stream is a terminal that can move its cursor; closed streams are not."""
    try:
        return stream is not None and stream.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")
    except (OSError, ValueError):
        return False


def text_stream(stream: ForgivingStream) -> TextIO:
    """Return a stream as what functions for text streams take."""
    return cast(TextIO, stream)
