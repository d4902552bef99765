"""Values of a run's options: what is said of those that make no sense, and a Ray cluster as an engine."""

from __future__ import annotations

import math
import numbers
import os
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from enum import Enum
from typing import Any, get_args

from headrace.core.arguments import known_arguments
from headrace.core.door import completed, fills, lacking
from headrace.core.engine_ports import ENGINES, Engine, EngineParts
from headrace.core.human import given_bytes
from headrace.core.model_ports import Observer
from headrace.errors import ArgumentError, nearest

# ---------------------------------------------------------------- a Ray cluster as an engine

RAY_ADDRESS = "ray://"
_NOT_FOR_RAY = frozenset(
    (
        *("num_cpus", "num_gpus", "memory", "name", "lifetime"),
        *("max_restarts", "max_task_retries", "max_concurrency", "concurrency_groups"),
    )
)


@dataclass(frozen=True, slots=True)
class Ray:
    """A Ray cluster as the engine of a run.

    ``engine="ray"`` and ``engine="ray://head:10001"`` are short forms: ``Ray()`` and ``Ray("ray://head:10001")`` with
    the ``pool_timeout`` and ``allow_unauthenticated`` of the variables ``HEADRACE_POOL_TIMEOUT`` and
    ``HEADRACE_ALLOW_UNAUTHENTICATED``.

    Parameters
    ----------
    address
        ``"ray://host:10001"``; default: the cluster that this process is connected to, or that ``RAY_ADDRESS`` names,
        or that runs on this machine, or one that is started and ends with the program.
    pool_timeout
        Seconds that the cluster has to place the workers without which a stage cannot work (the lower of two bounds,
        else one), or a call or an actor of an executor. After that the run or the call fails.
    allow_unauthenticated
        True: also use a cluster on other machines that does not ask who connects. Default: ``UnsafeCluster``.
    remote_args
        Options of Ray for each worker: ``runtime_env``, ``resources``, ``label_selector``, …. Those of a step, by its
        ``ray_remote_args=``, go before.

    Raises
    ------
    ArgumentError, UnknownArgument
        A value is impossible, or there is no such argument.

    Examples
    --------
    >>> import headrace as hr
    >>> hr.Ray(pool_timeout=60, remote_args={"resources": {"fast_disk": 1}}).pool_timeout
    60
    >>> hr.Ray(adress="ray://head:10001")
    Traceback (most recent call last):
        ...
    headrace.errors.UnknownArgument: Ray() has no argument 'adress'. Did you mean 'address'?
    """

    address: str | None = None
    _: KW_ONLY
    pool_timeout: float = 600.0
    allow_unauthenticated: bool = False
    remote_args: Mapping[str, Any] | None = field(
        default=None, repr=False
    )  # environment variables may be secret

    def __post_init__(self) -> None:
        if self.address is not None and not names_cluster(self.address):
            raise ArgumentError(
                f"Ray({self.address!r}): the address of a cluster is such as 'ray://head:10001'."
            )
        check("pool_timeout", self.pool_timeout, float)
        check("allow_unauthenticated", self.allow_unauthenticated, bool)
        check_ray_remote_args(self.remote_args, "remote_args")

    def __str__(self) -> str:
        return self.address or "ray"


Ray.__init__ = known_arguments(Ray.__init__)  # type: ignore[method-assign]


def names_cluster(value: Any) -> bool:
    """Say whether a value is the address of a cluster."""
    return isinstance(value, str) and value.startswith(RAY_ADDRESS) and len(value) > len(RAY_ADDRESS)


def check_ray_remote_args(value: Any, argument: str = "ray_remote_args") -> None:
    """Refuse what is no dict for Ray, and what is said, or decided, in another way."""
    names = set(value) if isinstance(value, Mapping) else None
    if value is not None and (names is None or not all(isinstance(name, str) for name in names)):
        raise ArgumentError(f"{argument}={value!r}: it takes a dict such as {{'runtime_env': {{...}}}}.")
    if names and names & _NOT_FOR_RAY:
        named = ", ".join(sorted(names & _NOT_FOR_RAY))
        raise ArgumentError(
            f"{argument}: {named}: steps say by num_cpus=, num_gpus= and memory= what their workers need, and "
            "the rest is decided here. It takes runtime_env, resources, label_selector and the like."
        )


_SECONDS = ("pool_timeout", "stall_timeout", "batch_timeout", "commit_every", "keep_template")


def plain(name: str, value: Any) -> Any:
    """Return a number of numpy as one of Python, a size in bytes as a number, and a list of errors as a tuple."""
    if name == "memory_limit" and value is not None:
        return given_bytes(name, value, least=1, whole=True)
    if name in ("retry_on", "observers") and isinstance(value, list):
        return tuple(value)
    if name == "key" and isinstance(value, list | str):
        return (value,) if isinstance(value, str) else tuple(value)
    if not isinstance(value, bool) and isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, str) and isinstance(value, Enum):  # such as Ray's SaveMode
        return value.value
    return value


