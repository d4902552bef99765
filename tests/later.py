"""Modules that are imported when a test first uses them.

Each process of ``pytest -n`` collects all tests, and would import all that stands at the head of their files: of the
largest libraries, each should import what its own tests need.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import pytest


def needs(library: str) -> pytest.MarkDecorator:
    """Pass over all tests of a file without a library, which is not imported to know that it is there."""
    return pytest.mark.skipif(importlib.util.find_spec(library) is None, reason=f"{library} is not installed")


needs_tensorflow = pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is None, reason="TensorFlow has no wheels for every Python"
)


class Later:
    """A module, or something in it (``"module:name"``), which its first use imports."""

    def __init__(self, path: str) -> None:
        self._path = path

    def _it(self) -> Any:
        module, _, name = self._path.partition(":")
        found = importlib.import_module(module)
        return getattr(found, name) if name else found

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("_", "pytest_")):  # pytest looks for marks of its own on all that a file holds
            raise AttributeError(name)
        return getattr(self._it(), name)

    def __call__(self, *args: Any, **named: Any) -> Any:
        return self._it()(*args, **named)
