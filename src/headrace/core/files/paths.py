"""Paths as they are given: brought into their full form, or refused where no file can have such a name."""

from __future__ import annotations

import errno
import os

from headrace.errors import ArgumentError

_NEVER = (errno.ENAMETOOLONG, errno.ELOOP)
_SHOWN = 200


def absolute(path: str, what: str) -> str:
    """Return the full form of a path; ``what`` it is, such as "The output path", for messages.

    >>> absolute("/data/../out", "The output path")
    '/out'
    >>> absolute("a\\0b", "The output path")
    Traceback (most recent call last):
    headrace.errors.ArgumentError: The output path 'a\\x00b' has a NUL character in it, which no file name has.
    """
    shown = repr(path if len(path) <= _SHOWN else f"{path[:_SHOWN]}…")
    if "\0" in path:
        raise ArgumentError(f"{what} {shown} has a NUL character in it, which no file name has.")
    expanded = os.path.expanduser(path)
    full = os.path.normpath(expanded if os.path.isabs(expanded) else os.path.join(here(), expanded))
    try:
        os.lstat(full)
    except UnicodeEncodeError:
        raise ArgumentError(f"{what} {shown} has a character that no file name has.") from None
    except OSError as error:
        if error.errno in _NEVER:
            raise ArgumentError(f"{what} {shown} cannot be used: {error.strerror}.") from error
    return full


def here() -> str:
    """Return the present folder."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise ArgumentError(
            "The folder in which this program runs was removed: go to another one (cd), or give full paths."
        ) from None
