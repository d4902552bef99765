"""What went wrong, as one paragraph on standard error; the user's own traceback before it, ours never."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from typing import Any

from headrace.annex.cli.texts import in_flags
from headrace.core.terminal import fitting, say
from headrace.errors import HeadraceError, RemoteTraceback, SinkError, SourceError, StepError


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
        ours = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
        link: traceback.TracebackException | None = found
        while link is not None:
            theirs = [frame for frame in link.stack if not frame.filename.startswith(ours)]
            link.stack = traceback.StackSummary.from_list(theirs)
            link = link.__cause__ or link.__context__
    with contextlib.suppress(OSError, ValueError, AttributeError):
        say("".join(found.format()), sys.stderr, end="")
