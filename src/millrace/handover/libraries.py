"""Importing a library that a verb needs."""

from __future__ import annotations

import importlib
from typing import Any

from millrace.errors import MissingLibrary


def library(verb: str, name: str, package: str = "") -> Any:
    """Import a library, or say which package has it.

    >>> library("to_x", "no_such_library")
    Traceback (most recent call last):
    ...
    millrace.errors.MissingLibrary: to_x() needs no_such_library, which is not installed: pip install no_such_library
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        if error.name is None or error.name.partition(".")[0] != name.partition(".")[0]:
            raise  # the library is here, but something that it needs is not
        raise MissingLibrary(
            f"{verb}() needs {name}, which is not installed: pip install {package or name}"
        ) from None
