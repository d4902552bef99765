"""What went wrong, as one paragraph on standard error; the user's own traceback before it, ours never."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from typing import Any

from millrace.cli.texts import in_flags
from millrace.errors import MillraceError, RemoteTraceback, StepError
from millrace.screen import say


def wants_debug(flag: bool) -> bool:
    """Say whether tracebacks of ours are asked for."""
    return flag or os.environ.get("MILLRACE_DEBUG", "").lower() not in ("", "0", "no", "off", "false")


def complain(text: str) -> None:
    """Write a paragraph to standard error, if anybody reads it."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        say(in_flags(text), sys.stderr, lead=f"{_red('millrace:')} ")


def show(error: BaseException, *, debug: bool) -> None:
    """Tell of an error: with ``debug`` all that Python knows, else what helps."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        if debug:
            say("".join(traceback.format_exception(error)), sys.stderr, end="")
        elif isinstance(error, StepError) and error.__cause__ is not None:
            say(_of_the_user(error.__cause__), sys.stderr, end="\n\n")
    if not debug:
        complain(str(error))


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
        "ours": isinstance(error, MillraceError),
    }


def _red(text: str) -> str:
    plain = "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb" or not sys.stderr.isatty()
    return text if plain else f"\033[1;31m{text}\033[0m"


def hint(command: str) -> None:
    """Say where the help is."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        say(f"Try '{command} --help'.", sys.stderr)


def show_script(error: BaseException, *, debug: bool) -> None:
    """Tell of what a script of the user's raised: their traceback, without our frames above it."""
    if isinstance(error, MillraceError) and not debug and isinstance(error, StepError):
        show(error, debug=False)
        return
    found = traceback.TracebackException.from_exception(error)
    if not debug:
        ours = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
        link: traceback.TracebackException | None = found
        while link is not None:
            kept = [frame for frame in link.stack if not frame.filename.startswith(ours)]
            link.stack = traceback.StackSummary.from_list(kept)
            link = link.__cause__ or link.__context__
    with contextlib.suppress(OSError, ValueError, AttributeError):
        say("".join(found.format()), sys.stderr, end="")
