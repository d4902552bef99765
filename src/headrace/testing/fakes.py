"""Stand-ins that do in one process, and in a fixed order, what the real things do in many."""

from __future__ import annotations

import contextlib
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

from headrace.core import failpoints as points
from headrace.core.door import completed
from headrace.core.engine_ports import HostedParts, PoolSpec
from headrace.core.work import BlockRef, Task
from headrace.engines.inline import InlineBlocks
from headrace.errors import WorkerDied

if TYPE_CHECKING:
    import pyarrow as pa


Notify = Callable[[int, Any], None]
Fault = str | Exception
Faults = Mapping[tuple[int, int], Fault]


@contextlib.contextmanager
def failpoints(faults: Mapping[str, str]) -> Iterator[None]:
    """Make ``faults`` (point → action, see ``headrace.core.failpoints``) active inside the ``with`` block.

    >>> from headrace.core.failpoints import active
    >>> with failpoints({"journal.sync": "EIO@2"}):
    ...     active()
    {'journal.sync': 'EIO@2'}
    >>> active()
    {}
    """
    before = points.active()
    points.activate(faults)
    try:
        yield
    finally:
        points.activate(before)


class FakeClock:
    """A clock that stands still until it is told to go on; call it for the time in seconds."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Let ``seconds`` pass."""
        self.now += seconds


class FakeEngine:
    """An engine whose workers are plain objects of this process, and fail as ``faults`` says.

    ``faults`` maps (shard, attempt) to what becomes of that attempt: ``"die"`` ends its worker before the
    attempt, ``"die after"`` when it is done but nobody knows, an exception is the call's own. ``calls`` notes
    what was asked of whom: (worker, method, shard).
    """

    def __init__(self, faults: Faults | None = None) -> None:
        self.faults = dict(faults or {})
        self.calls: list[tuple[int, str, int | None]] = []
        self.pools: list[FakePool] = []
        self._blocks: dict[int, list[pa.RecordBatch]] = {}
        self._kept: set[int] = set()

    def start(self, spec: PoolSpec, notify: Notify) -> FakePool:
        """See ``Engine.start``."""
        self.pools.append(FakePool(spec, notify, self.faults, self.calls, self._blocks, self._kept))
        return self.pools[-1]

    def hold(self, ref: BlockRef) -> None:
        """See ``Engine.hold``."""
        self._kept.add(ref.number)

    def same_machine(self, worker: int, other: int) -> bool:
        """See ``Engine.same_machine``: there is one machine."""
        return True

    def release(self, ref: BlockRef) -> None:
        """See ``Engine.release``."""
        self._kept.discard(ref.number)
        self._blocks.pop(ref.number, None)

    def close(self, *, kill: bool = False) -> None:
        """See ``Engine.close``."""
        for pool in self.pools:
            pool.close()


class FakePool:
    """A pool of ``spec.size`` objects; a call is done when ``submit`` returns."""

    def __init__(
        self,
        spec: PoolSpec,
        notify: Notify,
        faults: Faults | None = None,
        calls: list[tuple[int, str, int | None]] | None = None,
        blocks: dict[int, list[pa.RecordBatch]] | None = None,
        kept: set[int] | None = None,
    ) -> None:
        self._spec = spec
        self._notify = notify
        self._faults = faults or {}
        self._calls = calls if calls is not None else []
        self._hosted: dict[int, Any] = {}
        self._blocks = InlineBlocks(blocks if blocks is not None else {}, partial(notify, -1), kept)
        self._hired = 0
        self.resize(spec.size)

    def loads(self) -> dict[int, int]:
        """See ``Pool.loads``: nobody is ever busy."""
        return dict.fromkeys(self._hosted, 0)

    def submit(self, method: str, *args: Any, worker: int | None = None) -> Future[Any]:
        """See ``Pool.submit``."""
        if worker is None and self._hosted:
            worker = min(self._hosted)
        future: Future[Any] = Future()
        future.worker = worker  # type: ignore[attr-defined]
        task = args[0] if args and isinstance(args[0], Task) else None
        self._calls.append((-1 if worker is None else worker, method, task.shard.index if task else None))
        fault = self._faults.get((task.shard.index, task.attempt)) if task else None
        if worker not in self._hosted:
            future.set_exception(WorkerDied(f"worker {worker} is gone"))
        elif fault == "die":
            self._remove_dead(worker, future)
        elif isinstance(fault, Exception):
            future.set_exception(fault)
        else:
            try:
                result = getattr(self._hosted[worker], method)(*args)
                result = result.result() if isinstance(result, Future) else result
                self._blocks.release_unused()
            except Exception as error:
                future.set_exception(error)
            else:
                if fault == "die after":
                    self._remove_dead(worker, future)
                else:
                    future.set_result(result)
        return future

    def feed(self, worker: int, *args: Any) -> None:
        """See ``Pool.feed``."""
        if worker in self._hosted:
            self._hosted[worker].feed(*args)

    def _remove_dead(self, worker: int, future: Future[Any]) -> None:
        del self._hosted[worker]
        self.resize(self._spec.size)
        future.set_exception(WorkerDied(f"worker {worker} died as the test asked"))

    def resize(self, size: int, *, keep: Collection[int] = ()) -> None:
        """See ``Pool.resize``."""
        while len(self._hosted) < size:
            number, self._hired = self._hired, self._hired + 1
            context = self._blocks.context(number, self._spec.threads, partial(self._notify, number))
            self._hosted[number] = self._spec.factory(context)
        while len(self._hosted) > size:
            self._end(max(self._hosted))

    def kill(self, worker: int, reason: str, *, replace: bool = True) -> None:
        """See ``Pool.kill``: its calls are done already, so nobody misses it."""
        if worker in self._hosted:
            size = len(self._hosted)
            del self._hosted[worker]
            self.resize(size if replace else max(1, size - 1))

    def memory(self) -> dict[int, int]:
        """See ``Pool.memory``: nobody takes any."""
        return {}

    def dump(self) -> None:
        """See ``Pool.dump``: nobody is at anything."""

    def close(self) -> None:
        """See ``Pool.close``."""
        for worker in list(self._hosted):
            self._end(worker)

    def _end(self, worker: int) -> None:
        completed(self._hosted.pop(worker), HostedParts).close()


