"""``connect``: where an executor begins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from millrace.core.arguments import known_arguments
from millrace.core.process import hold_standard_streams
from millrace.engines import machine
from millrace.errors import ArgumentError, EngineError, ResourcesUnavailable
from millrace.executor.core import Core
from millrace.executor.executor import Executor
from millrace.executor.hosted import Hosted
from millrace.options import RunOptions
from millrace.parameters import given_number
from millrace.workplace import capacity_for, memory_of_nodes


@known_arguments
def connect(
    engine: str | None = None,
    *,
    workers: int | None = None,
    num_cpus: float | None = None,
    num_gpus: int | None = None,
    memory_limit: int | str | None = None,
    pool_timeout: float = 600.0,
    allow_unauthenticated: bool | None = None,
    ray_remote_args: Mapping[str, Any] | None = None,
) -> Executor:
    """Return an executor, for those who decide themselves what is computed where and in which pieces.

    Parameters
    ----------
    engine
        Where workers live: ``"local"``, processes of this machine; ``"ray"`` or ``"ray://host:10001"``, actors of a
        Ray cluster, found as ``RunOptions.engine`` says. Default: ``"local"``, unless ``MILLRACE_ENGINE`` names Ray.
    workers, num_cpus
        How many cores there are for calls, each of which takes one unless it says otherwise; two names for the same.
        Default: what this process may use; on Ray, what the cluster has. More than that: the cluster is to grow.
    num_gpus
        How many devices there are for calls; default: all that this process sees, or that the cluster has.
    memory_limit
        Bytes, or text such as ``"8GiB"``: what calls and actors may declare together (``memory=``). Default: 80 % of
        the machine's or container's memory; on Ray, what its nodes offer. What is ``put`` is not counted.
    pool_timeout
        On Ray: seconds that the cluster has to place a call or an actor, which fails otherwise.
    allow_unauthenticated, ray_remote_args
        On Ray: see ``RunOptions``.

    Raises
    ------
    ResourcesUnavailable
        There are fewer devices than ``num_gpus``.
    EngineError
        In a worker of an executor: calls cannot make calls.

    Examples
    --------
    >>> import numpy as np, millrace as mr
    >>> def score(weights, rows):
    ...     return rows @ weights
    >>> with mr.connect(workers=2) as executor:
    ...     weights = executor.put(np.ones(3))
    ...     [score.tolist() for score in executor.map(score, [weights] * 2, [np.eye(3), np.zeros((1, 3))])]
    [[1.0, 1.0, 1.0], [0.0]]
    """
    if Hosted.here is not None:
        raise EngineError(
            "This code runs in a worker of an executor, where there is none: a call cannot make calls of its own. "
            "Return what is to be done next, and submit it from the program."
        )
    if workers is not None and num_cpus is not None and workers != num_cpus:
        raise ArgumentError(
            f"workers={workers!r} and num_cpus={num_cpus!r} are two names for the same: give one."
        )
    hold_standard_streams()
    options = _options(engine, memory_limit, pool_timeout, allow_unauthenticated, ray_remote_args)
    asked = num_cpus if workers is None else workers
    capacity = capacity_for(options)
    cpus = RunOptions.from_environment().workers or max(1, capacity.cpus)
    if asked is not None:
        name = "num_cpus" if workers is None else "workers"
        cpus = given_number(name, asked)  # type: ignore[assignment]
        if workers is not None and cpus != int(cpus):
            raise ArgumentError(
                f"workers={workers!r}: it takes a whole number; num_cpus= takes parts of cores."
            )
        if not cpus:
            raise ArgumentError(f"{name}=0: it takes a number above zero.")
    if not options.on_ray:
        return Executor(Core.local(cpus, options.memory_limit or capacity.memory, _devices(num_gpus)))
    gpus = capacity.gpus if num_gpus is None else _whole(num_gpus)
    memory = options.memory_limit or memory_of_nodes()
    extra = options.ray_remote_args or {}
    return Executor(Core.cluster(cpus, memory, gpus, pool_timeout=options.pool_timeout, extra=extra))


def _options(
    engine: str | None,
    memory_limit: int | str | None,
    pool_timeout: float,
    allow_unauthenticated: bool | None,
    ray_remote_args: Mapping[str, Any] | None,
) -> RunOptions:
    """Read what was given as a run's options would be."""
    given = {"memory_limit": memory_limit, "ray_remote_args": ray_remote_args}
    options = RunOptions.from_environment()
    options = options.updated({**given, "engine": engine or options.engine, "pool_timeout": pool_timeout})
    if allow_unauthenticated is not None:
        options = options.updated({"allow_unauthenticated": allow_unauthenticated})
    if options.engine == "inline":
        if engine is not None:
            raise ArgumentError("engine='inline': an executor runs on 'local' or 'ray'.")
        options = options.updated({"engine": "local"})
    return options


def _whole(num_gpus: Any) -> int:
    if isinstance(num_gpus, bool) or not isinstance(num_gpus, int) or num_gpus < 0:
        raise ArgumentError(f"num_gpus={num_gpus!r}: it takes a whole number.")
    return num_gpus


def _devices(wanted: int | None) -> tuple[str, ...]:
    there = machine.devices()
    if wanted is None:
        return there
    if _whole(wanted) > len(there):
        raise ResourcesUnavailable(
            f"num_gpus={wanted}: this machine has {len(there)} that this process may use."
        )
    return there[:wanted]
