"""``connect``: where an executor begins."""

from __future__ import annotations

from typing import Literal

from millrace.core.arguments import known_arguments
from millrace.core.sizes import given_bytes
from millrace.engines import machine
from millrace.errors import ArgumentError, EngineError, ResourcesUnavailable
from millrace.executor.core import Core
from millrace.executor.executor import Executor
from millrace.executor.hosted import Hosted
from millrace.options import RunOptions
from millrace.parameters import given_number


@known_arguments
def connect(
    engine: Literal["local"] = "local",
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
        Where workers live: ``"local"``, processes of this machine.
    workers, num_cpus
        How many cores there are for calls, each of which takes one unless it says otherwise; two names for the same.
        Default: what this process may use.
    num_gpus
        How many devices there are for calls; default: all that this process sees.
    memory_limit
        Bytes, or text such as ``"8GiB"``: what calls and actors may declare together (``memory=``). Default: 80 % of
        the machine's or container's memory. What is ``put`` is not counted.

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
    if engine != "local":
        raise ArgumentError(f"engine={engine!r}: an executor runs on the engine 'local'.")
    if Hosted.here is not None:
        raise EngineError(
            "This code runs in a worker of an executor, where there is none: a call cannot make calls of its own. "
            "Return what is to be done next, and submit it from the program."
        )
    if workers is not None and num_cpus is not None and workers != num_cpus:
        raise ArgumentError(
            f"workers={workers!r} and num_cpus={num_cpus!r} are two names for the same: give one."
        )
    asked = num_cpus if workers is None else workers
    capacity = machine.capacity()
    cpus = RunOptions.from_environment().workers or capacity.cpus
    if asked is not None:
        name = "num_cpus" if workers is None else "workers"
        cpus = given_number(name, asked)  # type: ignore[assignment]
        if workers is not None and cpus != int(cpus):
            raise ArgumentError(
                f"workers={workers!r}: it takes a whole number; num_cpus= takes parts of cores."
            )
        if not cpus:
            raise ArgumentError(f"{name}=0: it takes a number above zero.")
    memory = capacity.memory if memory_limit is None else given_bytes("memory_limit", memory_limit, least=1)
    return Executor(Core(cpus, memory, _devices(num_gpus)))


def _devices(wanted: int | None) -> tuple[str, ...]:
    there = machine.devices()
    if wanted is None:
        return there
    if isinstance(wanted, bool) or not isinstance(wanted, int) or wanted < 0:
        raise ArgumentError(f"num_gpus={wanted!r}: it takes a whole number.")
    if wanted > len(there):
        raise ResourcesUnavailable(
            f"num_gpus={wanted}: this machine has {len(there)} that this process may use."
        )
    return there[:wanted]
