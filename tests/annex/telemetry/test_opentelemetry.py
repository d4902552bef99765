"""Spans and metrics of runs, as the SDK's exporters hold them, and as a server gets them by OTLP."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.annex.cli import main
from headrace.annex.telemetry import opentelemetry
from headrace.errors import ArgumentError, RequirementNotMet, StepError

pytest.importorskip("opentelemetry.exporter.otlp.proto.http")

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"
SECRET = "https://ada:hunter2@example.com/x"


class Collector(HTTPServer):
    """Keeps what it is sent by OTLP over HTTP, by the path."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.got: list[tuple[str, bytes]] = []
        self.url = f"http://127.0.0.1:{self.server_port}"

    def spans(self) -> list[Any]:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        asked = [
            ExportTraceServiceRequest.FromString(body) for path, body in self.got if path == "/v1/traces"
        ]
        scopes = [scope for each in asked for of in each.resource_spans for scope in of.scope_spans]
        return [span for scope in scopes for span in scope.spans]

    def metrics(self) -> dict[str, Any]:
        from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

        bodies = [body for path, body in self.got if path == "/v1/metrics"]
        asked = [ExportMetricsServiceRequest.FromString(body) for body in bodies]
        scopes = [scope for each in asked for of in each.resource_metrics for scope in of.scope_metrics]
        return {metric.name: metric for scope in scopes for metric in scope.metrics}


class Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            import gzip

            body = gzip.decompress(body)
        self.server.got.append((self.path, body))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    found = Collector()
    thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", found.url)
    monkeypatch.setattr(opentelemetry, "_PATIENCE", 300)
    yield found
    found.shutdown()
    thread.join()
    found.server_close()


def write(out: Path, function: Any = None, engine: str = "inline", **options: Any) -> hr.Result:
    for start in range(0, 100, 25):
        pq.write_table(pa.table({"id": list(range(start, start + 25))}), out.parent / f"{start}.parquet")
    data = hr.read_parquet(f"{out.parent}/*.parquet").map(function or _same)
    return data.with_options(engine=engine, progress=False, shard_rows=25, **options).write_parquet(out)


def _same(row: dict[str, Any]) -> dict[str, Any]:
    return row


def _failing(row: dict[str, Any]) -> dict[str, Any]:
    raise ValueError(f"no answer of {SECRET}")


def attributes(span: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}


@pytest.mark.parametrize("engine", ["inline", "local"])
def test_a_collector_gets_the_run_its_stages_and_shards(
    tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    monkeypatch.setenv("TRACEPARENT", PARENT)
    monkeypatch.setenv("HEADRACE_OBSERVERS", "OpenTelemetry")
    result = write(tmp_path / "out", engine=engine)
    spans = collector.spans()
    (run,) = (span for span in spans if span.name == "headrace.run")
    (stage,) = (span for span in spans if span.name == "headrace.stage")
    shards = [span for span in spans if span.name == "headrace.shard"]
    assert {span.trace_id.hex() for span in spans} == {TRACE}
    assert run.parent_span_id.hex() == "00f067aa0ba902b7"
    assert stage.parent_span_id == run.span_id and {each.parent_span_id for each in shards} == {stage.span_id}
    about = attributes(run)
    assert about["headrace.run"] == result.run and about["headrace.output"] == str(tmp_path / "out")
    assert (about["headrace.rows_read"], about["headrace.rows"], about["headrace.engine"]) == (
        100,
        100,
        engine,
    )
    assert sum(attributes(each)["headrace.rows"] for each in shards) == 100
    for span in (stage, *shards):
        assert run.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano
        assert span.end_time_unix_nano <= run.end_time_unix_nano
    metrics = collector.metrics()
    assert metrics["headrace.rows_written"].sum.data_points[-1].as_double == 100
    assert metrics["headrace.shards_done"].gauge.data_points[-1].as_double == 4
    assert metrics["headrace.finished"].gauge.data_points[-1].as_double == 1


def test_providers_of_the_program_are_used(tmp_path: Path) -> None:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, reader = InMemorySpanExporter(), InMemoryMetricReader()
    tracers, meters = TracerProvider(), MeterProvider([reader])
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    observer = hr.observers.OpenTelemetry(tracer_provider=tracers, meter_provider=meters)
    with tracers.get_tracer("mine").start_as_current_span("nightly") as mine:
        write(tmp_path / "first", observers=[observer])
        with pytest.raises(StepError):
            write(tmp_path / "second", _failing, observers=[observer])
        with pytest.raises(RequirementNotMet):
            data = hr.range(3).require(rows=hr.at_least(9))
            data.with_options(engine="inline", progress=False, observers=[observer]).write_parquet(
                tmp_path / "third"
            )
    spans = exporter.get_finished_spans()
    first, second, third = (span for span in spans if span.name == "headrace.run")
    for span in (first, second, third):
        assert span.parent is not None and span.parent.span_id == mine.get_span_context().span_id
    assert first.status.is_ok and not second.status.is_ok and not third.status.is_ok
    assert "ValueError" in str(second.status.description) and "hunter2" not in str(second.status.description)
    assert [(each.name, dict(each.attributes or {})) for each in third.events] == [
        ("requirements asked", {"headrace.words": "not met"})
    ]
    tracers.shutdown()
    meters.shutdown()


def test_nobody_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.2")
    assert write(tmp_path / "out", observers=[hr.observers.OpenTelemetry()]).rows == 100
    assert "Failed to export" in caplog.text


@pytest.mark.parametrize(
    ("names", "words"),
    [("OpenTelemetri", "Did you mean 'OpenTelemetry'"), ("Log", "has to be given in a script")],
)
def test_names_that_make_no_sense(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    names: str,
    words: str,
) -> None:
    monkeypatch.setenv("HEADRACE_OBSERVERS", names)
    with pytest.raises(ArgumentError, match=f"HEADRACE_OBSERVERS is '{names}': .*{words}"):
        write(tmp_path / "out")
    monkeypatch.delenv("HEADRACE_OBSERVERS")
    (tmp_path / "job.py").write_text("import headrace as hr\ndataset = hr.range(3)\n")
    assert main(["run", str(tmp_path / "job.py"), "-o", str(tmp_path / "x"), "-O", f"observers={names}"]) == 2
    assert words in capsys.readouterr().err.replace("\n", " ")