# ------------------------------------------------------------ language models


class SimulatedLLMEngine:
    """Works on at most ``slots`` requests at a time, a token of each in a step; a request is how many it takes.

    Parameters
    ----------
    slots
        How many requests it works on at a time.
    memory
        For how many of them it has memory; None: for all.
    stops_after
        After so many steps it raises ``RuntimeError``; None: never.

    ``steps`` counts its steps, ``worked`` the tokens that it made; ``most_inside`` and ``most_running`` say how many
    requests were in it, and at work, at most.

    >>> engine = SimulatedLLMEngine(2)
    >>> for number, length in enumerate([3, 1, 2]):
    ...     engine.add(number, length)
    >>> [engine.step() for _ in range(3)]
    [[(1, 1)], [], [(0, 3), (2, 2)]]
    """

    def __init__(self, slots: int, *, memory: int | None = None, stops_after: int | None = None) -> None:
        self._slots = min(slots, memory or slots)
        self._stops_after = stops_after
        self._waiting: deque[tuple[int, int]] = deque()
        self._running: list[tuple[int, int, int]] = []  # when it ends, number, length
        self._ledger: list[int] = []  # how many were worked on in each step
        self._last_begin = 0
        self.steps = self.worked = self.most_inside = self.most_running = 0
        self.aborted: list[int] = []
        self.closed = False

    def add(self, number: int, request: int) -> None:
        """Take a request; raises ``ValueError`` for a length below 1."""
        if request < 1:
            raise ValueError(f"a request of {request} tokens")
        self._waiting.append((number, request))
        self.most_inside = max(self.most_inside, len(self._waiting) + len(self._running))

    def step(self) -> Sequence[tuple[int, int]]:
        """Make one token for each request at work; return those that ended."""
        if self.steps == self._stops_after:
            raise RuntimeError("the engine stops")
        while self._waiting and len(self._running) < self._slots:
            number, length = self._waiting.popleft()
            heappush(self._running, (self.steps + length, number, length))
            self._last_begin = self.steps
        self.steps += 1
        running = len(self._running)
        self._ledger.append(running)
        self.worked += running
        self.most_running = max(self.most_running, running)
        ended = []
        while self._running and self._running[0][0] <= self.steps:
            _, number, length = heappop(self._running)
            ended.append((number, length))
        return ended

    def busy_until_last_begin(self) -> tuple[int, int]:
        """Return how many slots were busy, summed over the steps before the last request began, and these steps."""
        return sum(self._ledger[: self._last_begin]), self._last_begin

    def abort(self, numbers: Sequence[int]) -> None:
        """Forget requests."""
        self.aborted += numbers
        gone = set(numbers)
        self._waiting = deque(each for each in self._waiting if each[0] not in gone)
        self._running = sorted(each for each in self._running if each[1] not in gone)

    def close(self) -> None:
        """End."""
        self.closed = True


class SimulatedPrefixCache:
    """A cache of what was computed for the beginnings of prompts, in blocks of tokens; the oldest are let go.

    Parameters
    ----------
    blocks
        How many blocks it holds.
    block_tokens
        How many tokens are in one.

    ``looked`` counts the whole blocks of all prompts, ``hits`` those that were there.

    >>> cache = SimulatedPrefixCache(blocks=4, block_tokens=2)
    >>> for prompt in ["a b c d", "a b x y", "a b c d"]:
    ...     cache.look_up(prompt.split())
    >>> cache.looked, cache.hits
    (6, 3)
    """

    def __init__(self, blocks: int, block_tokens: int = 16) -> None:
        self._blocks, self._block_tokens = blocks, block_tokens
        self._known: OrderedDict[tuple[str, ...], None] = OrderedDict()
        self.looked = self.hits = 0

    def look_up(self, tokens: Sequence[str]) -> None:
        """Take a prompt: find how much of its beginning is there, and keep it."""
        beginning: tuple[str, ...] = ()
        found = True
        for start in range(0, len(tokens) - self._block_tokens + 1, self._block_tokens):
            beginning = (str(hash((beginning, tuple(tokens[start : start + self._block_tokens])))),)
            found = found and beginning in self._known
            self.looked += 1
            self.hits += found
            self._known[beginning] = None
            self._known.move_to_end(beginning)
            if len(self._known) > self._blocks:
                self._known.popitem(last=False)
