"""The answer of a command: text for people, or exactly one JSON object for machines.

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

from headrace.cli.exits import DONE
from headrace.core.terminal import json_visible, say
from headrace.session import invocation


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a command: its exit code, the data of its JSON object, and its text."""

    code: int = DONE
    data: dict[str, Any] = field(default_factory=dict)
    text: str = ""


class OutputWriter:
    """Writes an answer in the form that was asked for."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self._stream: TextIO = sys.stdout

    @contextlib.contextmanager
    def redirected(self) -> Iterator[None]:
        """Redirect all other output to standard error, if standard output is for one JSON object."""
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
        """Discard what could not be written, also when Python flushes its streams."""
        discard(self._stream)

    def write(self, answer: Answer) -> None:
        """Print an answer."""
        if self.as_json:
            if answer.data:
                say(json_visible(json.dumps(answer.data, ensure_ascii=False, default=str)), self._stream)
        elif answer.text:
            say(answer.text, self._stream)
        self._stream.flush()


def discard(stream: TextIO) -> None:
    """Discard what a stream still holds, and what is written to it later."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
    with contextlib.suppress(OSError, ValueError):
        stream.flush()


def wants_json() -> bool:
    """Return whether the present command line asks for one JSON object."""
    command = invocation.current()
    return command is not None and command.wants_json


def answer_of(command: Any, argv: list[str]) -> Answer:
    """Carry out a command line of a click command, and return its answer; raises what goes wrong."""
    returned: Any = command.main(argv, prog_name="headrace", standalone_mode=False)
    if isinstance(returned, Answer):
        return returned
    return Answer(returned if isinstance(returned, int) else DONE)
