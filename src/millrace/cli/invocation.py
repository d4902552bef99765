"""The command line that is being carried out, and the output that it was read from, if it is carried out again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from millrace.cli.exits import UsageMistake

_argv: ContextVar[tuple[str, ...]] = ContextVar("argv", default=())
_again: ContextVar[Path | None] = ContextVar("again", default=None)


@contextmanager
def of(argv: Sequence[str]) -> Iterator[None]:
    """Note the words of the command line."""
    token = _argv.set(tuple(argv))
    try:
        yield
    finally:
        _argv.reset(token)


def present() -> tuple[str, ...]:
    """Return the words of the command line, behind the program's name."""
    return _argv.get()


def wants_json() -> bool:
    """Say whether the answer is to be one JSON object."""
    words = present()
    return "--json" in (words[: words.index("--")] if "--" in words else words)


@contextmanager
def again(argv: Sequence[str], output: Path) -> Iterator[None]:
    """Carry out words that were found in an output: nothing in that folder may be run."""
    token = _again.set(output.resolve())
    try:
        with of(argv):
            yield
    finally:
        _again.reset(token)


def check_apart(code: Path, out: Path | None) -> None:
    """Refuse a script, model or folder that lies in the output that the command was read from, or that it writes;
    and a command that was read from one output and writes to another."""
    again = _again.get()
    if again is not None and out is not None and out.resolve() != again:
        raise UsageMistake(
            f"The command that was found in {again} writes to another folder, {out}, so it is not carried out. If it "
            "is what you want, give it yourself."
        )
    for folder in (again, out.resolve() if out is not None else None):
        if folder is not None and code.exists() and code.resolve().is_relative_to(folder):
            raise UsageMistake(
                f"{code} lies inside the output {folder}. What is in an output is data, and is never run: move it "
                "to a folder of its own."
            )
