"""How a run is carried out, as opposed to what it does. The only reader of ``HEADRACE_*`` variables."""

from __future__ import annotations

import builtins
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, cast, get_args, get_type_hints

from headrace.core.door import completed
from headrace.core.engine_ports import ENGINES, Engine, EngineName, EngineParts, EngineTraits
from headrace.core.option_values import Ray, check, names_cluster, plain
from headrace.core.work import Durability, OnError
from headrace.errors import ArgumentError, UnknownArgument, nearest

Mode = Literal["resume", "overwrite", "ignore", "error", "append"]
OnChange = Literal["refuse", "continue", "restart"]
Refresh = Literal["changed", "rejected"]
Fix = str | os.PathLike[str] | Callable[[Any], Any]
WorkerStart = Literal["fork", "spawn"]


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


INSTEAD = {
    **dict.fromkeys(OF_A_STEP, "give it to the step, such as map_batches(…) or predict(…)"),
    "log": "give observers=[hr.observers.Log(…)]",
    "metrics_port": "give observers=[hr.observers.Prometheus(port=…)]",
    "pool_timeout": "give engine=hr.Ray(pool_timeout=…)",
    "allow_unauthenticated": "give engine=hr.Ray(allow_unauthenticated=…)",
    "ray_remote_args": "give engine=hr.Ray(remote_args={…})",
    "price_per_hour": "multiply the hours that the report says by the price",
    "report_values": "headrace report OUT --values shows them, and hr.read_rejected(OUT) gives all of them",
}
"""What is no option of a run, where one may look for it, and what to do."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of a run; none of them changes what is computed.

    Parameters
    ----------
    engine
        ``"local"`` (worker processes), ``"inline"`` (this process, for debugging), or ``hr.Ray(…)``: workers on a Ray
        cluster. ``"ray"`` and ``"ray://host:10001"`` are short forms of it. Or a class of your own that fills the
        port ``Engine``: each run makes an object of it, without arguments.
    workers
        How many workers; default: as many as cores that this process may use.
    progress
        True: show progress; False: nothing, no summary either; None: as True, but for ``iter_batches`` and the like,
        which show none.
    mode
        What to do if the output holds a run already. ``"resume"`` goes on with an unfinished run of the same plan,
        and does nothing if it is finished. ``"overwrite"`` makes a new run, and replaces the old output only when the
        new one is complete. The others are as ``"resume"`` while a run is unfinished. If a run is finished,
        ``"ignore"`` leaves it as it is, whatever its plan, and returns its result; ``"error"`` and ``"append"`` raise
        ``OutputExists``. To add rows to an output, use ``incremental``.
    on_change
        What to do when the code of the plan's functions differs from the run in the output: ``"refuse"``,
        ``"continue"`` (keep finished shards, do the others with the new code) or ``"restart"`` (do all again, unless
        all finished shards were made by the present code). ``"continue"`` also adds input files that are new since
        the run began, after the others.
    incremental
        True: if a run of the same plan is finished, process only what is new, as a further run of the same output.
        New may be input files, rows that were appended to a table, or, with ``key``, rows of a query. The new parts
        appear when all are there. If nothing is new, nothing is done. If the code has changed, the new code is used,
        and a message says which rows older code has made, unless ``on_change`` is given to the write method. See
        docs/incremental.md.
    refresh
        ``"changed"``, with ``incremental``: rows that older functions or an older model have made are made again in
        the next run. Readers see the old rows until all new ones are there. ``"rejected"``: the rows that the run in
        the output has set aside are tried again, and nothing else. Those that succeed get their places in the order
        of the input, or are added to a table in one commit; the others stay rejected. See docs/errors.md.
    fix
        With ``refresh="rejected"``: what repairs the rows. A function that gets rejected rows as a dict of arrays,
        the columns of the input and those of ``read_rejected``, and returns as many rows, with columns of the input.
        Or the file that ``headrace rejected OUT --to FILE`` wrote, with other values in it. Rows that are not in the
        file are not tried.
    key
        With ``incremental``: the columns of the input that identify a row; a name, or several. Queries, and files
        that were written again, are read again. Of their rows, only those with new keys are processed.
    durability
        ``"power"``: what is committed survives a loss of power; ``"process"``: only kill -9.
    max_attempts
        How often a shard may end its worker before the run fails. With 3 or more, the row at fault is searched from
        the third time on, and treated as ``on_error`` says.
    shard_rows
        About how many rows a shard has; default: by size, so that workers stay busy and files are not too small.
    memory_limit
        Bytes that the run may use, a number or text such as ``"16GiB"``: this process, its workers, and the blocks
        between stages, which may take a quarter of it. Near the limit, no work is begun early. At the limit, the
        biggest worker is ended, and its shard is tried again with fewer workers; a shard that does not fit alone is
        divided. The limit is also compared with what steps declare by ``memory=``. Default: 80 % of the machine's or
        container's memory. On Ray it is for the run's workers on each node, without a default: Ray watches its nodes,
        and ends workers where one has no memory left. Blocks take half of Ray's object stores at most.
    on_error
        What becomes of a row that a step or the source cannot process. ``"raise"`` ends the run and names the first
        such row. ``"reject"`` sets it aside in ``OUT/_rejected`` (see ``read_rejected``) and goes on. ``"null"``
        keeps it with a null as the result. A row that cannot be read, or on which a filter fails, is set aside.
    max_errors
        With ``"reject"`` or ``"null"``: how many rows may fail before the run ends. A number, or a share of the rows
        read (0.001: one in a thousand, checked after 1,000 rows). Default: any number.
    show_data
        False: the values of rows do not appear in messages.
    retry_on
        Classes of errors that are temporary, such as ``TimeoutError``. If a call of a function or model raises one,
        or its constructor, it is tried again after half a second, one, two, … (a random half more or less).
    max_retries
        How often such a call is tried again before its rows count as failed.
    batch_timeout
        Seconds that a call of a function or model may take. If it takes longer, the worker is ended, and the batch is
        divided until the slow row is found. That row is treated as ``on_error`` says. Default: any time.
    commit_every
        Seconds of work after which a worker closes the part that it writes, so that what it has done is committed.
        The rest of its shard becomes a new shard. None: each shard is committed as a whole, and one worker does it,
        even where others have nothing to do.
    stall_timeout
        Seconds after which a worker of this machine that the operating system has stopped (SIGSTOP) is given up and
        replaced, an eighth of that time later at most. A run in which no worker works ends after this time, and
        prints the stacks of all workers. A model that is being loaded and a batch that is being computed are work.
    worker_start
        How worker processes of this machine are started. ``"fork"``: the first is a new Python, which imports numpy
        and pyarrow. The others are copies of it, made before it ran any code of yours. This is done where it is safe:
        on Linux, if nothing imported so far has started a thread. ``"spawn"``: each is a new Python.
    keep_template
        Seconds for which the process that workers are copied from waits for the next run of this process. Then the
        first worker of that run starts at once, too. None: it ends with the run.
    report
        False: no ``report.html`` is written at the end. ``headrace report OUT`` makes it at any time.
    watch
        True: while a run writes, its page is served to this machine alone, and the address is printed. See
        docs/report.md.
    fleet
        True: any number of machines may be given the same program, with an output that all of them see. Each takes a
        part of the input, then the next. What a machine that died has not done is done by another. Once all is done,
        the output is complete, and every program returns its result. See docs/fleet.md.
    observers
        Objects that see the events of a run that writes, each by its ``on_event(event)``. If an observer has
        ``tick()``, it is called about five times a second, and ``close()`` at the end. If one raises, that is logged,
        and it gets no more events. ``hr.observers`` has some to use. ``HEADRACE_LOG`` and ``HEADRACE_METRICS_PORT``
        add a ``Log`` and a ``Prometheus`` to those that are given, ``HEADRACE_OBSERVERS=OpenTelemetry,MLflow`` adds
        observers by name.
    keep_queries
        True: the results of queries stay in ``OUT/_headrace/queries`` when the run has ended. They are Parquet files.

    ``with_options`` checks names and values, and raises ``UnknownArgument`` and ``ArgumentError``.

    >>> import headrace as hr
    >>> hr.RunOptions(workers=2).workers
    2
    >>> hr.range(3).with_options(workers=0)
    Traceback (most recent call last):
        ...
    headrace.errors.ArgumentError: workers=0: it takes a number above zero.
    """

    engine: EngineName | str | Ray | type[Engine] = "local"
    workers: int | None = None
    progress: bool | None = None
    mode: Mode = "resume"
    on_change: OnChange = "refuse"
    incremental: bool = False
    refresh: Refresh | None = None
    fix: Fix | None = None
    key: str | Sequence[str] = ()
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
    commit_every: float | None = 30.0
    stall_timeout: float = 300.0
    worker_start: WorkerStart = "fork"
    keep_template: float | None = None
    report: bool = True
    watch: bool = False
    fleet: bool = False
    observers: tuple[Any, ...] = ()
    keep_queries: bool = False

    @property
    def traits(self) -> EngineTraits:
        """Where the workers are."""
        if self._on_ray:  # known without Ray, which may not be there
            return EngineTraits(is_cluster=True)
        return completed(self.engine_class, EngineParts).traits

    @property
    def _on_ray(self) -> bool:
        return isinstance(self.engine, Ray) or self.engine == "ray" or names_cluster(self.engine)

    @property
    def engine_class(self) -> Callable[..., Engine]:
        """The class of the engine."""
        name = "ray" if self._on_ray else str(self.engine)
        return self.engine if isinstance(self.engine, type) else cast(type[Engine], ENGINES.get(name))

    @property
    def engine_name(self) -> str:
        """The engine in messages: its name or address, or its class."""
        return self.engine.__name__ if isinstance(self.engine, type) else str(self.engine)

    @property
    def ray(self) -> Ray:
        """The cluster; a short form of ``engine`` with what the environment says of it."""
        if isinstance(self.engine, Ray):
            return self.engine
        return Ray(self.engine_name if names_cluster(self.engine) else None, **ray_settings())

    def updated(self, changes: Mapping[str, Any]) -> RunOptions:
        """Return the options with ``changes``; unknown names and impossible values are refused."""
        hints = _types()
        known, given = [*hints], {}
        for name, value in changes.items():
            if name in INSTEAD:
                raise UnknownArgument(f"{name}= is not an option of the run: {INSTEAD[name]}.")
            if name not in known:
                others = nearest(name, known) or f" The options are {', '.join(known)}."
                raise UnknownArgument(f"There is no option {name!r}.{others}")
            given[name] = plain(name, value)
            check(name, given[name], hints[name])
        return replace(self, **given)

    @classmethod
    def from_environment(cls) -> RunOptions:
        """Read ``HEADRACE_ENGINE``, ``HEADRACE_WORKERS``, … : each option has a variable of its name."""
        changes: dict[str, Any] = {}
        for field in fields(cls):
            if field.name != "observers" and (text := variable(field.name)):  # which are added to those given
                try:
                    changes[field.name] = option_from_text(field.name, text)
                except ArgumentError as error:
                    raise ArgumentError(f"{variable_of(field.name)} is {text!r}: {error}") from None
        ray_settings()  # raises before any work
        return cls().updated(changes)


