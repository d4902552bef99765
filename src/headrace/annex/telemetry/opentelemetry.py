"""A run for OpenTelemetry: spans of the run, its stages and their attempts at shards, and its numbers as metrics.

https://opentelemetry.io/docs/specs/otel/ says what spans and metrics are, https://www.w3.org/TR/trace-context/ what
``TRACEPARENT`` holds.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

from headrace.annex.telemetry import figures_of, parameters_of
from headrace.core.arguments import known_arguments
from headrace.core.asked import RequirementsAsked
from headrace.core.door import library
from headrace.core.events import (
    CallRetried,
    Event,
    RunFinished,
    RunStarted,
    ShardRetried,
    Worked,
    WorkerLost,
)
from headrace.core.stores.addresses import without_secrets_in
from headrace.observers.prometheus import Number, numbers
from headrace.observers.run_state import RunState
from headrace.version import __version__

_SPANS = 10_000  # of attempts in a run; those that fail are always there
_PATIENCE = 3  # seconds for what is left at the end, if nobody answers
_BAD = ("failed", "lost")
_NOTED: dict[type, tuple[str, str]] = {  # events of the run's span, and which field says why
    ShardRetried: ("shard tried again", "reason"),
    WorkerLost: ("worker lost", "reason"),
    CallRetried: ("call tried again", "error"),
    RequirementsAsked: ("requirements asked", "verdict"),
}


class OpenTelemetry:
    """Sends spans and metrics of a run to a collector, by OTLP over HTTP.

    There is a span for the run, one for each stage, and one for each attempt at a shard. The variables that all
    programs with OpenTelemetry have say where to, such as ``OTEL_EXPORTER_OTLP_ENDPOINT`` and ``OTEL_SERVICE_NAME``.
    The run's span belongs to the span that is current in this process, or to the one that ``TRACEPARENT`` names.
    Where the program has set providers of its own, they are used. A collector that does not answer costs a few
    seconds at the end, and never the run.

    Parameters
    ----------
    tracer_provider, meter_provider
        Providers to use instead; they are flushed, not shut down.

    Raises
    ------
    MissingLibrary
        The extra ``opentelemetry`` is not installed.

    Examples
    --------
    >>> import headrace as hr
    >>> data = hr.range(1000).with_options(observers=[hr.observers.OpenTelemetry()])
    """

    @known_arguments
    def __init__(self, *, tracer_provider: Any = None, meter_provider: Any = None) -> None:
        library("OpenTelemetry", "opentelemetry.sdk", "opentelemetry")
        self._given = tracer_provider, meter_provider
        self._ours: list[Any] = []
        self._providers: list[Any] = []
        self._state = RunState()
        self._clear()

    def _clear(self) -> None:
        self._run: Any = None
        self._stages: dict[int, Any] = {}
        self._attempts = self._left_out = 0
        self._numbers: list[Number] = []
        self._instruments: dict[str, Any] = {}

    def attach(self, state: RunState) -> None:
        """Begin with a run, whose times and numbers are read from ``state``."""
        self.close()
        self._state = state
        tracers, meters = self._given
        self._providers = [tracers or self._tracers(), meters or self._meters()]
        self._tracer = self._providers[0].get_tracer("headrace", __version__)
        self._meter = self._providers[1].get_meter("headrace", __version__)

    def _tracers(self) -> Any:
        """Return the provider that the program has set; else one that exports as the environment says."""
        from opentelemetry import trace
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        if isinstance(found := trace.get_tracer_provider(), TracerProvider):
            return found
        made = TracerProvider(resource=_resource())
        made.add_span_processor(BatchSpanProcessor(_exporter("trace_exporter", "OTLPSpanExporter")))
        self._ours.append(made)
        return made

    def _meters(self) -> Any:
        from opentelemetry import metrics
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

        if isinstance(found := metrics.get_meter_provider(), MeterProvider):
            return found
        reader = PeriodicExportingMetricReader(_exporter("metric_exporter", "OTLPMetricExporter"))
        self._ours.append(MeterProvider([reader], _resource()))
        return self._ours[-1]

    def on_event(self, event: Event) -> None:
        """Begin and end spans."""
        at = self._state.at
        if isinstance(event, RunStarted):
            self._begin(event)
        elif self._run is None:
            return
        elif isinstance(event, Worked):
            self._worked(event, at)
        elif isinstance(event, RunFinished):
            self._finish(event, at)
        elif type(event) in _NOTED:
            name, words = _NOTED[type(event)]
            about = {"headrace.words": without_secrets_in(getattr(event, words))[:500]}
            self._run.add_event(name, about, _nanoseconds(at))
        if isinstance(event, RunStarted | RunFinished):
            self.tick()

    def tick(self) -> None:
        """Update the numbers; each is exported when the provider asks for it."""
        self._numbers = numbers(self._state)
        for name, words, _, _ in self._numbers:
            if name not in self._instruments:
                self._instruments[name] = self._instrument(name, words)

    def close(self) -> None:
        """Export what is left; providers of ours are shut down."""
        if self._run is not None:
            self._run.end()
        for provider in self._providers:
            flush = getattr(provider, "force_flush", None)
            if provider in self._ours:
                provider.shutdown()
            elif flush is not None:
                flush(timeout_millis=1_000 * _PATIENCE)
        self._providers, self._ours = [], []
        self._clear()

    def _begin(self, event: RunStarted) -> None:
        from opentelemetry import trace

        state, about = self._state, _named(event, "run", "number", "shards", "shards_done")
        about["headrace.output"] = without_secrets_in(event.output)
        about |= {f"headrace.{name}": text for name, text in parameters_of(state.described).items()}
        start = _nanoseconds(state.drivers[-1].began)
        self._run = self._tracer.start_span("headrace.run", _parent(), attributes=about, start_time=start)
        context = trace.set_span_in_context(self._run)
        for number, name in enumerate(state.stage_names):
            of_stage = {"headrace.stage": number + 1, "headrace.steps": name}
            span = self._tracer.start_span("headrace.stage", context, attributes=of_stage, start_time=start)
            self._stages[number] = span

    def _worked(self, event: Worked, at: float) -> None:
        from opentelemetry import trace

        self._attempts += 1
        bad = event.outcome in _BAD
        if self._attempts > _SPANS and not bad:
            self._left_out += 1
            return
        about = _named(event, "shard", "attempt", "worker", "outcome", "rows")
        stage = self._stages.get(event.stage, self._run)
        start = _nanoseconds(at - event.seconds)
        context = trace.set_span_in_context(stage)
        span = self._tracer.start_span("headrace.shard", context, attributes=about, start_time=start)
        if bad:
            span.set_status(trace.Status(trace.StatusCode.ERROR, event.outcome))
        span.end(_nanoseconds(at))

    def _finish(self, event: RunFinished, at: float) -> None:
        from opentelemetry import trace

        end = _nanoseconds(at)
        for number, span in self._stages.items():
            if number < len(event.stages):
                span.set_attributes(_named(event.stages[number], "workers", "busy"))
            span.end(end)
        about = {**figures_of(event, self._state), "headrace.spans_left_out": self._left_out}
        self._run.set_attributes(about)
        code = trace.StatusCode.ERROR if event.error else trace.StatusCode.OK
        self._run.set_status(trace.Status(code, without_secrets_in(event.error)[:2_000] or None))
        self._run.end(end)
        self._run = None

    def _instrument(self, name: str, words: str) -> Any:
        meter, rises = self._meter, name.endswith("_total")
        make = meter.create_observable_counter if rises else meter.create_observable_gauge
        unit = "By" if "bytes" in name else "s" if "seconds" in name else ""
        title = f"headrace.{name.removesuffix('_total')}"
        return make(title, [self._observed(name)], unit=unit, description=words)

    def _observed(self, name: str) -> Callable[[Any], Iterable[Any]]:
        """Return what gives a number, when the provider's thread asks: always those of one moment."""
        from opentelemetry.metrics import Observation

        def observe(_: Any) -> Iterable[Any]:
            for known, _words, values, labels in self._numbers:
                for texts, number in values.items() if known == name else ():
                    yield Observation(float(number), dict(zip(labels, texts, strict=True)))

        return observe


def _parent() -> Any:
    """Return the context that the run's span belongs to: that of this process, else that of ``TRACEPARENT``."""
    from opentelemetry import context, trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    if trace.get_current_span().get_span_context().is_valid:
        return context.get_current()
    carried = {name: os.environ.get(name.upper(), "") for name in ("traceparent", "tracestate")}
    return TraceContextTextMapPropagator().extract({name: text for name, text in carried.items() if text})


def _exporter(module: str, name: str) -> Any:
    """Return an exporter that waits for seconds only, unless the environment says for how long."""
    place = f"opentelemetry.exporter.otlp.proto.http.{module}"
    said = any("OTLP" in each and each.endswith("_TIMEOUT") for each in os.environ)
    kind = getattr(library("OpenTelemetry", place, "opentelemetry"), name)
    return kind(timeout=None if said else _PATIENCE)


def _resource() -> Any:
    from opentelemetry.sdk.resources import Resource

    return Resource.create({"service.name": os.environ.get("OTEL_SERVICE_NAME") or "headrace"})


def _named(event: Any, *names: str) -> dict[str, Any]:
    return {f"headrace.{name}": getattr(event, name) for name in names}


def _nanoseconds(at: float) -> int:
    return int(at * 1e9)
