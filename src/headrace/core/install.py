"""The words that say how to install a library that is missing."""

from __future__ import annotations


def install_hint(extra: str) -> str:
    """Return the commands that install an extra of this distribution: from the index, and in a clone of it.

    >>> print(install_hint("torch"))
    pip install "headrace[torch]" (in a clone of Headrace: pip install ".[torch]")
    """
    return f'pip install "headrace[{extra}]" (in a clone of Headrace: pip install ".[{extra}]")'
