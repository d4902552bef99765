"""What a call or an actor says that it needs, read and checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headrace.core.human import given_bytes
from headrace.errors import ArgumentError, UnknownArgument, nearest
from headrace.plan.parameters import given_number
from headrace.tasks.admission import Needs

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
        return Needs(cpus, self.num_gpus or 0.0, self.memory or 0)


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
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ArgumentError(f"num_returns={value!r}: it takes a whole number, or 'streaming'.")
    return None if value == 1 else value


def given_retries(name: str, value: Any) -> int:
    """Read how often something is done again: a number, or -1 for as often as need be."""
    if isinstance(value, bool) or not isinstance(value, int) or value < -1:
        raise ArgumentError(f"{name}={value!r}: it takes a whole number, or -1 for without end.")
    return value
