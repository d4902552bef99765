"""The numbers of a run for Prometheus, at ``/metrics`` on 127.0.0.1 while it goes on."""

from __future__ import annotations

import threading
import time
from typing import Any

from millrace.core.events import (
    CallRetried,
    Event,
    MemoryTaken,
    RunDescribed,
    RunFinished,
    RunStarted,
    ShardCommitted,
    Worked,
    WorkerLost,
    WorkerRetired,
)
from millrace.core.warn import warn
from millrace.observers.tally import Tally
from millrace.screen import one_line

HOST = "127.0.0.1"


def serving(port: int) -> list[Prometheus]:
    """Return an observer that serves at ``port``; none, and a warning, if that cannot be."""
    try:
        return [Prometheus(port)]
    except ImportError:
        warn(
            "metrics_port= takes the package prometheus-client: pip install 'millrace[prometheus]'. The run goes on "
            "without it."
        )
    except OSError as error:
        warn(
            f"metrics_port={port}: {HOST}:{port} cannot be listened at ({error.strerror or error}). The run goes on "
            "without it."
        )
    return []


class Prometheus:
    """Serves the numbers at ``http://127.0.0.1:<port>/metrics`` until it is closed.

    It has a registry of its own: nothing of the process beside it is told. Raises ``ImportError`` without
    prometheus-client, ``OSError`` if the port is taken.
    """

    def __init__(self, port: int) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

        self._tally: Tally | None = None
        self._registry = CollectorRegistry()

        def gauge(name: str, what: str, *labels: str) -> Any:
            return Gauge(f"millrace_{name}", what, labels, registry=self._registry)

        def counter(name: str, what: str, *labels: str) -> Any:
            return Counter(f"millrace_{name}", what, labels, registry=self._registry)

        self._run = gauge("run", "1; the labels say which run this is", "run", "engine", "version")
        self._total = gauge("input_rows", "Rows of the input, if that is known")
        self._read = gauge(
            "rows_read", "Rows read, those of shards under way and of earlier drivers among them"
        )
        self._shards = gauge("shards", "Shards of the plan")
        self._done = gauge("shards_done", "Shards committed, those of earlier drivers among them")
        self._speed = gauge("rows_per_second", "Rows read per second, over the last half minute")
        self._written = counter("rows_written", "Rows committed to the output by this driver")
        self._failed = counter("rows_failed", "Rows rejected or nulled in committed shards", "outcome")
        self._bytes = counter("output_bytes", "Bytes of output committed by this driver")
        self._worked = counter(
            "worker_seconds", "Seconds of workers by stage and what they did", "stage", "doing"
        )
        self._retries = counter("calls_retried", "Calls of the user's code that were tried again", "step")
        self._lost = counter("workers_lost", "Workers that ended on their own")
        self._retired = counter("workers_retired", "Workers ended to stay within memory_limit")
        self._memory = gauge("memory_bytes", "Private memory of the run's processes", "of")
        self._ended = gauge("finished", "1 once the run is complete, -1 if it failed")
        self._server, self._thread = _started(start_http_server, port, self._registry)

    def on_event(self, event: Event) -> None:
        """Count."""
        if self._tally is not None:
            self._tally.add(event)
        if isinstance(event, RunDescribed):
            self._run.labels(event.run, event.engine, event.version).set(1)
        elif isinstance(event, RunStarted):
            self._tally = Tally(event, time.monotonic())
            if event.rows >= 0:
                self._total.set(event.rows)
            self._look()
        elif isinstance(event, ShardCommitted):
            self._written.inc(event.ledger.written)
            self._bytes.inc(event.bytes)
            for outcome, rows in (("rejected", event.ledger.rejected), ("nulled", event.ledger.nulled)):
                if rows:
                    self._failed.labels(outcome).inc(rows)
        elif isinstance(event, Worked):
            for doing in ("read", "steps", "write", "wait"):
                if seconds := getattr(event.timings, doing):
                    self._worked.labels(str(event.stage + 1), doing).inc(seconds)
        elif isinstance(event, CallRetried):
            self._retries.labels(one_line(event.step)).inc()
        elif isinstance(event, MemoryTaken):
            self._memory.labels("driver").set(event.driver)
            self._memory.labels("blocks").set(event.blocks)
            for stage, taken in enumerate(event.stages, 1):
                self._memory.labels(f"stage {stage}").set(taken)
        elif isinstance(event, RunFinished):
            self._look()
            self._ended.set(-1 if event.error else 1)
        self._lost.inc(isinstance(event, WorkerLost))
        self._retired.inc(isinstance(event, WorkerRetired))

    def tick(self) -> None:
        """Bring the numbers up to date that change without an event of their own."""
        self._look()

    def close(self) -> None:
        """Give the port back."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()
            self._thread.join()

    def _look(self) -> None:
        if self._tally is None:
            return
        speed, _ = self._tally.look(time.monotonic())
        self._speed.set(speed)
        self._read.set(self._tally.rows)
        self._shards.set(self._tally.all_shards)
        self._done.set(self._tally.shards)


def _started(start: Any, port: int, registry: Any) -> tuple[Any, threading.Thread]:
    try:
        server, thread = start(port, addr=HOST, registry=registry)
    except OverflowError as error:  # a port is a number up to 65,535
        raise OSError(0, str(error)) from error
    return server, thread
