"""What Ray's readers say about which files are read."""

from __future__ import annotations

import os
from glob import has_magic
from typing import Any

from headrace.core.stores.addresses import is_address
from headrace.errors import ArgumentError, UnknownArgument
from headrace.sources.file_source import FileSource


def with_extensions(source: Any, extensions: Any) -> None:
    """Have a source read only files whose names end so: ``file_extensions=["jpg", "png"]``."""
    if not isinstance(source, FileSource):
        raise UnknownArgument("file_extensions= is for what reads files.")
    given = [extensions] if isinstance(extensions, str) else list(extensions)
    if not given or not all(isinstance(each, str) and each.strip(".") for each in given):
        raise ArgumentError(f"file_extensions={extensions!r}: give a list such as ['jpg', 'png'].")
    source.only_extensions(tuple(f".{each.lstrip('.').lower()}" for each in given))


def existing(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return a reader's arguments without the paths behind which nothing is: ``ignore_missing_paths=True``."""
    paths = args[0] if args else kwargs.get("paths")
    listed = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths or ())
    found = [path for path in listed if _is_there(os.fspath(path))]
    kept = found or listed  # with none left, the reader says what is missing
    return ((kept, *args[1:]), kwargs) if args else (args, {**kwargs, "paths": kept})


def _is_there(path: str) -> bool:
    return is_address(path) or has_magic(path) or os.path.exists(path)
