"""Whether an output lies in its own input, or the other way round."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Sequence

from headrace.core.files.storage import storage_at
from headrace.errors import ForeignOutput
from headrace.output.input_changes import InputFile


def check_apart(root: str, arguments: Sequence[str], files: Sequence[InputFile]) -> None:
    """Refuse an output inside its own input, and an input inside its own output."""
    out = os.path.realpath(root)
    for argument in arguments:
        if _takes_in(argument, out):
            raise ForeignOutput(
                f"The output {root} lies inside its own input {argument}: a later run would read predictions as "
                "input. Write to a folder next to it."
            )
    within = {
        folder: _inside(os.path.realpath(folder), out) for folder in {_folder(path) for path, _, _ in files}
    }
    for path, _, _ in files:
        if within[_folder(path)] or (os.path.islink(path) and _inside(os.path.realpath(path), out)):
            raise ForeignOutput(
                f"The input file {path} lies inside the output {root}. Write to a folder of its own."
            )


def _folder(path: str) -> str:
    return path.rpartition(os.sep)[0] or os.sep


def _takes_in(argument: str, out: str) -> bool:
    """Say whether a path argument, a folder or a pattern, would also read parts in the folder ``out``."""
    if storage_at(argument).may_hold():
        return _inside(out, os.path.realpath(argument))
    parts = argument.split(os.sep)
    first = next((i for i, part in enumerate(parts) if re.search(r"[*?\[]", part)), None)
    if first is None:
        return False
    fixed = os.path.realpath(os.sep.join(parts[:first]) or os.sep)
    if not _inside(out, fixed):
        return False
    below = os.path.relpath(out, fixed)
    return _matches(parts[first:], ([] if below == "." else below.split(os.sep)) + [""])


def _matches(pattern: list[str], path: list[str]) -> bool:
    """Say whether ``path``, whose last name may be anything, or what is in it can match ``pattern``."""
    if not path:
        return not pattern
    if not pattern:
        return False
    if pattern[0] == "**":
        return _matches(pattern[1:], path) or len(pattern) == 1 or _matches(pattern, path[1:])
    if len(path) == 1:
        return len(pattern) == 1
    if not fnmatch.fnmatchcase(path[0], pattern[0]):
        return False
    return len(pattern) == 1 or _matches(pattern[1:], path[1:])


def _inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)
