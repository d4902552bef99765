"""Importing a library that a verb needs."""

from __future__ import annotations

import importlib
from typing import Any

from headrace.core.install import install_hint
from headrace.errors import MissingLibrary


def library(verb: str, name: str, extra: str = "") -> Any:
    """Import a library, or raise with the extra that installs it; default: the one of its name.

    >>> library("to_x", "no_such_library")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    headrace.errors.MissingLibrary: to_x() needs no_such_library, which is not installed: pip install "headrace[...
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        if error.name is None or error.name.partition(".")[0] != name.partition(".")[0]:
            raise  # the library is here, but something that it needs is not
        raise MissingLibrary(
            f"{verb}() needs {name}, which is not installed: {install_hint(extra or name)}."
        ) from None
