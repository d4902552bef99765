"""What Ray has and there is not here, and what to say then."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

from millrace.errors import NotOffered, nearest

PAGE = "docs/coming-from-ray.md"


def not_offered(name: str, known: Sequence[str] = (), why: str = "") -> NotOffered:
    """Return the error for a name of Ray's that is not there."""
    last = name.rpartition(".")[2]
    hint = "" if why else nearest(last, known)
    because = f": {why}" if why else ""
    return NotOffered(f"{name} is not offered here{because}.{hint} {PAGE} tells what to do instead.")


def names_of_millrace(module: str, names: Sequence[str]) -> Callable[[str], Any]:
    """Return a module's ``__getattr__`` that looks names up in ``millrace``."""

    def look_up(name: str) -> Any:
        if name in names:
            return getattr(importlib.import_module("millrace"), name)
        raise not_offered(f"{module}.{name}", names)

    return look_up
