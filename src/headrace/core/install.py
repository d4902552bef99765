"""Libraries that are missing: the words that say how to install one, and an import that says them."""

from __future__ import annotations

import importlib
from typing import Any

from headrace.errors import MissingLibrary

# What pip is given: the folder of a clone; "headrace" as soon as that name on the index is this project.
DISTRIBUTION = "."


def install_hint(extra: str) -> str:
    """Return the command that installs an extra of this distribution, and where to run it.

    >>> print(install_hint("torch"))
    in a clone of Headrace, run: pip install ".[torch]"
    """
    command = f'pip install "{DISTRIBUTION}[{extra}]"'
    return f"in a clone of Headrace, run: {command}" if DISTRIBUTION == "." else command


_PACKAGES = {"libarchive": "libarchive-c", "smbclient": "smbprotocol"}  # by module; most are named alike


def needed_by(what: str, error: ImportError) -> str:
    """Return what to install for something that another library opens, and for which it could not import a module.

    >>> print(needed_by("hf://", ModuleNotFoundError(name="huggingface_hub")))
    hf:// needs the package huggingface_hub, which is not installed: pip install huggingface_hub
    """
    module: str = ""
    cause: BaseException | None = error
    while isinstance(cause, ImportError):
        module = (cause.name or module).partition(".")[0]
        cause = cause.__cause__ or cause.__context__
    if not module:
        return f"{what} needs a package that is not installed: {error}"
    package = _PACKAGES.get(module, module)
    return f"{what} needs the package {package}, which is not installed: pip install {package}"


def library(verb: str, name: str, extra: str = "") -> Any:
    """Import a library, or raise with the extra that installs it; default: the one of its name.

    >>> library("to_x", "no_such_library")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    headrace.errors.MissingLibrary: to_x() needs no_such_library, which is not installed: in a clone of Headrace, ...
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        if error.name is None or error.name.partition(".")[0] != name.partition(".")[0]:
            raise  # the library is here, but something that it needs is not
        raise MissingLibrary(
            f"{verb}() needs {name}, which is not installed: {install_hint(extra or name)}."
        ) from None
