"""The ports of an engine: where pools of workers live, what objects in them may ask, and who has which GPU.

Engines have a contract suite in ``headrace.testing``, as the other adapters have.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec

from headrace.core.door import Table
from headrace.core.model_ports import Rates
from headrace.core.work import BlockRef

if TYPE_CHECKING:
    import pyarrow as pa


class Capacity(msgspec.Struct, frozen=True):
    """What a machine has: cores that we may use, bytes of memory that we may fill, GPUs."""

    cpus: int
    memory: int
    gpus: int


class PoolSpec(msgspec.Struct, frozen=True):
    """What a pool is made of: ``factory(context)`` makes the object that each worker hosts.

    ``num_gpus`` is what each worker has for itself, in devices: it sees those and no others, none if it is 0, all
    that the driver sees if it is None. ``most``: the size to which the pool may grow, so that devices are kept free.
    ``devices``: the very ones that each worker sees, where who starts the pool hands them out himself.

    What follows is for engines that place workers on several machines. ``num_cpus``: cores that each worker needs
    (None: what the engine gives to those who say nothing);
    ``least``: how many workers the pool cannot do without (None: all); ``sees``: a file that each has to find;
    ``extra``: what else the engine is told about each.

    ``on_end(worker)`` is called when one has ended.
    """

    name: str
    factory: Callable[[Any], Any]
    size: int = 1
    threads: int = 1
    num_gpus: float | None = None
    memory: int | None = None
    stall_timeout: float = 300.0
    most: int | None = None
    devices: tuple[str, ...] | None = None
    num_cpus: float | None = 1.0
    least: int | None = None
    sees: str = ""
    extra: Mapping[str, Any] = msgspec.field(default_factory=dict)
    on_end: Callable[[int], None] | None = None


class HostedParts:
    """What the object of a worker may have, besides the methods that are called."""

    def close(self) -> None:
        """Let go of everything: the worker ends."""


class DriverLine(Protocol):
    """How the code of a worker may ask its driver for something, while it works."""

    def holder(self, number: int) -> Any:
        """Return what stands for a stored value, a future or an actor of the driver."""
        ...

    def stand_in(self, make: Callable[[int], Any]) -> None:
        """Have ``make(number)`` stand for what the driver has and did not send."""
        ...

    def note_packed(self, note: Any, packed: Any) -> None:
        """As ``notify``, with a packed value beside; closes it. What is notified gets both."""
        ...


def _no_values(number: int, once: bool) -> Any:
    raise LookupError(f"value {number} was never lent to this worker")


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """What a hosted object is told about the worker it lives in, and what it may ask of it.

    ``share(schema, batches)`` lays batches where other workers can read them, and returns a ``BlockRef``;
    ``fetch(ref)`` returns the batches of one, where they lie: they stay valid, and their memory in use, until the
    last reference to them is gone. ``release_unused()`` reports the blocks that are not looked at any more; call it
    now and then. ``preparing(what)`` tells what has to be done before the worker can work, such as loading a model;
    ``""`` that it is done.
    ``here``: it lives in the driver's own process, so that Python objects need not be pickled on their way.
    ``devices`` are the GPUs that it was given, by the names that CUDA knows; None: all that there are. In code that
    runs here they are numbered from 0. ``value(number, once)`` returns a value that the driver keeps and lent to this
    worker; ``once``: it will not be asked for again. ``line``: how calls make calls, where that is possible.
    """

    worker: int
    threads: int
    notify: Callable[[Any], None] = field(repr=False)
    share: Callable[[pa.Schema, Sequence[pa.RecordBatch]], BlockRef] = field(repr=False)
    fetch: Callable[[BlockRef], list[pa.RecordBatch]] = field(repr=False)
    release_unused: Callable[[], None] = field(repr=False)
    preparing: Callable[[str], None] = field(repr=False)
    devices: tuple[str, ...] | None = None
    value: Callable[[int, bool], Any] = field(default=_no_values, repr=False)
    line: DriverLine | None = field(default=None, repr=False)
    here: bool = False


class Pool(Protocol):
    """Identical workers, each hosting one object of the pool's factory."""

    def loads(self) -> dict[int, int]:
        """Return, for each live worker, how many calls it has not yet answered.

        Where workers have to be placed on a cluster, those that are not placed yet are not among them.
        """
        ...

    def submit(self, method: str, *args: Any, worker: int | None = None) -> Future[Any]:
        """Call ``method`` on the object of ``worker`` (default: the least loaded).

        Calls to one worker run one after another in the order of submission. An exception of the method is
        the future's; a worker that ends first gives ``WorkerDied``, ``NeverReady`` if it could not work yet, and
        the pool starts another in its place.
        The future's attribute ``worker`` names the worker.
        """
        ...

    def feed(self, worker: int, *args: Any) -> None:
        """Hand something to the object of ``worker``, whatever it is doing: ``feed(*args)`` is called on it at
        once, from another thread, in the order of feeding. A worker that is gone misses it.

        ``BlockRef``s and ``Block``s among the arguments of ``feed`` and ``submit`` are lent to the worker.
        """
        ...

    def resize(self, size: int, *, keep: Collection[int] = ()) -> None:
        """Grow now, or shrink by ending idle workers, except those in ``keep``; it may stay bigger than asked."""
        ...

    def kill(self, worker: int, reason: str, *, replace: bool = True) -> None:
        """End a worker, if it is one of ours: its calls fail with ``reason``, and another takes its place.

        Without ``replace`` the pool has one worker less from then on, if it had more than one.
        """
        ...

    def memory(self) -> dict[int, int]:
        """Return the private memory of each live worker in bytes, with what it started; {} where nobody can tell.

        What workers share does not count. Called several times a second.
        """
        ...

    def dump(self) -> None:
        """Have every worker print the stacks of its threads to standard error, where it can."""
        ...

    def close(self) -> None:
        """End every worker, at once and without mercy for calls under way. May be called more than once."""
        ...


