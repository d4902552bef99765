"""Path arguments of readers: a file, a folder, a pattern, an address, or a list of these, which keep their order."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeAlias, TypeGuard

from headrace.core.files.storage import Storage, given
from headrace.errors import ArgumentError

PathArgument: TypeAlias = "str | os.PathLike[str] | Sequence[str | os.PathLike[str]]"


def given_paths(paths: PathArgument) -> list[Storage]:
    """Return what path arguments stand for: full paths, with their patterns as they are, and addresses."""
    listed: list[object] = list(paths) if _is_several(paths) else [paths]
    if not listed:
        raise ArgumentError("The list of input paths is empty; give at least one file, folder or pattern.")
    return [given(_text(path), "The input path") for path in listed]


def _is_several(paths: object) -> TypeGuard[Sequence[object]]:
    return isinstance(paths, Sequence) and not isinstance(paths, (str, bytes))


def _text(path: object) -> str:
    if not isinstance(path, (str, os.PathLike)):
        raise ArgumentError(f"An input path is a string, an os.PathLike, or a list of these, not {path!r}.")
    text = os.fspath(path)
    if not isinstance(text, str):
        raise ArgumentError(f"An input path is text, not {text!r}; decode it with os.fsdecode first.")
    if not text:
        raise ArgumentError("An input path is empty; use '.' for the current folder.")
    return text
