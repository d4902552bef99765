"""Which calls may run now. Pure: no process, no clock."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.core.engine_ports import Devices, Seat
from headrace.core.human import given_bytes, given_count, size
from headrace.core.terminal import warn
from headrace.errors import UnknownArgument, nearest
from headrace.plan.parameters import given_number

MAX_OVERTAKEN = 16  # how many later requests may be admitted before one that does not fit; then none is
WARN_AFTER = 5.0  # seconds after which a request for what only actors have is worth a warning
_EPSILON = 1e-9


@dataclass(frozen=True, slots=True)
class Needs:
    """What one call or one actor takes while it runs: cores, devices, bytes, and named ``resources``."""

    num_cpus: float = 1.0
    num_gpus: float = 0.0
    memory: int = 0
    resources: tuple[tuple[str, float], ...] = ()

    def __str__(self) -> str:
        parts = [f"{size(self.memory)} of memory"] * bool(self.memory)
        parts += [_gpus(self.num_gpus)] * bool(self.num_gpus)
        parts += [f"{self.num_cpus:g} cores"] * bool(self.num_cpus)
        parts += [f"{amount:g} {name}" for name, amount in self.resources]
        return ", ".join(parts) or "nothing"


@dataclass(slots=True)
class _Group:
    """Requests for the same: only the first can be admitted, so only it is looked at."""

    needs: Needs
    for_actor: bool
    depth: int
    waiting: deque[tuple[int, Hashable]] = field(default_factory=deque)
    overtaken: int = 0  # how often the first request was


class Admission:
    """First come, first served, of ``cpus`` cores, ``memory`` bytes and ``gpus`` devices.

    Memory and devices are hard. Cores are advice: a call runs if nothing else does, and actors, which stay, only
    leave fewer cores to calls, one at least. A request that does not fit is overtaken by later ones that do, up to
    ``MAX_OVERTAKEN`` times; then what becomes free is reserved for it.

    >>> admission = Admission(cpus=2, memory=100)
    >>> for name, memory in [("a", 60), ("b", 60), ("c", 40)]:
    ...     admission.request(name, Needs(memory=memory))
    >>> admission.ready()
    [('a', ()), ('c', ())]
    >>> admission.release("a")
    >>> admission.ready()
    [('b', ())]
    """

    def __init__(
        self, cpus: float, memory: int, gpus: int = 0, resources: Mapping[str, float] | None = None
    ) -> None:
        self.cpus = cpus
        self.resources = dict(resources or {})
        self._free_resources = dict(self.resources)
        self.memory = memory
        self.gpus = gpus
        self._devices = Devices(gpus)
        self._numbers = iter(range(1 << 62))
        self._groups: dict[tuple[Needs, bool, int], _Group] = {}
        self._held: dict[Hashable, tuple[Needs, bool, Seat]] = {}
        self._withdrawn: set[Hashable] = set()
        self._paused: set[Hashable] = set()
        self._waiting = 0
        self._running = 0
        self._used_cpus = 0.0
        self._actor_cpus = 0.0
        self._used_memory = 0

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return self._waiting

    @property
    def free(self) -> Needs:
        """What is free: cores and bytes; and devices, parts of them added up."""
        held = sum(needs.num_gpus for needs, _, _ in self._held.values())
        cpus = max(0.0, self.cpus - self._used_cpus - self._actor_cpus)
        named = tuple(self._free_resources.items())
        return Needs(cpus, max(0.0, self.gpus - held), self.memory - self._used_memory, named)

    def refusal(self, needs: Needs, workers: int = 1) -> str:
        """Say why this can never run ``workers`` times at once, with the numbers; empty if it can."""
        if needs.memory * workers > self.memory:
            return f"{_times(workers)}{size(needs.memory)} of memory, and there are {size(self.memory)}"
        if needs.num_gpus and Devices(self.gpus).take(needs.num_gpus, workers) is None:
            there = f"there {'is' if self.gpus == 1 else 'are'} {self.gpus or 'none'}"
            return f"{_times(workers)}{_gpus(needs.num_gpus)}, and {there}"
        for name, amount in needs.resources:
            if amount * workers > self.resources.get(name, 0.0) + _EPSILON:
                there = f"there are {self.resources.get(name, 0.0):g}"
                return f"{_times(workers)}{amount:g} of the resource {name!r}, and {there}"
        return ""

    def request(self, key: Hashable, needs: Needs, *, for_actor: bool = False, depth: int = 0) -> None:
        """Queue a request, of a call or for an actor. ``depth``: how many calls may wait for it, one for the next.

        The deeper ones come first: so few calls wait at a time.
        """
        kind = (needs, for_actor, depth)
        group = self._groups.setdefault(kind, _Group(*kind))
        group.waiting.append((next(self._numbers), key))
        self._waiting += 1

    def withdraw(self, key: Hashable) -> None:
        """Remove a request that waits."""
        self._withdrawn.add(key)
        self._waiting -= 1

    def ready(self) -> list[tuple[Hashable, Seat]]:
        """Admit the requests that fit: return their keys, and the devices of each."""
        admitted: list[tuple[Hashable, Seat]] = []
        while (found := self._next()) is not None:
            group, key, seat = found
            self._admit(key, group, seat)
            admitted.append((key, seat))
        return admitted

    def blocked_by_actors(self) -> Needs | None:
        """Return what a request needs that waits for memory or devices that only actors hold, if one does."""
        if self._running:
            return None
        first = min(
            (group for group in self._groups.values() if self._has_waiting(group)), key=_turn, default=None
        )
        return first.needs if first is not None and self._held else None

    def release(self, key: Hashable) -> None:
        """A call or an actor has ended: what it had is free."""
        needs, for_actor, seat = self._held.pop(key)
        self._used_memory -= needs.memory
        for name, amount in needs.resources:
            self._free_resources[name] += amount
        self._devices.give([seat] if seat else [], needs.num_gpus)
        if for_actor:
            self._actor_cpus -= needs.num_cpus
        elif key in self._paused:
            self._paused.discard(key)
        else:
            self._used_cpus -= needs.num_cpus
            self._running -= 1

    # ------------------------------------------------------------ calls that wait

    def pause(self, key: Hashable) -> None:
        """A call waits for others: until ``resume``, they may have its cores. Devices and memory it keeps."""
        self._paused.add(key)
        self._used_cpus -= self._held[key][0].num_cpus
        self._running -= 1

    def resume(self, key: Hashable) -> None:
        """A call goes on; for a while, more cores than there are may be used."""
        if key not in self._paused:
            return
        self._paused.discard(key)
        self._used_cpus += self._held[key][0].num_cpus
        self._running += 1

    def _next(self) -> tuple[_Group, Hashable, Seat] | None:
        """Return the request to admit next, and count those that it overtakes."""
        passed: list[_Group] = []
        groups = [group for group in self._groups.values() if self._has_waiting(group)]
        for group in sorted(groups, key=_turn) if len(groups) > 1 else groups:
            seat = self._seat(group)
            if seat is not None:
                for other in passed:
                    other.overtaken += 1
                return group, group.waiting[0][1], seat
            if group.overtaken >= MAX_OVERTAKEN:
                return None
            passed.append(group)
        return None

    def _has_waiting(self, group: _Group) -> bool:
        """Say whether a request waits in a group, past those that were withdrawn."""
        while group.waiting and group.waiting[0][1] in self._withdrawn:
            self._withdrawn.discard(group.waiting.popleft()[1])
            group.overtaken = 0
        return bool(group.waiting)

    def _seat(self, group: _Group) -> Seat | None:
        """Return the devices for one more of a group, counted as taken; None if there is no room."""
        needs = group.needs
        if self._used_memory + needs.memory > self.memory:
            return None
        if any(amount > self._free_resources[name] + _EPSILON for name, amount in needs.resources):
            return None
        if not group.for_actor and self._running:
            for_calls = max(1.0, self.cpus - self._actor_cpus)
            if self._used_cpus + needs.num_cpus > for_calls + _EPSILON:
                return None
        if not needs.num_gpus:
            return ()
        seats = self._devices.take(needs.num_gpus, 1)
        return seats[0] if seats is not None else None

    def _leave(self, group: _Group) -> None:
        """The first of a group waits no longer."""
        group.waiting.popleft()
        group.overtaken = 0
        if not group.waiting:
            del self._groups[group.needs, group.for_actor, group.depth]
        self._waiting -= 1

    def _admit(self, key: Hashable, group: _Group, seat: Seat) -> None:
        self._leave(group)
        self._held[key] = group.needs, group.for_actor, seat
        self._used_memory += group.needs.memory
        for name, amount in group.needs.resources:
            self._free_resources[name] -= amount
        if group.for_actor:
            self._actor_cpus += group.needs.num_cpus
        else:
            self._used_cpus += group.needs.num_cpus
            self._running += 1


class BlockedRequests:
    """Warns, once, of a request that waits for what only actors have."""

    def __init__(self, admission: Admission, clock: Callable[[], float]) -> None:
        self._admission = admission
        self._clock = clock
        self._since: float | None = None
        self._warned = False

    def advance(self) -> float | None:
        """Warn if it is time to; return in how many seconds to ask again, if at all."""
        needs = None if self._warned else self._admission.blocked_by_actors()
        if needs is None:
            self._since = None
            return None
        now = self._clock()
        self._since = now if self._since is None else self._since
        if now - self._since < WARN_AFTER:
            return WARN_AFTER
        self._warned = True
        with contextlib.suppress(Warning):  # where warnings are errors, the dispatcher must go on
            warn(
                f"A call or actor that needs {needs} waits for resources that actors hold, and nothing else runs: "
                "delete the handles of actors that are not needed any more.",
            )
        return None


def _gpus(number: float) -> str:
    return f"{number:g} GPU{'s' * (number != 1)}"


def _times(workers: int) -> str:
    return f"{workers} × " if workers > 1 else ""


def _turn(group: _Group) -> tuple[int, int]:
    return -group.depth, group.waiting[0][0]


CALL_RETRIES = 3
LEAST_CPUS = 1 / 16  # so that calls that need next to nothing do not become processes without end


@dataclass(frozen=True, slots=True)
class CallOptions:
    """What ``options`` of an executor set; None: not set."""

    num_cpus: float | None = None
    num_gpus: float | None = None
    memory: int | None = None
    max_retries: int | None = None
    num_returns: int | str | None = None
    strict: bool = False  # arrays among the arguments are read-only
    resources: tuple[tuple[str, float], ...] = ()  # by Ray's names only

    def updated(self, where: str, changes: Mapping[str, Any]) -> CallOptions:
        """Return the options with ``changes``, checked."""
        check_known(where, changes, ("num_cpus", "num_gpus", "memory", "max_retries", "num_returns"))
        read: dict[str, Any] = {}
        for name, value in changes.items():
            if value is None:
                read[name] = None
            elif name == "memory":
                read[name] = given_bytes(name, value)
            elif name == "num_returns":
                read[name] = given_returns(value)
            elif name == "max_retries":
                read[name] = given_retries(name, value)
            else:
                read[name] = given_number(name, value)
        return replace(self, **read)

    def needs(self, *, default_cpus: float) -> Needs:
        """Return what one call needs."""
        cpus = default_cpus if self.num_cpus is None else self.num_cpus
        return Needs(cpus, self.num_gpus or 0.0, self.memory or 0, self.resources)


def check_known(where: str, given: Mapping[str, Any], known: Sequence[str]) -> None:
    """Raise ``UnknownArgument``, with the nearest right name, for a name that is not ``known``."""
    for name in given:
        if name not in known:
            hint = nearest(name, known) or f" It takes: {', '.join(known)}."
            raise UnknownArgument(f"{where}() has no argument {name!r}.{hint}")


def given_returns(value: Any) -> int | str | None:
    """Read how many results a call has: a number, or ``"streaming"`` for as many as it yields."""
    if value in ("streaming", "dynamic", "stream"):
        return "stream"
    count = given_count("num_returns", value, besides=", or 'streaming'")
    return None if count == 1 else count


def given_retries(name: str, value: Any) -> int:
    """Read how often something is done again: a number, or -1 for as often as need be."""
    return given_count(name, value, -1, besides=", which is without end")
