"""``connect``: where an executor begins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.annex.tasks.core import Core
from headrace.annex.tasks.executor import Executor
from headrace.annex.tasks.hosting.task_host import TaskHost
from headrace.core.arguments import known_arguments
from headrace.core.process import hold_standard_streams
from headrace.engines.local import machine
from headrace.engines.local.spawner import Starting
from headrace.errors import ArgumentError, NotOffered, ResourcesUnavailable
from headrace.options import RunOptions
from headrace.plan.parameters import given_number


@known_arguments
def connect(
    engine: str | None = None,
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
        ``"local"``, the default: workers are processes of this machine. Nothing else is offered.
    workers, num_cpus
        How many cores there are for calls, each of which takes one unless it says otherwise; two names for the same.
        Default: what this process may use.
        ``num_cpus=0``: only calls that say ``num_cpus=0``, and actors that take no core, run at all.
    num_gpus
        How many devices there are for calls; default: all that this process sees.
    memory_limit
        Bytes, or text such as ``"8GiB"``: what calls and actors may declare together (``memory=``). Default: 80 % of
        the machine's or container's memory. What is ``put`` is not counted.

    Raises
    ------
    ResourcesUnavailable
        There are fewer devices than ``num_gpus``.

    In a call of an executor, it returns that executor, whatever the arguments: a call may make calls,
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
        return TaskHost.current.core.executor()  # type: ignore[no-any-return]
    if engine not in (None, "local"):
        raise NotOffered(
            f"connect({engine!r}): an executor's workers are processes of this machine. On a cluster, Ray's own "
            "tasks and actors do the same; a Dataset runs there with engine=hr.Ray(…)."
        )
    return opened(given_cores(workers, num_cpus), _devices(num_gpus), memory_limit)


def opened(
    cores: float | None,
    devices: tuple[str, ...],
    memory_limit: int | str | None,
    resources: Mapping[str, float] | None = None,
) -> Executor:
    """Return an executor with these ``devices``, and with named ``resources``, which are only counted."""
    hold_standard_streams()
    options = RunOptions.from_environment().updated({"memory_limit": memory_limit, "engine": "local"})
    capacity = machine.capacity()
    cpus = (options.workers or max(1, capacity.cpus)) if cores is None else cores
    starting = Starting(options.worker_start, eager=cpus > 1, keep=options.keep_template or 0.0)
    return Executor(Core(cpus, options.memory_limit or capacity.memory, devices, starting, resources))


def given_cores(workers: int | None, num_cpus: float | None) -> float | None:
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
