"""The answer of a command: text for people, or exactly one JSON object for machines; and the exit codes."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TextIO

from headrace import version
from headrace.core.terminal import fitting, json_visible, say
from headrace.errors import (
    REFUSALS,
    ArgumentError,
    ForeignOutput,
    HeadraceError,
    ModelError,
    OutputExists,
    PlanChanged,
    RemoteTraceback,
    RequirementNotMet,
    SinkError,
    SourceError,
    StepError,
    StoreFailed,
)
from headrace.session import invocation
from headrace.session.invocation import Ended

DONE = 0
FAILED = 1
USAGE = 2  # the command cannot be carried out as it was given; nothing was done
REJECTS = 3  # done, and some rows were set aside
UNPUBLISHED = 4  # all rows are computed, and none is published, as a requirement was not met
INTERRUPTED = 130
CLOSED_PIPE = 141  # who read our output has enough: as for any program that SIGPIPE ends


class UsageMistake(ArgumentError):
    """An invalid command line; ``command`` is whose help explains it."""

    def __init__(self, message: str, command: str = "") -> None:
        super().__init__(message)
        self.command = command


class ScriptFailed(Exception):
    """A script of the user's raised something; the cause is what."""


class Stopped(Exception):
    """A run did not end well; the cause is why, and ``data`` the data for ``--json``."""

    def __init__(self, data: dict[str, Any]) -> None:
        super().__init__()
        self.data = data


_BEFORE_WORK = (ModelError, ForeignOutput, OutputExists, PlanChanged)
"""Errors that, if no work has begun, say that another model, folder or flag would have helped."""


def code_of(error: HeadraceError, *, begun: bool = False) -> int:
    """Return the exit code for an error: 2 where other words would have helped, 1 where the work failed, 4 where it
    was done and is not published.

    ``begun``: an output was opened, so that something was done.

    >>> from headrace import errors
    >>> code_of(errors.UnknownColumn("…")), code_of(errors.StepError("…"))
    (2, 1)
    >>> code_of(errors.ModelUnreadable("…")), code_of(errors.ModelUnreadable("…"), begun=True)
    (2, 1)
    """
    if isinstance(error, RequirementNotMet):
        return UNPUBLISHED
    denied = isinstance(error, StoreFailed) and not error.passing
    refused = isinstance(error, REFUSALS) or ((isinstance(error, _BEFORE_WORK) or denied) and not begun)
    return USAGE if refused else FAILED


def code_of_interrupt(error: BaseException) -> int:
    """Return the exit code of a command that was interrupted.

    >>> code_of_interrupt(KeyboardInterrupt()), code_of_interrupt(Ended(15))
    (130, 143)
    """
    return error.code if isinstance(error, Ended) else INTERRUPTED


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a command: its exit code, the data of its JSON object, and its text."""

    code: int = DONE
    data: dict[str, Any] = field(default_factory=dict)
    text: str = ""

    def of(self, command: str) -> Answer:
        """Return the answer with what all of them have first: the command, its status ("done"), its exit code."""
        first = {"command": command, "status": "done", "exit_code": self.code}
        return replace(self, data={**first, **self.data})


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
        close(self._stream)

    def write(self, answer: Answer) -> None:
        """Print an answer."""
        if self.as_json:
            if answer.data:
                say(json_visible(json.dumps(answer.data, ensure_ascii=False, default=str)), self._stream)
        elif answer.text:
            say(fitting(answer.text, self._stream), self._stream)
        self._stream.flush()


def close(stream: TextIO) -> None:
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


# ----------------------------------------------------------------
# What went wrong, as one paragraph on standard error; the user's own traceback before it, ours never.


def wants_debug(flag: bool) -> bool:
    """Return whether whole tracebacks are asked for."""
    return flag or os.environ.get("HEADRACE_DEBUG", "").lower() not in ("", "0", "no", "off", "false")


def complain(text: str) -> None:
    """Write a paragraph to standard error, if anybody reads it."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        say(fitting(in_flags(text), sys.stderr, lead=10), sys.stderr, lead=f"{_red('headrace:')} ")


def show(error: BaseException, *, debug: bool) -> None:
    """Print an error: with ``debug`` the whole traceback, else the message and the user's own frames."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        if debug:
            say("".join(traceback.format_exception(error)), sys.stderr, end="")
        elif _is_of_user_code(error) and error.__cause__ is not None:
            say(_of_the_user(error.__cause__), sys.stderr, end="\n\n")
    if not debug:
        complain(str(error))


def _is_of_user_code(error: BaseException) -> bool:
    """Say whether the cause is the traceback of the user's own function, source or sink."""
    adapter = isinstance(error, (SourceError, SinkError)) and isinstance(error.__cause__, RemoteTraceback)
    return isinstance(error, StepError) or adapter


