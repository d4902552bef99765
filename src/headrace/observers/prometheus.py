"""The numbers of a run for Prometheus, at ``/metrics`` on 127.0.0.1 while it goes on."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

from headrace.core.answered import Answered
from headrace.core.arguments import known_arguments
from headrace.core.door import install_hint
from headrace.core.events import Event, RunFinished, RunStarted
from headrace.core.terminal import one_line, warn
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
        self._state = RunState()
        self._families: list[Any] = []
        self._server: tuple[Any, threading.Thread] | None = None

    def attach(self, state: RunState) -> None:
        """Start the server for a run, whose numbers are read from ``state``."""
        self.close()
        self._state, self._families = state, []
        try:
            from prometheus_client import CollectorRegistry, start_http_server

            registry = CollectorRegistry()  # of its own: nothing else of this process is served
            registry.register(self)
            self._server = start_http_server(self._port, addr=HOST, registry=registry)
            return
        except ImportError:
            reason = f"the package prometheus-client is not installed: {install_hint('prometheus')}"
        except OSError as error:
            reason = f"{HOST}:{self._port} cannot be listened at ({error.strerror or error})"
        warn(f"Prometheus(port={self._port}): {reason}. The run goes on without it.")

    def on_event(self, event: Event) -> None:
        """Update the numbers at the start and the end; meanwhile ``tick`` does."""
        if isinstance(event, RunStarted | RunFinished):
            self.tick()

    def tick(self) -> None:
        """Update the numbers."""
        if self._server is not None:
            self._families = families(self._state)

    def collect(self) -> list[Any]:
        """Return the numbers, for the server's thread: always those of one moment."""
        return self._families

    def close(self) -> None:
        """Stop the server, and give the port back."""
        served, self._server = self._server, None
        if served is not None:
            server, thread = served
            server.shutdown()
            server.server_close()
            thread.join()


Labelled = dict[tuple[str, ...], float]
Number = tuple[str, str, Labelled, tuple[str, ...]]
"""A number's name, what it is, its values by the texts of its labels, and the labels; without any, one value."""


def families(state: RunState) -> list[Any]:
    """Return the state of a run as metric families. Numbers whose names end in ``_total`` only rise."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    found = []
    for name, words, values, labels in numbers(state):
        kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
        family = kind(f"headrace_{name.removesuffix('_total')}", words, labels=labels)
        for texts, number in values.items():
            family.add_metric(list(texts), float(number))
        found.append(family)
    return found


def numbers(state: RunState) -> list[Number]:
    """Return the numbers of a run, nothing before it has started. Those whose names end in ``_total`` only rise."""
    driver, found = state.last, list[Number]()
    if driver is None or driver.started is None:
        return found
    if (run := driver.described) is not None:
        which: Labelled = {(run.run, run.engine, run.version): 1}
        found.append(("run", "1; the labels say which run this is", which, ("run", "engine", "version")))
    found += [*_of_rows(state, driver.started), *_of_workers(state)]
    if state.models.known:
        found += _of_models(state)
    if (memory := state.memory) is not None:
        taken: Labelled = {("driver",): memory.driver, ("blocks",): memory.blocks}
        taken |= {(f"stage {number}",): size for number, size in enumerate(memory.stages, 1)}
        found.append(("memory_bytes", "Private memory of the run's processes", taken, ("of",)))
    ended = 0 if driver.finished is None else -1 if driver.finished.error else 1
    return [*found, _one("finished", "1 once the run is complete, -1 if it failed", ended)]


def _one(name: str, words: str, value: float) -> Number:
    return name, words, {(): value}, ()


def _of_rows(state: RunState, started: RunStarted) -> list[Number]:
    """Return what became of rows and shards."""
    rows = state.rows_expected
    known: list[Number] = (
        [] if rows is None else [_one("input_rows", "Rows of the input, if that is known", rows)]
    )
    failed: Labelled = {
        ("rejected",): state.rejected - started.rejected_done,
        ("nulled",): state.nulled - started.nulled_done,
    }
    failed = {outcome: number for outcome, number in failed.items() if number}
    read = "Rows read, those of shards under way and of earlier drivers included"
    written, committed = state.written - started.written_done, state.bytes - started.bytes_done
    return [
        *known,
        _one("rows_read", read, state.rows),
        _one("shards", "Shards of the plan", state.shards),
        _one("shards_done", "Shards committed, those of earlier drivers included", state.shards_done),
        _one("rows_per_second", "Rows read per second, over the last half minute", state.speed(state.at)),
        _one("rows_written_total", "Rows committed to the output by this driver", written),
        ("rows_failed_total", "Rows rejected or nulled in committed shards", failed, ("outcome",)),
        _one("output_bytes_total", "Bytes of output committed by this driver", committed),
    ]


def _of_workers(state: RunState) -> list[Number]:
    """Return what workers did, and what became of them."""
    doing: Labelled = {
        (str(number + 1), name): seconds
        for number, stage in sorted(state.stages.items())
        for name in ("read", "decode", "steps", "write", "wait")
        if (seconds := getattr(stage, name))
    }
    calls: Counter[tuple[str, ...]] = Counter()
    for (step, error), number in state.retried.items():
        calls[one_line(step), one_line(error)] += number
    again = "Calls of the user's code that were tried again"
    return [
        ("worker_seconds_total", "Seconds of workers by stage and what they did", doing, ("stage", "doing")),
        ("calls_retried_total", again, dict(calls), ("step", "error")),
        _one("workers_lost_total", "Workers that ended on their own", state.counts[LOST]),
        _one("workers_retired_total", "Workers ended to stay within memory_limit", state.counts[RETIRED]),
    ]


def _of_models(state: RunState) -> list[Number]:
    """Return what language models were asked for, and what they answered."""
    paid, answered = state.models.paid().total, state.models.answered or Answered()
    read, written = state.models.speed(state.at)
    tokens: Labelled = {("in",): paid.prompt, ("out",): paid.completion}
    speed: Labelled = {("in",): read, ("out",): written}
    kinds = ("rows", "failed", "truncated", "asked_longer", "repaired", "runaway")
    rows: Labelled = {(kind,): getattr(answered, kind) for kind in kinds}
    cost: list[Number] = []
    if state.models.priced:
        cost = [_one("model_cost_total", "What they have cost, by prices=", paid.cost)]
        if (expected := state.cost_expected) is not None:
            about = "What they will have cost in the end, about"
            cost.append(_one("model_cost_expected", about, expected))
    became = "Rows of committed shards that were asked for, and what became of them"
    cached = "Tokens of their prompts from a prefix cache"
    return [
        _one("model_answers_total", "Answers of language models that were paid for", paid.answers),
        ("model_tokens_total", "Tokens of language models that were paid for", tokens, ("direction",)),
        ("model_tokens_per_second", "The same per second, over the last half minute", speed, ("direction",)),
        *cost,
        ("model_rows", became, rows, ("outcome",)),
        _one("model_cached_tokens", cached, answered.cached_tokens),
    ]
