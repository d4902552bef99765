"""Ray's ``ray.util.metrics``: names that count in their own process; nobody collects them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class Metric:
    """A number by tags; ``values`` has what this process has counted.

    >>> seen = Counter("seen", tag_keys=("kind",))
    >>> seen.inc(2, tags={"kind": "cat"})
    >>> seen.values
    {(('kind', 'cat'),): 2.0}
    """

    def __init__(
        self, name: str, description: str = "", boundaries: Any = None, tag_keys: Sequence[str] = ()
    ) -> None:
        self.info = {"name": name, "description": description, "tag_keys": tuple(tag_keys)}
        self._tags: dict[str, str] = {}
        self.values: dict[Any, float] = {}

    def set_default_tags(self, default_tags: Mapping[str, str]) -> Metric:
        """Say tags that each value has."""
        self._tags = dict(default_tags)
        return self

    def set(self, value: float, tags: Mapping[str, str] | None = None) -> None:
        """Keep a value."""
        self.values[tuple({**self._tags, **(tags or {})}.items())] = float(value)

    def inc(self, value: float = 1.0, tags: Mapping[str, str] | None = None) -> None:
        """Add to the value."""
        self.set(self.values.get(tuple({**self._tags, **(tags or {})}.items()), 0.0) + value, tags)

    observe = set


class Counter(Metric):
    """Grows."""


class Gauge(Metric):
    """Goes up and down."""


class Histogram(Metric):
    """Keeps the last value of each."""
