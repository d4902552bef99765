"""Ray's pools, queues and signals, on the executor: ``util.multiprocessing``, ``joblib``, ``queue`` and others."""

from __future__ import annotations

import asyncio
import builtins
import functools
import multiprocessing
import queue
from collections.abc import Callable, Iterable, Mapping, Sequence
from multiprocessing.pool import AsyncResult as AsyncResult
from multiprocessing.pool import ThreadPool
from typing import Any

import headrace
from headrace.compat.ray.calls import cancel, get, kill
from headrace.compat.ray.exceptions import as_ray_raises
from headrace.compat.ray.remote import ActorClass, RemoteFunction
from headrace.compat.ray.session import cluster_resources, init, is_initialized
from headrace.errors import ArgumentError

TimeoutError = multiprocessing.TimeoutError


class Pool(ThreadPool):
    """``multiprocessing.Pool`` by Ray's name; its calls run in the workers of the executor.

    The standard library's pool of threads says what is called when; each thread waits for one call. ``initializer``
    runs once in each worker process that the pool uses. ``processes`` says how many calls run at a time, and how many
    cores the executor has where the pool is the first to use it.

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
        self._begin = (object().__hash__(), initializer, tuple(initargs))
        self._options = dict(ray_remote_args or {})
        self._under_way: set[Any] = set()
        super().__init__(processes or max(1, int(cluster_resources().get("CPU", 1))))

    def apply_async(self, func: Any, args: Any = (), kwds: Any = None, *then: Any, **named: Any) -> Any:
        """Call a function."""
        return super().apply_async(self._remotely(func), args or (), kwds or {}, *then, **named)

    def imap(self, func: Any, iterable: Any, chunksize: int | None = 1) -> Any:
        """Yield the result for each item, in their order."""
        return super().imap(self._remotely(func), iterable, chunksize or 1)

    def imap_unordered(self, func: Any, iterable: Any, chunksize: int | None = 1) -> Any:
        """Yield the result for each item, as they come."""
        return super().imap_unordered(self._remotely(func), iterable, chunksize or 1)

    def terminate(self) -> None:
        """Take no more calls, and cancel those that are not done."""
        for ref in list(self._under_way):
            cancel(ref)
        super().terminate()

    def _map_async(self, func: Any, iterable: Any, mapper: Any, *others: Any) -> Any:
        return super()._map_async(func, iterable, self._remotely(mapper), *others)  # type: ignore[misc]

    def _remotely(self, function: Any) -> Callable[..., Any]:
        remote = RemoteFunction(functools.partial(_called_after, self._begin, function), self._options)

        def call(*args: Any, **kwargs: Any) -> Any:
            ref = remote.remote(*args, **kwargs)
            self._under_way.add(ref)
            try:
                return get(ref)
            finally:
                self._under_way.discard(ref)

        return call


_begun: set[int] = set()  # the pools whose initializer this process has called


def _called_after(begin: tuple[int, Any, tuple[Any, ...]], function: Any, *args: Any, **kwargs: Any) -> Any:
    pool, initializer, initargs = begin
    if initializer is not None and pool not in _begun:
        _begun.add(pool)
        initializer(*initargs)
    return function(*args, **kwargs)


# Ray's ``ray.util.joblib``: joblib's calls run on the executor.


def register_ray() -> None:
    """Let ``joblib.parallel_backend("ray")`` use the executor.

    >>> register_ray()
    """
    import joblib
    from joblib._parallel_backends import ParallelBackendBase

    class RayBackend(ParallelBackendBase):  # type: ignore[misc]
        supports_retrieve_callback = True
        supports_timeout = True

        def effective_n_jobs(self, n_jobs: int) -> int:
            cores = max(1, int(cluster_resources().get("CPU", 1)))
            return cores if n_jobs is None or n_jobs < 0 else max(1, min(n_jobs, cores))

        def submit(self, func: Any, callback: Any = None) -> Any:
            future = RemoteFunction(_call, {}).remote(func).future()
            if callback is not None:
                future.add_done_callback(callback)
            return future

        def retrieve_result_callback(self, out: Any) -> Any:
            return out.result()

    joblib.register_parallel_backend("ray", RayBackend)


def _call(function: Any) -> Any:
    return function()


# Ray's ``ray.util.queue``: a queue that lives in an actor.

Empty, Full = queue.Empty, queue.Full


class _Queue:
    """What lives in the actor."""

    def __init__(self, maxsize: int) -> None:
        self._items: asyncio.Queue[Any] = asyncio.Queue(maxsize)

    async def put(self, items: Sequence[Any], timeout: float | None, whole: bool) -> bool:
        """Put the items; say whether there was room within ``timeout`` seconds. ``whole``: for all, or for none."""
        room = self._items.maxsize - self._items.qsize()
        if whole and self._items.maxsize and room < len(items):
            return False
        try:
            for item in items:
                if timeout == 0:
                    self._items.put_nowait(item)
                else:
                    await asyncio.wait_for(self._items.put(item), timeout)
        except (builtins.TimeoutError, asyncio.QueueFull):
            return False
        return True

    async def get(self, count: int, timeout: float | None) -> list[Any] | None:
        """Return so many items, or None if they do not come within ``timeout`` seconds."""
        try:
            if timeout == 0:
                return (
                    [self._items.get_nowait() for _ in range(count)] if count <= self._items.qsize() else None
                )
            return [await asyncio.wait_for(self._items.get(), timeout) for _ in range(count)]
        except builtins.TimeoutError:
            return None

    async def qsize(self) -> int:
        """How many items there are."""
        return self._items.qsize()


class Queue:
    """A queue that may be passed to calls; ``queue.Full`` and ``queue.Empty`` are its errors.

    >>> from headrace.compat import ray
    >>> items = Queue(maxsize=3)
    >>> items.put("a")
    >>> items.get(), items.empty()
    ('a', True)
    >>> ray.shutdown()
    """

    def __init__(self, maxsize: int = 0, actor_options: Mapping[str, Any] | None = None) -> None:
        self.maxsize = maxsize
        self.actor = ActorClass(_Queue, {"num_cpus": 0, **(actor_options or {})}).remote(max(0, maxsize))

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """Put an item; ``Full`` if there is no room within ``timeout`` seconds, or at once without ``block``."""
        self._put([item], _waiting(block, timeout))

    def put_nowait(self, item: Any) -> None:
        """Put an item; ``Full`` if there is no room."""
        self._put([item], 0)

    def put_nowait_batch(self, items: Sequence[Any]) -> None:
        """Put all items, or ``Full``."""
        self._put(list(items), 0)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Take the next item; ``Empty`` if none comes within ``timeout`` seconds, or at once without ``block``."""
        return self._get(1, _waiting(block, timeout))[0]

    def get_nowait(self) -> Any:
        """Take the next item; ``Empty`` if there is none."""
        return self._get(1, 0)[0]

    def get_nowait_batch(self, num_items: int) -> list[Any]:
        """Take so many items; ``Empty`` if there are fewer."""
        return self._get(num_items, 0)

    async def put_async(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """``put``, awaited."""
        if not await self.actor.put.remote([item], _waiting(block, timeout), False):
            raise Full

    async def get_async(self, block: bool = True, timeout: float | None = None) -> Any:
        """``get``, awaited."""
        found = await self.actor.get.remote(1, _waiting(block, timeout))
        if found is None:
            raise Empty
        return found[0]

    def qsize(self) -> int:
        """How many items there are."""
        return int(get(self.actor.qsize.remote()))

    size = qsize

    def __len__(self) -> int:
        return self.qsize()

    def empty(self) -> bool:
        """Whether there are none."""
        return self.qsize() == 0

    def full(self) -> bool:
        """Whether there is no room."""
        return 0 < self.maxsize <= self.qsize()

    def shutdown(self, force: bool = False, grace_period_s: int = 5) -> None:
        """End it; what is left in it is lost."""
        kill(self.actor)

    def _put(self, items: list[Any], timeout: float | None) -> None:
        if not get(self.actor.put.remote(items, timeout, len(items) > 1)):
            raise Full

    def _get(self, count: int, timeout: float | None) -> list[Any]:
        found = get(self.actor.get.remote(count, timeout))
        if found is None:
            raise Empty
        return list(found)


def _waiting(block: bool, timeout: float | None) -> float | None:
    if timeout is not None and timeout < 0:
        raise ArgumentError(f"timeout={timeout!r}: it takes seconds, zero or more.")
    return timeout if block else 0


class RayActorPool(headrace.ActorPool):
    """``headrace.ActorPool``, of actors that there are; what a call raised is a ``RayTaskError``, too."""

    def _wait_for(self, *args: Any) -> Any:
        try:
            return super()._wait_for(*args)
        except Exception as error:
            raised = as_ray_raises(error)
            raise raised from raised.__cause__


ActorPool = RayActorPool  # by Ray's name


class _Signal:
    """What ``SignalActor`` has: ``wait`` returns once ``send`` was called."""

    def __init__(self) -> None:
        self._sent, self._waiting = asyncio.Event(), 0

    def send(self, clear: bool = False) -> None:
        """Let those go on that wait; with ``clear``, the next ones wait again."""
        self._sent.set()
        if clear:
            self._sent.clear()

    async def wait(self, should_wait: bool = True) -> None:
        """Wait for ``send``."""
        self._waiting += 1
        if should_wait:
            await self._sent.wait()
        self._waiting -= 1

    async def cur_num_waiters(self) -> int:
        """How many wait."""
        return self._waiting


SignalActor = ActorClass(_Signal, {"num_cpus": 0})
