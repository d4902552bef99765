"""How a run is carried out, as opposed to what it does. The only reader of ``MILLRACE_*`` variables."""

from __future__ import annotations

import math
import numbers
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args, get_type_hints

from millrace.core.sizes import given_bytes
from millrace.core.work import Durability, OnError
from millrace.errors import ArgumentError, UnknownArgument, nearest

EngineName = Literal["local", "inline", "ray"]
RAY_ADDRESS = "ray://"
Mode = Literal["resume", "overwrite"]
OnChange = Literal["refuse", "continue", "restart"]


OF_A_STEP = (
    "batch_size",
    "batch_size_bytes",
    "batch_format",
    "compute",
    "concurrency",
    "max_in_flight",
    "memory",
    "num_cpus",
    "num_gpus",
)


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of a run; none of them changes what is computed.

    Parameters
    ----------
    engine
        ``"local"`` (worker processes), ``"inline"`` (this process, for debugging), or ``"ray"``: workers on the Ray
        cluster that this process is connected to, or that ``RAY_ADDRESS`` names, or that runs on this machine, or
        that is started here. ``"ray://host:10001"``: those of that cluster.
    workers
        How many workers; default: as many as cores that this process may use.
    progress
        True: show progress; False: nothing, no summary either; None: as True.
    mode
        ``"resume"`` goes on with (or recognises) an unfinished (or finished) run of the same plan in the same
        output; ``"overwrite"`` makes a new one and replaces the old output only when the new one is complete.
    on_change
        What to do when the code of the plan's functions differs from the run in the output: ``"refuse"``,
        ``"continue"`` (keep committed shards, do the others with the new code) or ``"restart"``.
    durability
        ``"power"``: what is committed survives a loss of power; ``"process"``: only kill -9.
    max_attempts
        How often a shard may end its worker before the run fails. From the third time on (so not with less than 3)
        the rows over which that happens are narrowed down instead, and treated as ``on_error`` says.
    shard_rows
        Rows per shard, about; default: by size, so that workers stay busy and files stay decent.
    memory_limit
        Bytes that the run may use, a number or text such as ``"16GiB"``: this process, its workers, and the blocks
        between stages, which may take a quarter of it. Near the limit, nothing is begun ahead of its time; then the
        biggest worker is ended and its shard tried again, with fewer workers, or divided if it does not fit alone.
        Also compared with what steps declare by ``memory=``. Default: 80 % of the machine's or container's.
        On Ray it is for all nodes together, and ends no worker and divides no shard: Ray watches the memory of each
        node. Default there: half of the object stores for blocks, and no bound for what steps declare.
    on_error
        What becomes of a row that a step or the source cannot process. ``"raise"`` ends the run and names the first
        such row. ``"reject"`` sets it aside in ``OUT/_rejected`` (see ``read_rejected``) and goes on. ``"null"``
        keeps it with a null in the place of the result; a row that cannot be read, or on which a filter fails, is
        set aside.
    max_errors
        How many rows may fail before a run ends that rejects or nulls them: a number, or a share of the rows read
        (0.001: one in a thousand, looked at from 1,000 rows on). Default: any number.
    show_data
        False: the values of rows do not appear in messages.
    retry_on
        Classes of errors that pass, such as ``TimeoutError``: a call of a function or model that raises one is tried
        again, after half a second, one, two, … (a random half more or less); other errors are not.
    max_retries
        How often such a call is tried again before its rows count as failed.
    batch_timeout
        Seconds that a call of a function or model may take, the worker being ended otherwise. The batch is then cut,
        until the row that takes so long is known; it is treated as ``on_error`` says. Default: any time.
    stall_timeout
        Seconds after which a worker that the operating system has stopped is given up and replaced; and after which a
        run in which nobody is at work ends, with the stacks of all workers. A model that is being loaded and a batch
        that is being computed are work.

    pool_timeout
        Seconds that a cluster has to place the workers that a stage cannot do without: the lower of two bounds, else
        one.
    allow_unauthenticated
        True: workers may be on a cluster of other machines that lets in anybody who reaches it.
    ray_remote_args
        What Ray is told about each worker, besides what steps say by theirs: ``runtime_env``, ``resources``,
        ``label_selector``, …. It has no effect on other engines.

    Names and values are looked at by ``with_options``, which raises ``UnknownArgument`` and ``ArgumentError``.

    >>> import millrace as mr
    >>> mr.RunOptions(workers=2).workers
    2
    >>> mr.range(3).with_options(workers=0)
    Traceback (most recent call last):
        ...
    millrace.errors.ArgumentError: workers=0: it takes a number above zero.
    """

    engine: EngineName | str = "local"
    workers: int | None = None
    progress: bool | None = None
    mode: Mode = "resume"
    on_change: OnChange = "refuse"
    durability: Durability = "power"
    max_attempts: int = 3
    shard_rows: int | None = None
    memory_limit: int | None = None
    on_error: OnError = "raise"
    max_errors: float | None = None
    show_data: bool = True
    retry_on: type[BaseException] | tuple[type[BaseException], ...] = ()
    max_retries: int = 3
    batch_timeout: float | None = None
    stall_timeout: float = 300.0
    pool_timeout: float = 600.0
    allow_unauthenticated: bool = False
    ray_remote_args: Mapping[str, Any] | None = None

    @property
    def on_ray(self) -> bool:
        """True if workers are on a Ray cluster."""
        return self.engine.startswith("ray")

    def updated(self, changes: Mapping[str, Any]) -> RunOptions:
        """Return the options with ``changes``; unknown names and impossible values are refused."""
        known = [field.name for field in fields(self)]
        given = {}
        for name, value in changes.items():
            if name in OF_A_STEP:
                raise UnknownArgument(
                    f"{name}= is said to the step that it is for: map_batches(…, {name}={value!r}), or predict."
                )
            if name not in known:
                raise UnknownArgument(
                    f"There is no option {name!r}; the options are {', '.join(known)}.{nearest(name, known)}"
                )
            given[name] = _plain(name, value)
            _check(name, given[name])
        return replace(self, **given)

    @classmethod
    def from_environment(cls) -> RunOptions:
        """Read ``MILLRACE_ENGINE``, ``MILLRACE_WORKERS``, ``MILLRACE_PROGRESS``, ``MILLRACE_DURABILITY`` and
        ``MILLRACE_ALLOW_UNAUTHENTICATED``."""
        changes: dict[str, Any] = {}
        for name in ("engine", "durability"):
            if text := os.environ.get(f"MILLRACE_{name.upper()}"):
                changes[name] = text
        if text := os.environ.get("MILLRACE_WORKERS"):
            if not text.isdigit():
                raise ArgumentError(f"MILLRACE_WORKERS is {text!r}; it takes a number of workers.")
            changes["workers"] = int(text)
        for name in ("progress", "allow_unauthenticated"):
            if text := os.environ.get(f"MILLRACE_{name.upper()}"):
                changes[name] = text.lower() not in ("0", "false", "no", "off")
        return cls().updated(changes)


def _plain(name: str, value: Any) -> Any:
    """Return a number of numpy as one of Python, a size in bytes as a number, and a list of errors as a tuple."""
    if name == "memory_limit" and value is not None:
        return given_bytes(name, value, least=1, whole=True)
    if name == "retry_on" and isinstance(value, list):
        return tuple(value)
    if not isinstance(value, bool) and isinstance(value, numbers.Integral):
        return int(value)
    return value


def _check(name: str, value: Any) -> None:
    if name in _CHECKS:
        _CHECKS[name](value)
        return
    hint = get_type_hints(RunOptions)[name]
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
    elif name not in ("stall_timeout", "batch_timeout", "pool_timeout") and not isinstance(value, int):
        raise ArgumentError(f"{name}={value!r}: it takes a whole number.")


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
    names = get_args(EngineName)
    address = isinstance(value, str) and value.startswith(RAY_ADDRESS) and len(value) > len(RAY_ADDRESS)
    if value not in names and not address:
        listed = ", ".join(map(repr, names))
        raise ArgumentError(
            f"engine={value!r} is not one of {listed}, nor an address such as 'ray://head:10001'."
            f"{nearest(str(value), names)}"
        )


_NOT_FOR_RAY = frozenset(
    (
        *("num_cpus", "num_gpus", "memory", "name", "lifetime"),
        *("max_restarts", "max_task_retries", "max_concurrency", "concurrency_groups"),
    )
)


def check_ray_remote_args(value: Any) -> None:
    """Refuse what is no dict for Ray, and what is said, or decided, in another way."""
    names = set(value) if isinstance(value, Mapping) else None
    if value is not None and (names is None or not all(isinstance(name, str) for name in names)):
        raise ArgumentError(f"ray_remote_args={value!r}: it takes a dict such as {{'runtime_env': {{...}}}}.")
    if names and names & _NOT_FOR_RAY:
        named = ", ".join(sorted(names & _NOT_FOR_RAY))
        raise ArgumentError(
            f"ray_remote_args: {named}: steps say by num_cpus=, num_gpus= and memory= what their workers need, and "
            "the rest is decided here. It takes runtime_env, resources, label_selector and the like."
        )


_CHECKS = {
    "engine": _check_engine,
    "max_errors": _check_max_errors,
    "ray_remote_args": check_ray_remote_args,
    "retry_on": _check_retry_on,
}
