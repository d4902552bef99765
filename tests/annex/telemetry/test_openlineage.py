"""Events of OpenLineage, as a server gets them that answers well, badly or not at all."""

from __future__ import annotations

import json
import logging
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
from headrace.annex.telemetry import openlineage
from headrace.errors import ArgumentError, RequirementNotMet, StepError
from later import needs

pytestmark = needs("openlineage")

KEY = "k3y-that-nobody-may-see"
SPEC = "https://openlineage.io/spec/"


class Server(HTTPServer):
    """Keeps what it is sent; ``answer`` is its status."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.got: list[tuple[str, str | None, dict[str, Any]]] = []
        self.answer = 201
        self.url = f"http://127.0.0.1:{self.server_port}"

    def kinds(self) -> list[str]:
        return [event["eventType"] for *_, event in self.got]


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.got.append((self.path, self.headers["Authorization"], json.loads(body)))
        self.send_response(self.server.answer)
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
    monkeypatch.setenv("OPENLINEAGE_API_KEY", KEY)
    monkeypatch.setattr(openlineage, "_PATIENCE", 300)
    yield found
    found.shutdown()
    thread.join()
    found.server_close()


def double(batch: dict[str, Any]) -> Any:
    return batch["id"] * 2


def failing(batch: dict[str, Any]) -> Any:
    raise OSError("no answer of postgresql://ada:hunter2@db/x")


def run(folder: Path, function: Any = double, **options: Any) -> hr.Result:
    data = hr.read_parquet(f"{folder}/in/").predict(function, inputs=["id"], output="twice")
    options = {"engine": "inline", "progress": False, "observers": [hr.observers.OpenLineage()], **options}
    return data.with_options(**options).write_parquet(folder / "out", incremental=True)


def put(folder: Path, name: str, rows: int) -> None:
    (folder / "in").mkdir(exist_ok=True)
    pq.write_table(pa.table({"id": list(range(rows))}), folder / f"in/{name}.parquet")


def test_a_run_begins_and_ends(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENLINEAGE_ENDPOINT", "lineage/of/ours")
    monkeypatch.setenv("OPENLINEAGE_NAMESPACE", "nightly")
    put(tmp_path, "a", 10)
    made = run(tmp_path)
    assert [(path, key) for path, key, _ in server.got] == [("/lineage/of/ours", f"Bearer {KEY}")] * 2
    began, ended = (event for *_, event in server.got)
    assert (began["eventType"], ended["eventType"]) == ("START", "COMPLETE")
    assert began["run"]["runId"] == ended["run"]["runId"] and began["eventTime"] <= ended["eventTime"]
    assert ended["job"]["namespace"] == "nightly" and ended["job"]["name"] == str(tmp_path / "out")
    (given,), (output,) = ended["inputs"], ended["outputs"]
    assert (given["namespace"], given["name"]) == ("file", str(tmp_path / "in"))
    assert (output["namespace"], output["name"]) == ("file", str(tmp_path / "out"))
    found = {each["name"]: each["type"] for each in output["facets"]["schema"]["fields"]}
    assert found == {"id": "int64", "twice": "int64"}
    assert output["facets"]["version"]["datasetVersion"] == made.run
    counted = output["outputFacets"]["outputStatistics"]
    assert (counted["rowCount"], counted["fileCount"]) == (
        10,
        len(list((tmp_path / "out").glob("*.parquet"))),
    )
    texts = {
        each["key"]: each["value"] for each in ended["run"]["facets"]["executionParameters"]["parameters"]
    }
    assert texts["run"] == made.run and len(texts["model.predict(double)"]) >= 16
    ours = [facet for name, facet in ended["run"]["facets"].items() if name != "tags"]  # the client's own
    for facet in (*ours, *output["facets"].values()):
        assert facet["_schemaURL"].startswith(SPEC) and facet["_producer"] == ended["producer"]
    left = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert not any(KEY.encode() in path.read_bytes() for path in left)

    put(tmp_path, "b", 5)
    run(tmp_path)
    again = server.got[-1][2]
    assert again["job"] == ended["job"] and again["run"]["runId"] != ended["run"]["runId"]
    assert again["outputs"][0]["facets"]["version"]["datasetVersion"] == f"{made.run}-2"


def test_the_version_of_a_table_that_was_read(tmp_path: Path, server: Server) -> None:
    deltalake = pytest.importorskip("deltalake")
    for mode in ("error", "append"):
        deltalake.write_deltalake(tmp_path / "t", pa.table({"id": [1, 2]}), mode=mode)
    options = {"engine": "inline", "progress": False, "observers": [hr.observers.OpenLineage()]}
    hr.read_delta(tmp_path / "t").with_options(**options).write_parquet(tmp_path / "out")
    (given,) = server.got[-1][2]["inputs"]
    assert (given["name"], given["facets"]["version"]["datasetVersion"]) == (str(tmp_path / "t"), "1")


def test_a_run_that_fails(tmp_path: Path, server: Server) -> None:
    put(tmp_path, "a", 10)
    with pytest.raises(StepError):
        run(tmp_path, failing)
    assert server.kinds() == ["START", "FAIL"]
    words = json.dumps(server.got[-1][2])
    assert "no answer of postgresql://***@db/x" in words and "hunter2" not in words


def test_a_run_that_is_not_as_required_fails(tmp_path: Path, server: Server) -> None:
    options = {"engine": "inline", "progress": False, "observers": [hr.observers.OpenLineage()]}
    with pytest.raises(RequirementNotMet):
        hr.range(3).require(rows=hr.at_least(9)).with_options(**options).write_parquet(tmp_path / "out")
    assert server.kinds() == ["START", "FAIL"]


@pytest.mark.parametrize("answer", [400, None])
def test_a_server_that_does_not_take_it(
    tmp_path: Path,
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    answer: int | None,
) -> None:
    if answer is None:
        monkeypatch.setenv("OPENLINEAGE_URL", "http://127.0.0.1:1/")
    else:
        server.answer = answer
    monkeypatch.setattr(openlineage, "_PATIENCE", 0.5)
    put(tmp_path, "a", 10)
    with caplog.at_level(logging.WARNING, "headrace"):
        assert run(tmp_path).rows == 10
    said = [each.getMessage() for each in caplog.records if each.name == "headrace"]
    assert said and all("OpenLineage" in each and KEY not in each for each in said)


def test_by_name_on_the_command_line(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_OBSERVERS", "OpenLineage")
    put(tmp_path, "a", 10)
    (tmp_path / "doubles.py").write_text("def double(batch):\n    return batch['id'] * 2\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert (
        main(
            [
                "predict",
                "doubles:double",
                f"{tmp_path}/in",
                "-o",
                f"{tmp_path}/out",
                "--inputs",
                "id",
                "--engine",
                "inline",
            ]
        )
        == 0
    )
    assert server.kinds() == ["START", "COMPLETE"]


def test_what_is_refused() -> None:
    with pytest.raises(ArgumentError, match="it takes a text"):
        hr.observers.OpenLineage(namespace="")
