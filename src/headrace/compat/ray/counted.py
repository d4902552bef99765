"""Ray's ``ray.util.metrics`` and ``tqdm_ray``: they count in their own process, and nobody collects or draws it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
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


Counter = Gauge = Histogram = Metric


# Ray's ``ray.experimental.tqdm_ray``: bars of ``tqdm`` that are not drawn, as lines of workers would tear them.


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
