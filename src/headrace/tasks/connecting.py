"""``connect``: where an executor begins."""

from __future__ import annotations

from typing import Any

from headrace.core.arguments import Unsupported, known_arguments
from headrace.core.process import hold_standard_streams
from headrace.core.ray_cluster import Ray
from headrace.engines.local import machine
from headrace.engines.local.spawner import Starting
from headrace.errors import ArgumentError, EngineError, ResourcesUnavailable
from headrace.options import MOVED, RunOptions
from headrace.plan.parameters import given_number
from headrace.session.engines import capacity_for, memory_of_nodes
from headrace.tasks.core import Core
from headrace.tasks.executor import Executor
from headrace.tasks.hosting.task_host import TaskHost

_OF_THE_ENGINE = {
    name: Unsupported(f"give {text.format(value='…')}.", ())
    for name, text in MOVED.items()
    if text.startswith("engine")
}


@known_arguments(also=_OF_THE_ENGINE)
def connect(
    engine: str | Ray | None = None,
    *,
    workers: int | None = None,
    num_cpus: float | None = None,
    num_gpus: int | None = None,
    memory_limit: int | str | None = None,
) -> Executor:
    """Return an executor, for those who decide themselves what is computed where and in which pieces.

    Parameters
    ----------
    engine
        Where workers live: ``"local"``, processes of this machine; ``hr.Ray(…)``, or ``"ray"`` and
        ``"ray://host:10001"`` for short, actors of a Ray cluster. Default: ``"local"``, unless ``HEADRACE_ENGINE``
        names Ray.
    workers, num_cpus
        How many cores there are for calls, each of which takes one unless it says otherwise; two names for the same.
        Default: what this process may use; on Ray, what the cluster has. More than that: the cluster is to grow.
        ``num_cpus=0``: only calls that say ``num_cpus=0``, and actors that take no core, run at all.
    num_gpus
        How many devices there are for calls; default: all that this process sees, or that the cluster has.
    memory_limit
        Bytes, or text such as ``"8GiB"``: what calls and actors may declare together (``memory=``). Default: 80 % of
        the machine's or container's memory; on Ray, what its nodes offer. What is ``put`` is not counted.

    Raises
    ------
    ResourcesUnavailable
        There are fewer devices than ``num_gpus``.
    EngineError
        In a worker of an executor on a cluster, where calls cannot make calls.

    In a call of an executor on this machine, it returns that executor, whatever the arguments: a call may make calls,
    and wait for them. Leaving its ``with`` waits for nothing. ``submit`` returns futures with ``result()`` there,
    which ``executor.get`` and ``executor.wait`` take, too.

    Examples
    --------
    >>> import numpy as np, headrace as hr
    >>> def score(weights, rows):
    ...     return rows @ weights
    >>> with hr.connect(workers=2) as executor:
    ...     weights = executor.put(np.ones(3))
    ...     [score.tolist() for score in executor.map(score, [weights] * 2, [np.eye(3), np.zeros((1, 3))])]
    [[1.0, 1.0, 1.0], [0.0]]
    """
    if TaskHost.current is not None:
        if TaskHost.current.core is None:
            raise EngineError(
                "This code runs in a worker of an executor on a cluster, where a call cannot make calls of its own. "
                "Return what to do next, and submit it from the program."
            )
        return TaskHost.current.core.executor()  # type: ignore[no-any-return]
    cores = _given_cores(workers, num_cpus)
    hold_standard_streams()
    options = _options(engine, memory_limit)
    capacity = capacity_for(options)
    usual = RunOptions.from_environment().workers or max(1, capacity.cpus)
    cpus = usual if cores is None else cores
    if not options.traits.is_cluster:
        starting = Starting(options.worker_start, eager=cpus > 1, keep=options.keep_template or 0.0)
        memory = options.memory_limit or capacity.memory
        return Executor(Core.local(cpus, memory, _devices(num_gpus), starting))
    gpus = capacity.gpus if num_gpus is None else _whole(num_gpus)
    memory = options.memory_limit or memory_of_nodes()
    ray = options.ray
    extra = ray.remote_args or {}
    return Executor(Core.cluster(cpus, memory, gpus, pool_timeout=ray.pool_timeout, extra=extra))


def _given_cores(workers: int | None, num_cpus: float | None) -> float | None:
    """Return how many cores were asked for, checked; None if none were."""
    if workers is not None and num_cpus is not None and workers != num_cpus:
        raise ArgumentError(
            f"workers={workers!r} and num_cpus={num_cpus!r} are two names for the same: give one."
        )
    name, given = ("workers", workers) if workers is not None else ("num_cpus", num_cpus)
    cores = given_number(name, given)
    if cores is None:
        return None
    if workers is not None and cores != int(cores):
        raise ArgumentError(f"workers={workers!r}: it takes a whole number; num_cpus= takes parts of cores.")
    if not cores and workers is not None:
        raise ArgumentError("workers=0: it takes a number above zero.")
    return cores


def _options(engine: str | Ray | None, memory_limit: int | str | None) -> RunOptions:
    """Read what was given as a run's options would be."""
    options = RunOptions.from_environment()
    options = options.updated({"memory_limit": memory_limit, "engine": engine or options.engine})
    if options.engine != "local" and not options.traits.is_cluster:
        if engine is not None:
            raise ArgumentError(f"engine={options.engine_name!r}: an executor runs on 'local' or 'ray'.")
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