def ray_settings() -> dict[str, Any]:
    """Return what ``HEADRACE_POOL_TIMEOUT`` and ``HEADRACE_ALLOW_UNAUTHENTICATED`` say of a Ray cluster."""
    settings: dict[str, Any] = {}
    for name in ("pool_timeout", "allow_unauthenticated"):
        if text := variable(name):
            try:
                settings[name] = ray_setting(name, text)
            except ArgumentError as error:
                raise ArgumentError(f"{variable_of(name)} is {text!r}: {error}") from None
    return settings


def ray_setting(name: str, text: str) -> Any:
    """Return an argument of ``Ray`` from a variable or a command line; raises ``ArgumentError``."""
    value: Any = _TRUTH.get(text.lower(), text) if name == "allow_unauthenticated" else _number(text)
    arguments: dict[str, Any] = {name: value}
    return getattr(Ray(**arguments), name)


def variable(name: str) -> str:
    """Return the text of a variable of ours, "" if it is not set."""
    return os.environ.get(variable_of(name), "")


def variable_of(name: str) -> str:
    """Return the variable of the environment that gives an option's default.

    >>> variable_of("on_error")
    'HEADRACE_ON_ERROR'
    """
    return f"HEADRACE_{name.upper()}"


@functools.cache
def _types() -> dict[str, Any]:
    """Return the types of all options, by name."""
    return get_type_hints(RunOptions)