def check(name: str, value: Any, hint: Any) -> None:
    """Raise ``ArgumentError`` for a value that an option of type ``hint`` cannot have."""
    if name in _CHECKS:
        _CHECKS[name](value)
        return
    choices = get_args(hint)
    if choices and all(isinstance(choice, str) for choice in choices):
        if value not in choices:
            listed = ", ".join(map(repr, choices))
            raise ArgumentError(f"{name}={value!r} is not one of {listed}.{nearest(str(value), choices)}")
    elif bool in choices or hint is bool:
        if not isinstance(value, bool) and not (value is None and choices):
            allowed = "True, False nor None" if choices else "True nor False"
            raise ArgumentError(f"{name}={value!r} is neither {allowed}.")
    elif value is None:
        if type(None) not in choices:
            raise ArgumentError(f"{name}=None: it takes a number.")
    elif name == "max_retries" and type(value) is int and value == 0:
        return
    elif isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise ArgumentError(f"{name}={value!r}: it takes a number above zero.")
    elif name not in _SECONDS and not isinstance(value, int):
        raise ArgumentError(f"{name}={value!r}: it takes a whole number.")


def _check_observers(value: Any) -> None:
    if not isinstance(value, tuple):
        raise ArgumentError(f"observers={value!r}: it takes a list of objects that have on_event(event).")
    for each in value:
        if isinstance(each, type) or not fills(each, Observer):
            raise ArgumentError(f"observers=[{each!r}]: an observer is an object that has on_event(event).")


def _check_refresh(value: Any) -> None:
    if value not in (None, "changed", "rejected"):
        raise ArgumentError(
            f"refresh={value!r}: it is 'changed', 'rejected', or left out; on_change='restart' makes all rows again."
        )


def _check_fix(value: Any) -> None:
    if not (value is None or isinstance(value, str | os.PathLike) or callable(value)) or value == "":
        raise ArgumentError(f"fix={value!r}: it is a function, or the path of a file of repaired rows.")


def _check_key(value: Any) -> None:
    names = value if isinstance(value, tuple) and value else (None,)
    if not all(isinstance(name, str) and name for name in names) or len({*names}) < len(names):
        raise ArgumentError(f"key={value!r}: it is the name of a column, or a list of some, each once.")


def _check_max_errors(value: Any) -> None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    whole = number and value >= 0 and math.isfinite(value) and value == int(value)
    whole = whole and not (isinstance(value, float) and value == 1)  # one row, or all of them?
    share = number and 0 < value < 1
    if value is not None and not whole and not share:
        raise ArgumentError(
            f"max_errors={value!r}: it takes a whole number of rows, or a share of them between 0 and 1."
        )


def _check_retry_on(value: Any) -> None:
    kinds = value if isinstance(value, tuple) else (value,)
    if not all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds):
        raise ArgumentError(
            f"retry_on={value!r}: it takes a class of errors, or a tuple of them, such as (TimeoutError, OSError)."
        )


def _check_engine(value: Any) -> None:
    if value is Ray:
        raise ArgumentError("engine=hr.Ray: that is the class. Give hr.Ray(), or 'ray'.")
    if isinstance(value, type):
        _check_engine_class(value)
    elif callable(getattr(value, "start", None)):
        raise ArgumentError(
            f"engine={value!r}: give the class, engine={type(value).__name__}: each run makes an engine of its own, "
            "and closes it."
        )
    elif isinstance(value, str) and value not in ENGINES.ours and (kind := ENGINES.get(value)) is not None:
        _check_engine_class(kind)
    elif not isinstance(value, Ray) and value not in tuple(ENGINES.ours) and not names_cluster(value):
        names = ENGINES.names()
        listed = ", ".join(map(repr, names))
        raise ArgumentError(
            f"engine={value!r} is not one of {listed}, nor an address such as 'ray://head:10001'."
            f"{nearest(str(value), names)}"
        )


def _check_engine_class(kind: type) -> None:
    """Refuse a class that is no engine, and an engine whose capacity only Headrace's own code could find out."""
    missing = lacking(kind, Engine)
    if missing:
        raise ArgumentError(
            f"engine={kind.__name__}: the class has no {', '.join(missing)}; an engine has "
            f"{', '.join(ENGINES.attributes)}."
        )
    if completed(kind, EngineParts).traits.is_cluster:
        raise ArgumentError(
            f"engine={kind.__name__}: its workers are on other machines, whose cores and memory are asked for in "
            "session/engines.py of Headrace: such an engine has to be added there."
        )


_CHECKS = {
    "engine": _check_engine,
    "max_errors": _check_max_errors,
    "observers": _check_observers,
    "key": _check_key,
    "refresh": _check_refresh,
    "fix": _check_fix,
    "retry_on": _check_retry_on,
}
