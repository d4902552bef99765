"""Ray's ``ray.util.multiprocessing``: the pool of the standard library, whose calls run on the executor."""

from __future__ import annotations

import functools
import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from headrace.compat.ray.calls import cancel, get, wait
from headrace.compat.ray.remote import RemoteFunction
from headrace.compat.ray.session import cluster_resources, init, is_initialized

TimeoutError = multiprocessing.TimeoutError


class AsyncResult:
    """What ``apply_async`` and its like return."""

    def __init__(
        self, refs: Sequence[Any], found: Callable[[list[Any]], Any], then: Any, otherwise: Any
    ) -> None:
        self._refs, self._found = list(refs), found
        if then is not None or otherwise is not None:
            import threading

            threading.Thread(target=self._tell, args=(then, otherwise), daemon=True).start()

    def get(self, timeout: float | None = None) -> Any:
        """Return the result, or raise what was raised; ``TimeoutError`` after ``timeout`` seconds."""
        self.wait(timeout)
        if not self.ready():
            raise TimeoutError
        return self._found(get(self._refs))

    def wait(self, timeout: float | None = None) -> None:
        """Wait until it is there, or for so many seconds."""
        wait(self._refs, num_returns=len(self._refs), timeout=timeout)

    def ready(self) -> bool:
        """Whether it is there."""
        return not self._refs or len(wait(self._refs, num_returns=len(self._refs), timeout=0)[0]) == len(
            self._refs
        )

    def successful(self) -> bool:
        """Whether nothing was raised; ``ValueError`` before it is there."""
        if not self.ready():
            raise ValueError("The result is not there yet.")
        try:
            get(self._refs)
        except Exception:
            return False
        return True

    def _tell(self, then: Any, otherwise: Any) -> None:
        try:
            found = self.get()
        except Exception as error:
            if otherwise is not None:
                otherwise(error)
        else:
            if then is not None:
                then(found)


class Pool:
    """``multiprocessing.Pool`` by Ray's name; its workers are those of the executor.

    ``initializer`` runs once in each worker process that the pool uses. How many calls run at a time is the
    executor's to say; ``processes`` counts where the pool is the first to use it.

    >>> from headrace.compat import ray
    >>> with Pool(2) as pool:
    ...     pool.map(abs, [-1, 2])
    [1, 2]
    >>> ray.shutdown()
    """

    def __init__(
        self,
        processes: int | None = None,
        initializer: Callable[..., Any] | None = None,
        initargs: Iterable[Any] = (),
        maxtasksperchild: int | None = None,
        context: Any = None,
        ray_address: str | None = None,
        ray_remote_args: Mapping[str, Any] | None = None,
    ) -> None:
        if not is_initialized():
            init(ray_address, num_cpus=processes)
        self._processes = processes or max(1, int(cluster_resources().get("CPU", 1)))
        self._begin = (object().__hash__(), initializer, tuple(initargs))
        self._options = dict(ray_remote_args or {})
        self._open, self._refs = True, list[Any]()

    def apply(self, func: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function, and wait for the result."""
        return self.apply_async(func, args, kwargs).get()

    def apply_async(
        self, func: Any, args: Any = (), kwargs: Any = None, callback: Any = None, error_callback: Any = None
    ) -> AsyncResult:
        """Call a function."""
        calls = [(tuple(args or ()), dict(kwargs or {}))]
        return AsyncResult(self._refs_of(func, calls, 1), lambda all_: all_[0][0], callback, error_callback)

    def map(self, func: Any, iterable: Any, chunksize: int | None = None) -> list[Any]:
        """Call a function for each item; the results in their order."""
        return list(self.map_async(func, iterable, chunksize).get())

    def map_async(
        self,
        func: Any,
        iterable: Any,
        chunksize: int | None = None,
        callback: Any = None,
        error_callback: Any = None,
    ) -> AsyncResult:
        """Call a function for each item."""
        return self._all(func, [((item,), {}) for item in iterable], chunksize, callback, error_callback)

    def starmap(self, func: Any, iterable: Any, chunksize: int | None = None) -> list[Any]:
        """Call a function for each tuple of arguments; the results in their order."""
        return list(self.starmap_async(func, iterable, chunksize).get())

    def starmap_async(
        self,
        func: Any,
        iterable: Any,
        chunksize: int | None = None,
        callback: Any = None,
        error_callback: Any = None,
    ) -> AsyncResult:
        """Call a function for each tuple of arguments."""
        return self._all(func, [(tuple(item), {}) for item in iterable], chunksize, callback, error_callback)

    def imap(self, func: Any, iterable: Any, chunksize: int | None = 1) -> Iterator[Any]:
        """Yield the result for each item, in their order."""
        for ref in self._refs_of(func, [((item,), {}) for item in iterable], chunksize or 1):
            yield from get(ref)

    def imap_unordered(self, func: Any, iterable: Any, chunksize: int | None = 1) -> Iterator[Any]:
        """Yield the result for each item, as they come."""
        left = self._refs_of(func, [((item,), {}) for item in iterable], chunksize or 1)
        while left:
            (done,), left = wait(left)
            yield from get(done)

    def close(self) -> None:
        """Take no more calls."""
        self._open = False

    def terminate(self) -> None:
        """Take no more calls, and cancel those that are not done."""
        self._open = False
        for ref in self._refs:
            cancel(ref)

    def join(self) -> None:
        """Wait until all calls are done."""
        if self._open:
            raise ValueError("Pool is still running")
        if self._refs:
            wait(self._refs, num_returns=len(self._refs))

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: Any) -> None:
        self.terminate()

    def _all(self, func: Any, calls: Any, chunksize: int | None, then: Any, otherwise: Any) -> AsyncResult:
        size = chunksize or max(1, -(-len(calls) // (4 * self._processes)))
        return AsyncResult(
            self._refs_of(func, calls, size),
            lambda chunks: [each for chunk in chunks for each in chunk],
            then,
            otherwise,
        )

    def _refs_of(self, func: Any, calls: Sequence[Any], size: int) -> list[Any]:
        if not self._open:
            raise ValueError("Pool not running")
        remote = RemoteFunction(functools.partial(_call_each, self._begin, func), self._options)
        refs = [remote.remote(calls[first : first + size]) for first in range(0, len(calls), size)]
        self._refs = [ref for ref in self._refs if not wait([ref], timeout=0)[0]] + refs
        return refs


_begun: set[int] = set()  # the pools whose initializer this process has called


def _call_each(begin: tuple[int, Any, tuple[Any, ...]], function: Any, calls: Sequence[Any]) -> list[Any]:
    pool, initializer, initargs = begin
    if initializer is not None and pool not in _begun:
        _begun.add(pool)
        initializer(*initargs)
    return [function(*args, **kwargs) for args, kwargs in calls]
