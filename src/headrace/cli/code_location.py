"""Where code that a command runs may lie: never in an output, which may come from anybody."""

from __future__ import annotations

from pathlib import Path

from headrace.cli.exits import UsageMistake
from headrace.session import invocation


def check_outside_output(code: Path, out: Path | None) -> None:
    """Refuse a script, model or folder in the output that the command was read from, or that it writes.

    Also refuses a command that was read from one output and writes to another.
    """
    command = invocation.current()
    origin = command.origin if command is not None else None
    if origin is not None and out is not None and out.resolve() != origin:
        raise UsageMistake(
            f"The command that was found in {origin} writes to another folder, {out}, so it was not run. If you want "
            "this, run it yourself."
        )
    for folder in (origin, out.resolve() if out is not None else None):
        if folder is not None and code.exists() and code.resolve().is_relative_to(folder):
            raise UsageMistake(
                f"{code} lies inside the output {folder}. What is in an output is data, and is never run: move it "
                "to a folder of its own."
            )