def _of_the_user(error: BaseException) -> str:
    """Return the traceback of what the user's code raised, from whichever process."""
    remote = error.__cause__
    if isinstance(remote, RemoteTraceback):
        return str(remote).strip()
    return "".join(traceback.format_exception(error)).strip()


def described(error: BaseException) -> dict[str, Any]:
    """Return an error as JSON has it."""
    return {
        "type": type(error).__name__,
        "message": in_flags(str(error)),
        "ours": isinstance(error, HeadraceError),
    }


def _red(text: str) -> str:
    plain = "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb" or not sys.stderr.isatty()
    return text if plain else f"\033[1;31m{text}\033[0m"


def hint(command: str) -> None:
    """Print which command shows the help."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        say(f"Try '{command} --help'.", sys.stderr)


def show_script(error: BaseException, *, debug: bool) -> None:
    """Print what a user's script raised: their traceback, without our frames above it."""
    if _is_of_user_code(error) and not debug:
        show(error, debug=False)
        return
    found = traceback.TracebackException.from_exception(error)
    if not debug:
        ours = os.path.dirname(os.path.abspath(version.__file__)) + os.sep
        link: traceback.TracebackException | None = found
        while link is not None:
            theirs = [frame for frame in link.stack if not frame.filename.startswith(ours)]
            link.stack = traceback.StackSummary.from_list(theirs)
            link = link.__cause__ or link.__context__
    with contextlib.suppress(OSError, ValueError, AttributeError):
        say("".join(found.format()), sys.stderr, end="")


_FLAGS = tuple(
    name
    for line in (
        "batch_format batch_size batch_size_bytes batch_timeout concurrency durability engine incremental inputs",
        "keep limit max_errors max_in_flight max_retries memory memory_limit mode num_cpus num_gpus on_change",
        "on on_error output progress refresh replace retry_on shard_rows show_data trust_pickle workers",
    )
    for name in line.split()
)
_KEYWORDS = re.compile(  # not those of a call, which is for a script, nor those after -O, which are as typed
    rf"(?<![\w(])(?<!-O )({'|'.join(_FLAGS)})=('[^']*'|\[[^]]*\]|-?\w+(?:\.\w+)*|…)?"
)
_NAMES = re.compile(rf"(?<![-\w.(=])(?<!-O )({'|'.join(name for name in _FLAGS if '_' in name)})\b(?!=)")
_REJECTED = re.compile(r"(?:hr\.)?read_rejected\((['\"])(.*?)\1\)")
_STORAGE = re.compile(r"storage_options=(\{[^}]*\})")
_SWITCHES = {"True": "", "False": "no-"}


def in_flags(message: str) -> str:
    """Return a message with what one would write in a script as the flags of the command line.

    >>> in_flags("fix it, and run again with on_change='continue'.")
    'fix it, and run again with --on-change continue.'
    >>> in_flags("batch_size=0: it takes a number; lower num_gpus, or give replace=True.")
    '--batch-size 0: it takes a number; lower --num-gpus, or give --replace.'
    >>> in_flags("rejected rows: hr.read_rejected('/my fares')")
    "rejected rows: headrace rejected '/my fares'"
    """
    message = _REJECTED.sub(lambda found: f"headrace rejected {shlex.quote(found[2])}", message)
    message = _STORAGE.sub(r'--read storage_options="\1"', message)
    text = _NAMES.sub(lambda found: f"--{_dashed(found[1])}", _KEYWORDS.sub(_as_flag, message))
    for python, shell in (
        ("neither True nor False", "neither true nor false"),
        ("True or False", "true or false"),
    ):
        text = text.replace(python, shell)
    return text


def _as_flag(found: re.Match[str]) -> str:
    name, value = _dashed(found[1]), found[2] or ""
    if value in _SWITCHES:
        return f"--{_SWITCHES[value]}{name}"
    if value.startswith("["):
        value = ",".join(part.strip(" '") for part in value[1:-1].split(","))
    return f"--{name} {shlex.quote(value.strip(chr(39))) if value not in ('', '…') else value}".rstrip()


def _dashed(name: str) -> str:
    return name.replace("_", "-")
