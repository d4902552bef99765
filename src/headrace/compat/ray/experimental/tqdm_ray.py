"""Ray's ``ray.experimental.tqdm_ray``: bars of ``tqdm`` that are not drawn, as lines of workers would tear them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any

from headrace.core.terminal import say


class tqdm:
    """Counts, and draws nothing.

    >>> [x for x in tqdm(range(2), desc="rows")]
    [0, 1]
    """

    def __init__(
        self, iterable: Iterable[Any] | None = None, desc: str = "", total: int | None = None, **_: Any
    ):
        self._iterable, self.desc, self.total, self.n = iterable, desc, total, 0

    def __iter__(self) -> Iterator[Any]:
        for each in self._iterable or ():
            self.n += 1
            yield each

    def update(self, n: int = 1) -> None:
        """Count ``n`` more."""
        self.n += n

    def set_description(self, desc: str) -> None:
        """Name it."""
        self.desc = desc

    def close(self) -> None:
        """Nothing is left open."""


def safe_print(*args: Any, **kwargs: Any) -> None:
    """Print: there is no bar to tear."""
    say(kwargs.get("sep", " ").join(map(str, args)), kwargs.get("file") or sys.stdout)
