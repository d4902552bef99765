"""What a command says: text for people, or exactly one JSON object for machines.

With ``--json``, standard output holds that object and nothing else: whatever is printed meanwhile, by scripts,
libraries and workers too, goes to standard error.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TextIO

from millrace.cli.exits import DONE
from millrace.screen import json_visible, say


@dataclass(frozen=True, slots=True)
class Answer:
    """The end of a command: its exit code, what it says to machines, and to people."""

    code: int = DONE
    data: dict[str, Any] = field(default_factory=dict)
    text: str = ""


class Mouth:
    """Says an answer in the form that was asked for."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self._stream: TextIO = sys.stdout

    @contextlib.contextmanager
    def kept_clean(self) -> Iterator[None]:
        """Have everything that is printed go to standard error, if standard output is for one JSON object."""
        if not self.as_json:
            yield
            return
        with contextlib.ExitStack() as stack:
            try:
                whole = sys.stdout.fileno() == 1
            except (OSError, ValueError, AttributeError):
                whole = False
            if whole:  # libraries and workers write to the descriptor
                sys.stdout.flush()
                saved = os.dup(1)
                self._stream = stack.enter_context(open(saved, "w", encoding="utf-8"))
                with contextlib.suppress(OSError):
                    os.dup2(2, 1)
                stack.callback(os.dup2, saved, 1)
                stack.callback(sys.stdout.flush)
            else:
                stack.enter_context(contextlib.redirect_stdout(sys.stderr))
            yield

    def close(self) -> None:
        """Say nothing more: what could not be written is dropped, also when Python flushes its streams."""
        into_nothing(self._stream)

    def say(self, answer: Answer) -> None:
        """Print an answer."""
        if self.as_json:
            if answer.data:
                say(json_visible(json.dumps(answer.data, ensure_ascii=False, default=str)), self._stream)
        elif answer.text:
            say(answer.text, self._stream)
        self._stream.flush()


def into_nothing(stream: TextIO) -> None:
    """Have what a stream still holds, and gets, go nowhere."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
    with contextlib.suppress(OSError, ValueError):
        stream.flush()
