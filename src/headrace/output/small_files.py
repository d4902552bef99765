"""Small files and folders of an output on this machine: written whole, synced, removed."""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path

from headrace.core import failpoints
from headrace.core.files import safe_files
from headrace.core.files.safe_files import write_failed
from headrace.errors import ForeignOutput


def remove_tree(folder: Path) -> None:
    """Remove a folder with all that is in it, as far as it can be removed."""
    try:
        folder.rmdir()
    except OSError:
        import shutil  # imports five compression modules, and most folders are empty by then

        shutil.rmtree(folder, ignore_errors=True)


def remove_unlisted(folder: Path, named: Container[str]) -> None:
    """Remove what is in a folder, if it is there, and no record names it: its attempt was never committed."""
    for path in folder.iterdir() if safe_files.is_folder(folder) else ():
        if path.name not in named:
            remove_any(path)


def remove_any(path: Path) -> None:
    """Remove a file, or a folder with all that is in it, where only Headrace writes."""
    if safe_files.is_folder(path):
        remove_tree(path)
    else:
        remove_file(path)


def write_whole(path: Path, data: bytes, *, named: bool = True) -> None:
    """Write a small file so that a reader, a crash or a loss of power leaves all of it or nothing.

    ``named`` False: the caller syncs its folder.
    """
    try:
        safe_files.write(path, data)
        failpoints.hit("plan.written")
    except OSError as error:
        raise write_failed(error, path, "write") from error
    if named:
        sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Make the names in a folder survive a loss of power, where the file system has such a call."""
    try:
        safe_files.sync_folder(path)
    except OSError as error:
        raise write_failed(error, path, "sync") from error


def remove_file(path: Path) -> None:
    """Remove a file, if it is there."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise write_failed(error, path, "remove") from error


def foreign_entry(error: safe_files.NotOurs) -> ForeignOutput:
    """Return the error for an entry of an output that no run has made."""
    return ForeignOutput(
        f"{error.filename} is not opened: {error.strerror}. Headrace would write and remove files in another place, "
        "so nothing was touched: remove it, or choose another output."
    )