def option_from_text(name: str, text: str) -> Any:
    """Return an option's value from a variable or a command line; raises ``ArgumentError`` if it makes no sense.

    >>> option_from_text("max_errors", "0.01"), option_from_text("progress", "off")
    (0.01, False)
    >>> option_from_text("retry_on", "TimeoutError,OSError")
    (<class 'TimeoutError'>, <class 'OSError'>)
    """
    hint = _types().get(name)
    choices = get_args(hint)
    value: Any = text
    if hint is bool or bool in choices:
        value = _TRUTH.get(text.lower(), text)
    elif name == "key":
        value = [each.strip() for each in text.split(",")]
    elif name == "retry_on":
        value = tuple(_error_class(each.strip()) for each in text.split(",") if each.strip())
    elif int in choices or float in choices or hint in (int, float):
        value = _number(text)
    return getattr(RunOptions().updated({name: value}), name)


_TRUTH = {
    "1": True,
    "true": True,
    "yes": True,
    "on": True,
    "0": False,
    "false": False,
    "no": False,
    "off": False,
}


def _number(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text  # a size such as 16GiB, or what is refused with its name


def _error_class(name: str) -> Any:
    found = getattr(builtins, name, None)
    if not (isinstance(found, type) and issubclass(found, BaseException)):
        raise ArgumentError(
            f"retry_on: {name!r} is not one of Python's classes of errors, such as TimeoutError or ConnectionError. "
            "Others are given in a script: with_options(retry_on=…)."
        )
    return found
