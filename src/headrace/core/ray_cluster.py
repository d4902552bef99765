"""A Ray cluster as an engine: its address, and what a run asks of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.core.arguments import known_arguments
from headrace.errors import ArgumentError

RAY_ADDRESS = "ray://"
_NOT_FOR_RAY = frozenset(
    (
        *("num_cpus", "num_gpus", "memory", "name", "lifetime"),
        *("max_restarts", "max_task_retries", "max_concurrency", "concurrency_groups"),
    )
)


@dataclass(frozen=True, slots=True, init=False)
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

    address: str | None
    pool_timeout: float
    allow_unauthenticated: bool
    remote_args: Mapping[str, Any] | None = field(repr=False)  # environment variables may be secret

    @known_arguments
    def __init__(
        self,
        address: str | None = None,
        *,
        pool_timeout: float = 600.0,
        allow_unauthenticated: bool = False,
        remote_args: Mapping[str, Any] | None = None,
    ) -> None:
        if address is not None and not names_cluster(address):
            raise ArgumentError(f"Ray({address!r}): the address of a cluster is such as 'ray://head:10001'.")
        _check_seconds("pool_timeout", pool_timeout)
        _check_truth("allow_unauthenticated", allow_unauthenticated)
        check_ray_remote_args(remote_args, "remote_args")
        object.__setattr__(self, "address", address)
        object.__setattr__(self, "pool_timeout", pool_timeout)
        object.__setattr__(self, "allow_unauthenticated", allow_unauthenticated)
        object.__setattr__(self, "remote_args", remote_args)

    def __str__(self) -> str:
        return self.address or "ray"


def names_cluster(value: Any) -> bool:
    """Say whether a value is the address of a cluster."""
    return isinstance(value, str) and value.startswith(RAY_ADDRESS) and len(value) > len(RAY_ADDRESS)


def _check_seconds(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise ArgumentError(f"{name}={value!r}: it takes a number above zero.")


def _check_truth(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise ArgumentError(f"{name}={value!r} is neither True nor False.")


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