class Engine(Protocol):
    """A place where pools live: in processes of this machine, unless ``EngineParts.traits`` says otherwise."""

    def start(self, spec: PoolSpec, notify: Callable[[int, Any], None]) -> Pool:
        """Start a pool; ``notify(worker, message)`` gets what hosted objects tell, from another thread.

        It also gets ``BlocksFreed``, when blocks that were lent are not looked at any more.
        """
        ...

    def hold(self, ref: BlockRef) -> None:
        """This block will be lent twice: it stays until the second reader has let go of it, or it is dropped."""
        ...

    def release(self, ref: BlockRef) -> None:
        """Nobody will be lent this block any more: its memory may be used again, once nobody reads it."""
        ...

    def machine(self, worker: int) -> str:
        """Return which machine a worker is on: "" for this one, and where nobody knows."""
        ...

    def close(self, *, kill: bool = False) -> None:
        """Close every pool and give back all memory. May be called more than once.

        With ``kill``, workers are not asked to end.
        """
        ...


# ---------------------------------------------------------------- What a run asks of an engine before it is opened


@dataclass(frozen=True, slots=True)
class EngineTraits:
    """Where an engine's workers are. With neither of the two, they are processes of this machine."""

    in_process: bool = False
    """The one worker is the program's own process: plans are not divided into stages, GPUs need not be there."""

    is_cluster: bool = False
    """Workers are on several machines: the cluster says what there is, places workers, and watches their memory."""


class EngineParts:
    """What the class of an engine may have besides, and what holds for one that has it not."""

    traits: EngineTraits = EngineTraits()

    rates: Callable[[], Rates] | None = None
    """Returns what holds for models on all machines together; None: their workers are on one."""


EngineName = Literal["local", "inline", "ray"]
ENGINES: Table[Any] = Table(
    "engines",
    {
        "local": "headrace.engines.local.pool:LocalEngine",
        "inline": "headrace.engines.inline:InlineEngine",
        "ray": "headrace.annex.ray.pool:RayEngine",
    },
    attributes=("start", "hold", "release", "machine", "close"),
    classes=True,
)
"""Classes of engines by name; ``session/engines.py`` makes objects of them."""


# ---------------------------------------------------------------- GPUs

# Plans count with it, engines hand out by it, so both agree.

_DUST = 1e-9  # thirds do not add up to one

Seat = tuple[int, ...]


class Devices:
    """How much of each of ``count`` devices nobody has yet.

    A seat is what one worker has: whole devices, and for what is left of its share a part of one more. Parts are
    put where the least is left, so that devices stay whole for those who want whole ones.

    >>> devices = Devices(3)
    >>> devices.take(0.5, 2), devices.take(2, 1)
    ([(0,), (0,)], [(1, 2)])
    >>> devices.take(0.5, 1) is None
    True
    """

    def __init__(self, count: int) -> None:
        self._free = [1.0] * count

    def take(self, share: float, workers: int) -> list[Seat] | None:
        """Return a seat with ``share`` devices for each of some workers, and count it as taken; None if they
        do not all fit. The first seats lie on different devices, as far as there are such."""
        before = list(self._free)
        whole = int(share + _DUST)
        part = share - whole if share - whole > _DUST else 0.0
        seats = self._wholes(whole, workers) if whole else [()] * workers
        parts = self._parts(part, len(seats)) if part else [()] * len(seats)
        if len(parts) < workers:
            self._free = before
            return None
        return _spread(seat + rest for seat, rest in zip(seats, parts, strict=True))

    def give(self, seats: Iterable[Seat], share: float) -> None:
        """Take seats back."""
        for seat in seats:
            left = share
            for device in seat:
                self._free[device] += min(1.0, left)
                left -= 1.0

    def _wholes(self, each: int, workers: int) -> list[Seat]:
        idle = [device for device, free in enumerate(self._free) if free > 1 - _DUST]
        seats = [tuple(idle[i * each : (i + 1) * each]) for i in range(min(workers, len(idle) // each))]
        for seat in seats:
            for device in seat:
                self._free[device] = 0.0
        return seats

    def _parts(self, share: float, workers: int) -> list[Seat]:
        seats: list[Seat] = []
        for device in sorted(range(len(self._free)), key=lambda device: self._free[device]):
            here = min(workers - len(seats), int((self._free[device] + _DUST) / share))
            self._free[device] -= here * share
            seats += [(device,)] * here
        return seats


def _spread(seats: Iterable[Seat]) -> list[Seat]:
    """Order seats by how many others on the same devices come before them."""
    ranked: list[tuple[int, Seat]] = []
    seen: dict[Seat, int] = {}
    for seat in seats:
        ranked.append((seen.get(seat, 0), seat))
        seen[seat] = seen.get(seat, 0) + 1
    return [seat for _, seat in sorted(ranked)]
