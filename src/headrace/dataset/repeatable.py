"""What ``iter_batches`` and its like return: rows that can be iterated over again and again."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Generator, Iterable
from types import GeneratorType
from typing import Generic, TypeVar

from headrace.core.arguments import drop_our_frames, unframed
from headrace.errors import ArgumentError, HeadraceError, NotASequence

T = TypeVar("T")


class RepeatableIterable(Iterable[T], Generic[T]):
    """An iterable: each ``for`` over it runs the plan anew, from the first row, as in Ray Data.

    ``next`` works on it, too, as on an iterator: it takes from one pass, and a ``for`` goes on with what is left
    of that. When that pass has ended, or ``close`` was called, the next one begins at the first row again.

    >>> made = RepeatableIterable(lambda: (n for n in (1, 2, 3)))
    >>> list(made), list(made)
    ([1, 2, 3], [1, 2, 3])
    >>> next(made), list(made), list(made)
    (1, [2, 3], [1, 2, 3])
    """

    __slots__ = ("_begin", "_begun", "_length", "_looped")

    def __init__(
        self,
        begin: Callable[[], Generator[T, None, None]],
        length: Callable[[], int | None] = lambda: None,
    ) -> None:
        """``begin`` starts a pass; ``length`` says how many there are, if that is known without one."""
        self._begin = begin
        self._length = length
        self._begun: Generator[T, None, None] | None = None  # the pass that ``next`` takes from
        self._looped: Callable[[], object] = lambda: None  # the last pass of a ``for``, while somebody has it

    def __iter__(self) -> Generator[T, None, None]:
        begun, self._begun = self._begun, None
        made = _unframed(self._begin()) if begun is None else begun
        self._looped = weakref.ref(made)
        return made

    @unframed
    def __next__(self) -> T:
        if self._begun is None:
            looped = self._looped()
            if isinstance(looped, GeneratorType) and looped.gi_frame is not None:
                raise ArgumentError(
                    "next() here would start again at the first row, while a loop is still running. Use one iterator "
                    "for both: batches = iter(ds.iter_batches()), then for batch in batches, and next(batches)."
                )
            self._begun = _unframed(self._begin())
        try:
            return next(self._begun)
        except BaseException:
            self._begun = None
            raise

    @unframed
    def __len__(self) -> int:
        """Return how many a whole pass yields, where that is known without one."""
        length = self._length()
        if length is None:
            raise NotASequence(
                "How many there will be is not known until the plan has run: count() counts rows."
            )
        return length

    def __bool__(self) -> bool:
        """Return True: whether there is anything is not known before a pass."""
        return True

    def close(self) -> None:
        """End the pass that ``next`` has begun, and its workers."""
        begun, self._begun = self._begun, None
        if begun is not None:
            begun.close()


def _unframed(rows: Generator[T, None, None]) -> Generator[T, None, None]:
    """Yield the same; an error of ours leaves no frame of ours in its traceback."""
    try:
        yield from rows
    except (HeadraceError, KeyboardInterrupt) as error:
        drop_our_frames(error)
        raise
