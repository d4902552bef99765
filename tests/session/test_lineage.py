"""The event of OpenLineage that a run leaves, and sends if it is asked to."""

from __future__ import annotations

import json
import logging
import threading
import uuid
from collections.abc import Iterator
from datetime import datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.errors import RequirementNotMet, StepError
from headrace.session import lineage

SPEC = "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent"
KEY = "k3y-that-nobody-may-see"


class Server(HTTPServer):
    """Keeps what it is sent; ``answer`` is its status."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.got: list[tuple[str, str | None, dict[str, Any]]] = []
        self.answer = 201
        self.url = f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.got.append((self.path, self.headers["Authorization"], json.loads(body)))
        self.send_response(self.server.answer)
        if self.server.answer == 302:
            self.send_header("Location", f"{self.server.url}/elsewhere")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    found = Server()
    thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setenv("OPENLINEAGE_URL", found.url)
    yield found
    found.shutdown()
    thread.join()
    found.server_close()


def put(folder: Path, name: str, rows: int) -> None:
    folder.mkdir(exist_ok=True)
    pq.write_table(pa.table({"id": list(range(rows))}), folder / f"{name}.parquet")


def double(batch: dict[str, Any]) -> Any:
    return batch["id"] * 2


def failing(batch: dict[str, Any]) -> Any:
    raise ValueError("not this")


def run(folder: Path, function: Any = double, **options: Any) -> hr.Result:
    data = hr.read_parquet(f"{folder}/in/*.parquet").predict(function, inputs=["id"], output="twice")
    data = data.with_options(engine="inline", progress=False, **options)
    return data.write_parquet(folder / "out", incremental=True)


def event(folder: Path, name: str = "openlineage.json") -> dict[str, Any]:
    (found,) = (folder / "out/_headrace").glob(f"*/{name}")
    assert found.stat().st_mode & 0o077 == 0
    return checked(json.loads(found.read_text()))


def checked(event: dict[str, Any]) -> dict[str, Any]:
    """Assert what the specification demands of a RunEvent, and return it."""
    assert event["schemaURL"] == SPEC and event["producer"].startswith("https://")
    assert event["eventType"] in ("START", "COMPLETE", "ABORT", "FAIL")
    assert datetime.fromisoformat(event["eventTime"].replace("Z", "+00:00")).tzinfo is not None
    assert str(uuid.UUID(event["run"]["runId"])) == event["run"]["runId"]
    assert event["job"]["namespace"] and event["job"]["name"]
    holders = [event["run"], event["job"], *event["inputs"], *event["outputs"]]
    for each in (*event["inputs"], *event["outputs"]):
        assert each["namespace"] and each["name"]
    for facets in (
        each.get(name, {}) for each in holders for name in ("facets", "inputFacets", "outputFacets")
    ):
        for facet in facets.values():
            assert facet["_producer"] == event["producer"]
            assert facet["_schemaURL"].startswith("https://openlineage.io/spec/")
    return event


def test_each_run_leaves_one(tmp_path: Path) -> None:
    put(tmp_path / "in", "a", 10)
    first = run(tmp_path)
    one = event(tmp_path)
    assert one["eventType"] == "COMPLETE" and one["job"]["name"] == str(tmp_path / "out")
    (given,) = one["inputs"]
    assert (given["namespace"], given["name"]) == ("file", str(tmp_path / "in"))
    size = (tmp_path / "in/a.parquet").stat().st_size
    files = given["facets"]["headrace_files"]
    assert files["count"] == 1 and files["files"][0]["path"] == str(tmp_path / "in/a.parquet")
    assert given["inputFacets"]["inputStatistics"]["size"] == files["files"][0]["size"] == size
    (made,) = one["outputs"]
    assert made["name"] == str(tmp_path / "out") and made["facets"]["version"]["datasetVersion"] == first.run
    assert made["facets"]["schema"]["fields"] == [{"name": n, "type": "int64"} for n in ("id", "twice")]
    assert made["outputFacets"]["outputStatistics"]["rowCount"] == 10
    model = one["run"]["facets"]["headrace_model"]
    assert [each["step"] for each in model["models"]] == ["predict(double)"]
    assert model["code"] == first.runs[0]["code"][0]

    run(tmp_path)  # nothing new: no run, no event
    assert event(tmp_path) == one
    put(tmp_path / "in", "b", 5)
    run(tmp_path)
    two = event(tmp_path)
    assert event(tmp_path, "openlineage-1.json") == one
    assert [file["path"] for file in two["inputs"][0]["facets"]["headrace_files"]["files"]] == [
        str(tmp_path / "in/b.parquet")
    ]
    assert two["run"]["runId"] != one["run"]["runId"] and two["job"] == one["job"]
    assert two["run"]["facets"]["headrace_model"]["run"] == f"{first.run}-2"
    version = "facets", "version", "datasetVersion"
    assert _at(two["inputs"][0], version) != _at(given, version)
    assert _at(two["outputs"][0], version) == f"{first.run}-2"


def _at(value: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        value = value[name]
    return value


def test_what_is_published_all_the_same_is_complete(tmp_path: Path, server: Server) -> None:
    data = hr.range(3).require(rows=hr.at_least(9)).with_options(engine="inline", progress=False)
    with pytest.raises(RequirementNotMet):
        data.write_parquet(tmp_path / "out")
    failed = event(tmp_path)
    assert failed["eventType"] == "FAIL" and "errorMessage" in failed["run"]["facets"]
    for _ in range(2):  # a second time nothing happens
        hr.publish(tmp_path / "out", because="three will do")
        done = event(tmp_path)
        assert done["eventType"] == "COMPLETE" and "errorMessage" not in done["run"]["facets"]
        assert (done["run"]["runId"], done["outputs"]) == (failed["run"]["runId"], failed["outputs"])
        assert [sent["eventType"] for *_, sent in server.got] == ["START", "FAIL", "COMPLETE"]


def test_it_is_sent(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENLINEAGE_ENDPOINT", "/lineage/of/ours")
    monkeypatch.setenv("OPENLINEAGE_API_KEY", KEY)
    monkeypatch.setenv("OPENLINEAGE_NAMESPACE", "nightly")
    put(tmp_path / "in", "a", 10)
    run(tmp_path)
    assert [(path, key) for path, key, _ in server.got] == [("/lineage/of/ours", f"Bearer {KEY}")] * 2
    began, ended = (checked(each) for _, _, each in server.got)
    assert (began["eventType"], ended) == ("START", event(tmp_path))
    assert began["run"]["runId"] == ended["run"]["runId"] and began["job"]["namespace"] == "nightly"
    assert began["eventTime"] <= ended["eventTime"] and "outputFacets" not in began["outputs"][0]
    left = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert not any(KEY.encode() in path.read_bytes() for path in left)

    put(tmp_path / "in", "b", 5)
    with pytest.raises(StepError):
        run(tmp_path, failing, show_data=False)
    failed = event(tmp_path)
    assert failed["eventType"] == "FAIL" and "predict(failing)" in json.dumps(failed)
    assert failed["run"]["facets"]["errorMessage"]["message"].startswith("StepError: predict(failing) raised")
    assert server.got[-1][2] == failed


@pytest.mark.parametrize("answer", [302, 500, None])
def test_a_server_that_does_not_take_it(
    tmp_path: Path,
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    answer: int | None,
) -> None:
    monkeypatch.setenv("OPENLINEAGE_API_KEY", KEY)
    if answer is None:
        monkeypatch.setenv("OPENLINEAGE_URL", "http://127.0.0.1:1/")
    else:
        server.answer = answer
    put(tmp_path / "in", "a", 10)
    with caplog.at_level(logging.WARNING):
        assert run(tmp_path).rows == 10
    (said,) = (each.getMessage() for each in caplog.records if each.name == "headrace")
    assert "did not take it" in said and "Its rows are not affected" in said and KEY not in said
    assert event(tmp_path)["eventType"] == "COMPLETE"
    assert len(server.got) == (0 if answer is None else 1)


def test_what_is_no_server_and_what_is_switched_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OPENLINEAGE_URL", "file:///etc/passwd")
    put(tmp_path / "in", "a", 10)
    with caplog.at_level(logging.WARNING):
        run(tmp_path)
    assert "OPENLINEAGE_URL is an address such as" in caplog.text
    monkeypatch.setenv("OPENLINEAGE_DISABLED", "true")
    (tmp_path / "out/_headrace").rename(tmp_path / "away")
    hr.range(3).with_options(engine="inline", progress=False).write_csv(tmp_path / "other")
    assert not list((tmp_path / "other").rglob("openlineage*"))


def test_passwords_in_the_words_of_an_error_are_hidden(tmp_path: Path) -> None:
    def fails(batch: dict[str, Any]) -> dict[str, Any]:
        raise OSError("no answer of postgresql://ada:hunter2@db/x?sslpassword=hunter2")

    data = hr.range(3).with_options(engine="inline", progress=False).map_batches(fails)
    with pytest.raises(StepError):
        data.write_csv(tmp_path / "out")
    (event,) = [path.read_text() for path in (tmp_path / "out").rglob("openlineage.json")]
    assert "hunter2" not in event and "no answer of postgresql://***@db/x?sslpassword=***" in event


def test_many_files_are_summed_up() -> None:
    files = [(f"/in/{i}.csv", 2, i) for i in range(2_500)]
    (found,) = lineage.inputs_of(["/in/"], files)
    listed = found["facets"]["headrace_files"]
    assert (len(listed["files"]), listed["count"], found["inputFacets"]["inputStatistics"]["fileCount"]) == (
        1_000,
        2_500,
        2_500,
    )
    assert [each["name"] for each in lineage.inputs_of([], files[:2])] == ["/in/0.csv", "/in/1.csv"]
