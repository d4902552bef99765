"""The numbers of a run for Prometheus, at ``/metrics`` on 127.0.0.1 while it goes on."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

from headrace.core.answered import Answered
from headrace.core.arguments import known_arguments
from headrace.core.events import Event, RunFinished, RunStarted
from headrace.core.install import install_hint
from headrace.core.terminal import one_line
from headrace.core.warn import warn
from headrace.errors import ArgumentError
from headrace.observers.run_state import LOST, RETIRED, RunState

HOST = "127.0.0.1"


class Prometheus:
    """Serves the numbers of a run to Prometheus at ``http://127.0.0.1:<port>/metrics`` while the run goes on.

    It needs the package prometheus-client. If that is missing or the port is taken, a warning says so, and the run
    goes on without it. At the end of the run the port is free again. docs/report.md lists the numbers.

    Parameters
    ----------
    port
        1 to 65,535.

    Raises
    ------
    ArgumentError
        It is no port.

    Examples
    --------
    >>> import headrace as hr
    >>> data = hr.range(1000).with_options(observers=[hr.observers.Prometheus(port=9100)])
    """

    @known_arguments
    def __init__(self, *, port: int) -> None:
        if isinstance(port, bool) or not isinstance(port, int) or not 0 < port < 65_536:
            raise ArgumentError(f"Prometheus(port={port!r}): a port is a whole number from 1 to 65,535.")
        self._port = port
        self._exporter: Exporter | None = None

    def attach(self, state: RunState) -> None:
        """Start the server for a run, whose numbers are read from ``state``."""
        self.close()
        self._exporter = self._started()
        if self._exporter is not None:
            self._exporter.attach(state)

    def on_event(self, event: Event) -> None:
        """Update the numbers at the start and the end; meanwhile ``tick`` does."""
        if self._exporter is not None:
            self._exporter.on_event(event)

    def tick(self) -> None:
        """Update the numbers."""
        if self._exporter is not None:
            self._exporter.tick()

    def close(self) -> None:
        """Stop the server."""
        exporter, self._exporter = self._exporter, None
        if exporter is not None:
            exporter.close()

    def _started(self) -> Exporter | None:
        try:
            return Exporter(self._port)
        except ImportError:
            reason = f"the package prometheus-client is not installed: {install_hint('prometheus')}"
        except OSError as error:
            reason = f"{HOST}:{self._port} cannot be listened at ({error.strerror or error})"
        warn(f"Prometheus(port={self._port}): {reason}. The run goes on without it.")
        return None


class Exporter:
    """Serves the numbers at ``http://127.0.0.1:<port>/metrics`` until it is closed.

    It has a registry of its own: nothing else of this process is served. Raises ``ImportError`` without
    prometheus-client, ``OSError`` if the port is taken.
    """

    def __init__(self, port: int) -> None:
        from prometheus_client import CollectorRegistry, start_http_server

        self._state = RunState()
        self._families: list[Any] = []
        self._registry = CollectorRegistry()
        self._registry.register(self)
        self._server, self._thread = _started(start_http_server, port, self._registry)

    def attach(self, state: RunState) -> None:
        """Read all numbers from ``state``, which has each event before this observer gets it."""
        self._state = state

    def on_event(self, event: Event) -> None:
        """Bring the numbers up to date at the start and the end; meanwhile ``tick`` does."""
        if isinstance(event, RunStarted | RunFinished):
            self.tick()

    def tick(self) -> None:
        """Bring the numbers up to date."""
        self._families = families(self._state)

    def collect(self) -> list[Any]:
        """Return the numbers, for the server's thread: always those of one moment."""
        return self._families

    def close(self) -> None:
        """Give the port back."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()
            self._thread.join()


class _Families:
    """Metric families in the making."""

    def __init__(self) -> None:
        self.all: list[Any] = []

    def gauge(self, name: str, help_: str, *values: tuple[tuple[str, ...], float], labels: Any = ()) -> None:
        """Add numbers that rise and fall, each with the texts of its labels."""
        from prometheus_client.core import GaugeMetricFamily

        self._add(GaugeMetricFamily, name, help_, values, labels)

    def counter(
        self, name: str, help_: str, *values: tuple[tuple[str, ...], float], labels: Any = ()
    ) -> None:
        """Add numbers that only rise."""
        from prometheus_client.core import CounterMetricFamily

        self._add(CounterMetricFamily, name, help_, values, labels)

    def _add(self, kind: Any, name: str, help_: str, values: Any, labels: Any) -> None:
        family = kind(f"headrace_{name}", help_, labels=labels)
        for texts, value in values:
            family.add_metric(list(texts), value)
        self.all.append(family)


def families(state: RunState) -> list[Any]:
    """Return the state of a run as metric families."""
    found = _Families()
    driver = state.last
    if driver is None or driver.started is None:
        return found.all
    if (run := driver.described) is not None:
        found.gauge(
            "run", "1; the labels say which run this is",
            ((run.run, run.engine, run.version), 1), labels=("run", "engine", "version"),
        )  # fmt: skip
    _add_rows(found, state, driver.started)
    _add_workers(found, state)
    if state.models.known:
        _add_models(found, state)
    if (memory := state.memory) is not None:
        taken = [("driver", memory.driver), ("blocks", memory.blocks)]
        taken += [(f"stage {number}", size) for number, size in enumerate(memory.stages, 1)]
        found.gauge(
            "memory_bytes", "Private memory of the run's processes",
            *(((name,), float(size)) for name, size in taken), labels=("of",),
        )  # fmt: skip
    ended = 0 if driver.finished is None else -1 if driver.finished.error else 1
    found.gauge("finished", "1 once the run is complete, -1 if it failed", ((), ended))
    return found.all


def _add_rows(found: _Families, state: RunState, started: RunStarted) -> None:
    """Add what became of rows and shards."""
    if state.rows_expected is not None:
        found.gauge("input_rows", "Rows of the input, if that is known", ((), state.rows_expected))
    found.gauge(
        "rows_read", "Rows read, those of shards under way and of earlier drivers included", ((), state.rows)
    )
    found.gauge("shards", "Shards of the plan", ((), state.shards))
    found.gauge("shards_done", "Shards committed, those of earlier drivers included", ((), state.shards_done))
    found.gauge(
        "rows_per_second", "Rows read per second, over the last half minute", ((), state.speed(state.at))
    )
    found.counter(
        "rows_written", "Rows committed to the output by this driver",
        ((), state.written - started.written_done),
    )  # fmt: skip
    failed = [
        (("rejected",), float(state.rejected - started.rejected_done)),
        (("nulled",), float(state.nulled - started.nulled_done)),
    ]
    found.counter(
        "rows_failed", "Rows rejected or nulled in committed shards",
        *(each for each in failed if each[1]), labels=("outcome",),
    )  # fmt: skip
    found.counter(
        "output_bytes", "Bytes of output committed by this driver", ((), state.bytes - started.bytes_done)
    )


def _add_workers(found: _Families, state: RunState) -> None:
    """Add what workers did, and what became of them."""
    doing = [
        ((str(number + 1), name), float(getattr(stage, name)))
        for number, stage in sorted(state.stages.items())
        for name in ("read", "decode", "steps", "write", "wait")
    ]
    found.counter(
        "worker_seconds", "Seconds of workers by stage and what they did",
        *(each for each in doing if each[1]), labels=("stage", "doing"),
    )  # fmt: skip
    calls: Counter[tuple[str, str]] = Counter()
    for (step, error), number in state.retried.items():
        calls[one_line(step), one_line(error)] += number
    found.counter(
        "calls_retried", "Calls of the user's code that were tried again",
        *((names, float(number)) for names, number in calls.items()), labels=("step", "error"),
    )  # fmt: skip
    found.counter("workers_lost", "Workers that ended on their own", ((), state.counts[LOST]))
    found.counter("workers_retired", "Workers ended to stay within memory_limit", ((), state.counts[RETIRED]))


def _add_models(found: _Families, state: RunState) -> None:
    """Add what language models were asked for, and what they answered."""
    paid, answered = state.models.paid(), state.models.answered or Answered()
    speed = state.models.speed(state.at)
    found.counter("model_answers", "Answers of language models that were paid for", ((), paid.total.answers))
    found.counter(
        "model_tokens", "Tokens of language models that were paid for",
        (("in",), paid.total.prompt), (("out",), paid.total.completion), labels=("direction",),
    )  # fmt: skip
    found.gauge(
        "model_tokens_per_second", "The same per second, over the last half minute",
        (("in",), speed[0]), (("out",), speed[1]), labels=("direction",),
    )  # fmt: skip
    if state.models.priced:
        found.counter("model_cost", "What they have cost, by prices=", ((), paid.total.cost))
        if (expected := state.cost_expected) is not None:
            found.gauge("model_cost_expected", "What they will have cost in the end, about", ((), expected))
    counts = ("rows", "failed", "truncated", "asked_longer", "repaired")
    found.gauge(
        "model_rows", "Rows of committed shards that were asked for, and what became of them",
        *(((name,), float(getattr(answered, name))) for name in counts), labels=("outcome",),
    )  # fmt: skip
    found.gauge(
        "model_cached_tokens", "Tokens of their prompts from a prefix cache", ((), answered.cached_tokens)
    )


def _started(start: Any, port: int, registry: Any) -> tuple[Any, threading.Thread]:
    try:
        server, thread = start(port, addr=HOST, registry=registry)
    except OverflowError as error:  # a port is a number up to 65,535
        raise OSError(0, str(error)) from error
    return server, thread
