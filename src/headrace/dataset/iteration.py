"""What ``iter_batches`` and its like return: rows that can be iterated over again and again."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Generator, Iterable, Iterator
from types import GeneratorType
from typing import Any, Generic, TypeVar

import msgspec

from headrace.core.arguments import drop_our_frames, unframed
from headrace.errors import ArgumentError, HeadraceError, NotASequence
from headrace.plan.parameters import given_rows

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


# ---------------------------------------------------------------- rows out of order, within a buffer


class LocalShuffle(msgspec.Struct, frozen=True):
    """How a reader wants rows shuffled: out of at least ``rows`` at a time, by ``seed`` (None: by chance)."""

    rows: int
    seed: int | None

    @classmethod
    def given(cls, rows: Any, seed: Any, batch_size: int | None) -> LocalShuffle | None:
        """Read the arguments of a verb; None if nothing is to be shuffled."""
        if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool) or seed < 0):
            raise ArgumentError(f"local_shuffle_seed={seed!r}: it takes a whole number, zero or more.")
        if rows is None:
            return None
        if given_rows(None, "local_shuffle_buffer_size", rows) < 1:
            raise ArgumentError("local_shuffle_buffer_size=0: it takes a number of rows above zero.")
        if batch_size is None:
            raise ArgumentError("local_shuffle_buffer_size= needs a batch_size= that is a number.")
        return cls(int(rows), seed)

    def over(self, batches: Iterator[Any], size: int) -> Iterator[Any]:
        """Yield batches of ``size`` rows, each drawn from a buffer that has ``rows`` more as long as more come.

        The same seed gives the same order, however the rows come.
        """
        import numpy as np

        from headrace.core.arrow.batch import taken
        from headrace.worker.rows import Rows, join, rebatch

        draw = np.random.default_rng(self.seed)
        held: Rows | None = None
        for part in rebatch((Rows(batch, ()) for batch in batches), max(self.rows, size)):
            if held is not None and not held.can_join(part):
                yield from _cut(held, size, 0)
                held = None
            held = part if held is None else join([held, part])
            if not len(held):
                yield held.batch
                continue
            held = held.with_batch(taken(held.batch, draw.permutation(len(held))))
            left = self.rows + (len(held) - self.rows) % size if len(held) > self.rows else len(held)
            yield from _cut(held, size, left)
            held = held.cut(len(held) - left, len(held)) if left else None
        if held is not None and len(held):
            yield from _cut(held, size, 0)


def _cut(held: Any, size: int, left: int) -> Iterator[Any]:
    """Yield batches of the first rows, all but ``left``."""
    for at in range(0, len(held) - left, size):
        yield held.cut(at, min(at + size, len(held) - left)).batch
