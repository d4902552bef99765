"""The page of a run while it goes on: who gets it, what it shows, and what may be asked of the run there."""

from __future__ import annotations

import contextlib
import html
import http.client
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.annex.report.facts import History, facts
from headrace.annex.report.follow import Follower
from headrace.annex.report.head import head, slow_part, verdict
from headrace.annex.report.live import Pages
from headrace.annex.report.serving import Server
from headrace.core.events import RowsRead, RunStarted, WorkerReady
from observers.browsers import browser, findings, size_of_window
from stores.conftest import (  # noqa: F401 - fixtures
    Bucket,
    _proxy,
    bucket,
    port,
    proxy,
    raw,
)

JOB = """
import sys, time
from pathlib import Path
import numpy as np
import headrace as hr

here = Path(sys.argv[1])


def gated(batch):
    while batch["id"].max() >= int((here / "open").read_text() or 0):
        time.sleep(0.005)
    return batch


def check(row):
    if row["id"] % 100 == 5:
        raise ValueError(f"secret-{row['id']} </script><script>document.title = 'taken'</script> \\x1b[31m")
    return row


class Model:
    def __call__(self, batch):
        return np.array([f"verdict-{i}" for i in batch["id"]])


def scored(batch):
    for number in gated(batch)["id"]:
        check({"id": number})
    return Model()(batch)


given = eval(sys.argv[2])
to, mode, key, source = (given.pop(each, None) for each in ("to", "mode", "key", "source"))
if mode:
    rows = hr.read_delta(source).predict(scored, inputs=["id"], output="score")
else:
    rows = hr.read_parquet(source) if source else hr.range(1000)
    rows = rows.map_batches(gated, batch_size=50).map(check).predict(Model, inputs=["id"], output="score")
rows = rows.accumulate(mean=hr.Mean("id"))
options = dict(engine="local", on_error="reject", watch=True, shard_rows=100, workers=2)
rows = rows.with_options(**(options | given))
if mode:
    rows.write_delta(source, mode=mode)
else:
    rows.write_parquet(to or here / "out", **({"incremental": True, "key": key} if key else {}))
"""


class Job:
    """A run in another process, whose rows go as far as they are let."""

    def __init__(self, here: Path, **options: Any) -> None:
        self.here = here
        self.open(300)
        (here / "job.py").write_text(JOB)
        command = [sys.executable, str(here / "job.py"), str(here), repr(options)]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.said: list[str] = []

    def open(self, rows: int) -> None:
        fresh = self.here / "open.new"
        fresh.write_text(str(rows))
        fresh.rename(self.here / "open")

    def address(self) -> str:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said.append(line)
            if line.startswith("watch: "):
                return line.split()[1]
        raise AssertionError(self.said)

    def end(self) -> int:
        """Let all rows go, and wait for the end."""
        self.open(1_000_000)
        self.said += (self.process.communicate(timeout=60)[1] or "").splitlines(keepends=True)
        return self.process.returncode


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    begun: list[Job] = []

    def begin(**options: Any) -> Job:
        begun.append(Job(tmp_path, **options))
        return begun[-1]

    yield begin
    for job in begun:
        job.process.kill()
        job.process.communicate()


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    with browser() as made:
        yield made


def asked(
    address: str, method: str = "GET", path: str | None = None, body: str | None = None, **headers: str
) -> Any:
    """Return the status and the text of an answer."""
    place, _, token = address.removeprefix("http://").partition("/")
    connection = http.client.HTTPConnection(place, timeout=30)
    connection.request(method, f"/{token}" if path is None else path, body, headers)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def until(holds: Callable[[], Any]) -> Any:
    """Wait for what a page or a run will show."""
    end = time.monotonic() + 40
    while time.monotonic() < end:
        if found := holds():
            return found
        time.sleep(0.1)
    raise AssertionError("it never came")


def shows(driver: Any, *words: str) -> bool:
    text = driver.find_element("tag name", "main").text
    return all(word in text for word in words)


def test_only_who_has_the_token_gets_it(run: Callable[..., Job]) -> None:
    job = run()
    address = job.address()
    number, token = address.split(":")[2].split("/")[:2]
    assert len(token) > 30 and address.startswith("http://127.0.0.1:")
    assert asked(address)[0] == 200
    for name in ("localhost", "LOCALHOST:8900", "127.0.0.1:1", f"[::1]:{number}"):  # by a tunnel, any port
        assert asked(address, Host=name)[0] == 200
    for name in (
        "example.com",
        f"example.com:{number}",
        "127.0.0.1.example.com",
        "localhost@example.com",
        "",
    ):
        assert asked(address, Host=name)[0] == 403
    for path in ("/", "/x/", f"/{token[:-1]}/", f"/{token}x/", f"/a/{token}/", "/?" + token):
        status, text = asked(address, path=path)
        assert status == 403 and "Headrace" not in text
    assert job.end() == 0


def test_what_no_browser_sends_gets_nothing(run: Callable[..., Job]) -> None:
    """Requests that two readers could understand in two ways are refused, also with the token."""
    job = run()
    address = job.address()
    place, token = address.removeprefix("http://").split("/")[:2]
    number = int(place.split(":")[1])
    page, asks = f"GET /{token}/", f"POST /{token}/ask"
    json = "Host: localhost\r\nContent-Type: application/json\r\n"
    for request in (
        f"{page} HTTP/1.1\r\n\r\n",  # of no host
        f"{page}\r\nHost: localhost\r\n\r\n",
        f"{page} HTTP/1.1\r\nHost: localhost\r\nHost: example.com\r\n\r\n",
        f"{page} HTTP/1.1\r\nHost: example.com\r\nHost: localhost\r\n\r\n",
        f"{page} HTTP/1.1\r\nHost: localhost\r\nX: {'x' * 60_000}\r\n\r\n",
        f"GET http://example.com/{token}/ HTTP/1.1\r\nHost: localhost\r\n\r\n",
        f"HEAD /{token}/ HTTP/1.1\r\nHost: localhost\r\n\r\n",
        f"{asks} HTTP/1.1\r\n{json}Content-Length: -1\r\n\r\n{{}}",
        f"{asks} HTTP/1.1\r\n{json}Content-Length: 2\r\nContent-Length: 15\r\n\r\n{{}}",
        f"{asks} HTTP/1.1\r\n{json}Transfer-Encoding: chunked\r\n\r\n2\r\n{{}}\r\n0\r\n\r\n",
        "\0\xff\r\n\r\n",
    ):
        with socket.create_connection(("127.0.0.1", number), 20) as connection:
            with contextlib.suppress(OSError):  # it does not read the rest
                connection.sendall(request.encode("latin-1"))
            told = b"".join(iter(lambda: connection.recv(65536), b"")) if len(request) < 60_000 else b""
        assert not told or told.split()[1] in (b"400", b"403", b"501"), request
        assert b"Headrace" not in told and b"<html" not in told
    assert asked(address)[0] == 200
    assert job.end() == 0 and "Traceback" not in "".join(job.said)


def test_an_output_that_is_gone_is_told_as_text(tmp_path: Path) -> None:
    """A name is no HTML, and whoever watches is not shown a traceback."""
    name = "<script>document.title = 'taken'<"
    hr.range(10).with_options(progress=False).write_parquet(tmp_path / name)
    server = Server(lambda: Pages(Follower(tmp_path / name, kind=History)))
    try:
        assert asked(server.address)[0] == 200
        (tmp_path / name).rename(tmp_path / "other")
        server.pages._made = float("-inf")
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        connection.request("GET", f"/{server.token}/")
        answer = connection.getresponse()
        assert answer.status == 503 and answer.headers["Content-Type"] == "text/plain; charset=utf-8"
        assert name in answer.read().decode()
    finally:
        server.close()


def test_a_page_that_nobody_opens_imports_nothing(tmp_path: Path) -> None:
    program = f"""
import sys
import headrace as hr
hr.range(1000).with_options(engine="local", watch=True, progress=False).write_parquet({str(tmp_path / "out")!r})
print([name for name in ("headrace.annex.report.live", "http.server", "email.message") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "watch: http://127.0.0.1:" in done.stderr and done.stdout == "[]\n"


def test_it_shows_what_happens(run: Callable[..., Job], driver: Any) -> None:
    job = run()
    driver.get(job.address())
    size_of_window(driver, 1280)
    until(lambda: shows(driver, "Under way", "of 1,000 rows", "secret-5"))
    details = driver.find_element("css selector", "details")
    driver.execute_script("arguments[0].open = true", details)
    before = driver.find_element("css selector", ".progress").get_attribute("aria-valuenow")
    job.open(600)
    until(lambda: driver.find_element("css selector", ".progress").get_attribute("aria-valuenow") > before)
    assert driver.execute_script("return arguments[0].isConnected && arguments[0].open", details)
    until(lambda: shows(driver, "verdict-"))
    assert job.end() == 0
    until(lambda: shows(driver, "Complete: 990 rows", "10 rejected"))
    assert driver.title.startswith("Complete") and not driver.find_element("id", "lost").is_displayed()
    assert driver.get_log("browser") == [] and findings(driver) == []


def pressed(driver: Any, words: str) -> None:
    (button,) = [
        each for each in driver.find_elements("css selector", ".controls button") if each.text == words
    ]
    button.click()


@pytest.mark.parametrize("width", [1280, 390])
def test_it_is_paused_changed_and_ended(run: Callable[..., Job], driver: Any, width: int) -> None:
    job = run(stall_timeout=1.0)
    size_of_window(driver, width)
    driver.get(address := job.address())
    until(lambda: shows(driver, "2 of 10") or shows(driver, "3 of 10"))
    driver.find_element("css selector", ".controls summary").click()
    driver.find_element("name", "workers").clear()
    driver.find_element("name", "workers").send_keys("3")
    driver.find_element("name", "on_error").send_keys("null")
    driver.find_element("name", "max_errors").send_keys("500")
    pressed(driver, "Change")
    until(lambda: shows(driver, "Asked: workers=3, on_error=null, max_errors=500"))
    pressed(driver, "Pause")
    until(lambda: shows(driver, "Asked: it pauses"))
    job.open(1_000_000)
    until(lambda: shows(driver, "Paused"))
    rows = driver.find_element("css selector", ".progress").get_attribute("aria-valuenow")
    for _ in range(3):  # a second each, longer than stall_timeout
        asked(address + "?next")
    assert driver.find_element("css selector", ".progress").get_attribute("aria-valuenow") == rows
    assert job.process.poll() is None and float(rows) < 100
    assert findings(driver) == []
    assert driver.execute_script("return document.documentElement.scrollWidth") <= width
    pressed(driver, "Go on")
    assert job.end() == 0
    until(lambda: shows(driver, "Complete:", "with a null for a result"))
    table, rejected = (
        hr.read_parquet(job.here / "out").to_arrow(),
        hr.read_rejected(job.here / "out").to_arrow(),
    )
    assert sorted(table["id"].to_pylist() + rejected["id"].to_pylist()) == list(range(1000))
    assert rejected.num_rows < 10  # the others are written, since that was asked for


def test_a_run_that_was_ended_goes_on(run: Callable[..., Job]) -> None:
    job = run()
    address = job.address()
    until(lambda: "2 of 10" in (page := asked(address)[1]) or "3 of 10" in page)
    ask = {"method": "POST", "path": f"/{address.split('/')[3]}/ask", "Content-Type": "application/json"}
    assert asked(address, **ask, body='{"ends": true}')[0] == 200
    until(lambda: "it ends" in asked(address)[1])
    assert job.end() == -2
    with pytest.warns(UserWarning, match="unfinished output"):
        kept = hr.read_parquet(job.here / "out").count()
    assert 0 < kept < 990
    again = Job(job.here)
    assert again.end() == 0
    table = hr.read_parquet(job.here / "out").to_arrow()
    assert sorted(table["id"].to_pylist()) == [i for i in range(1000) if i % 100 != 5]


def test_what_cannot_be_asked(run: Callable[..., Job]) -> None:
    job = run()
    address = job.address()
    path = f"/{address.split('/')[3]}/ask"
    json = {"Content-Type": "application/json"}
    for body in (
        "",
        "[]",
        '{"workers": 0}',
        '{"workers": "2"}',
        '{"on_error": "ignore"}',
        '{"max_errors": -1}',
        '{"x": 1}',
    ):
        assert asked(address, "POST", path, body, **json)[0] == 409
    good = '{"paused": true}'
    assert asked(address, "POST", path, good)[0] == 400  # as a form of another page could send it
    assert asked(address, "POST", path, good, **json, Origin="http://example.com")[0] == 403
    assert asked(address, "POST", path, good, **json, Host="example.com")[0] == 403
    assert asked(address, "POST", "/x/ask", good, **json)[0] == 403
    assert asked(address, "POST", path, "x" * 20_000, **json)[0] == 400
    assert not [*(job.here / "out").glob("_headrace/*/asked.json")]
    assert job.end() == 0


def test_no_value_is_shown_if_none_may_be(run: Callable[..., Job]) -> None:
    job = run(show_data=False)
    address = job.address()
    until(lambda: "ValueError" in (page := asked(address)[1]) and page)
    job.open(700)
    text = until(lambda: "7 of 10" in (page := asked(address + "?next")[1]) and page)
    assert "secret-" not in text and "verdict-" not in text
    assert job.end() == 0


def test_a_run_without_a_report(tmp_path: Path) -> None:
    result = hr.range(10).with_options(report=False, progress=False).write_parquet(tmp_path / "out")
    assert result.rows == 10 and not result.report.exists() and result.report.parent.is_dir()


def test_from_another_terminal(run: Callable[..., Job]) -> None:
    job = run(watch=False)
    out = job.here / "out"
    until(lambda: [*out.glob("_headrace/*/events.jsonl")])
    command = [sys.executable, "-m", "headrace", "watch", str(out), "--json"]
    watch = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert watch.stderr is not None
        address = watch.stderr.readline().strip()
        until(lambda: "2 of 10" in (page := asked(address)[1]) or "3 of 10" in page)
        json = {"Content-Type": "application/json"}
        path = f"/{address.split('/')[3]}/ask"
        assert asked(address, "POST", path, '{"paused": true}', **json)[0] == 200
        until(lambda: "Asked: it pauses" in asked(address)[1])
        job.open(1_000_000)
        until(lambda: "Asked: it is paused" in asked(address)[1])
        assert asked(address, "POST", path, '{"paused": false}', **json)[0] == 200
        assert job.end() == 0
        said = msgspec.json.decode(watch.communicate(timeout=60)[0])
    finally:
        watch.kill()
        watch.communicate()
    assert watch.returncode == 0
    assert (said["command"], said["status"], said["rows_written"]) == ("watch", "complete", 990)


def test_a_run_that_cannot_be_asked_says_so(tmp_path: Path) -> None:
    hr.range(10).with_options(progress=False).write_parquet(tmp_path / "out")
    pages = Pages(Follower(tmp_path / "out", kind=History))
    assert "Complete: 10 rows" in pages.page()[0].decode()
    assert "only from a machine that sees its folder" in pages.ask(b'{"paused": true}')
    assert not [*tmp_path.glob("out/_headrace/*/asked.json")]


def test_a_run_into_a_store_is_watched_through_it(run: Callable[..., Job], bucket: Bucket) -> None:  # noqa: F811
    """The server speaks S3; the page shows what the driver has uploaded, and asks nothing of it."""
    job = run(watch=False, to=f"{bucket.url}/fares")
    until(lambda: [*Path(job.here).glob("open")] and bucket_has(bucket, "events.jsonl"))
    command = [sys.executable, "-m", "headrace", "watch", f"{bucket.url}/fares", "--json"]
    watch = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert watch.stderr is not None
        address = watch.stderr.readline().strip()
        assert address.startswith("http://127.0.0.1:")
        page = until(lambda: found if " rows written so far" in (found := asked(address)[1]) else "")
        assert "only from a machine that sees its folder" in page
        assert f"<code>{bucket.url}/fares</code>" in html.unescape(page)
        json = {"Content-Type": "application/json"}
        path = f"/{address.split('/')[3]}/ask"
        status, words = asked(address, "POST", path, '{"paused": true}', **json)
        assert (status, words) == (409, "This run can be changed only from a machine that sees its folder.")
        assert job.end() == 0
        said = msgspec.json.decode(watch.communicate(timeout=60)[0])
    finally:
        watch.kill()
        watch.communicate()
    assert (said["status"], said["rows_written"]) == ("complete", 990)


def bucket_has(bucket: Bucket, name: str) -> bool:  # noqa: F811
    import obstore

    found = obstore.list(bucket.store, bucket.prefix).collect()
    return any(str(each["path"]).endswith(name) for each in found)


def test_rows_of_a_keyed_run_are_set_aside_once_that_is_asked(
    run: Callable[..., Job], tmp_path: Path
) -> None:
    """Those that were set aside are no rows that were done: a further run takes them in again."""
    ids = [*range(0, 800, 2), *range(801, 2001, 2)]  # rows that end with 05 come late
    (tmp_path / "in").mkdir()
    for first in range(0, 1000, 100):
        pq.write_table(pa.table({"id": ids[first : first + 100]}), tmp_path / f"in/{first:03}.parquet")
    job = run(on_error="raise", source=str(tmp_path / "in"), key="id")
    job.open(1)
    address = job.address()
    path, json = f"/{address.split('/')[3]}/ask", {"Content-Type": "application/json"}
    until(lambda: "0% done" in asked(address)[1].replace("\xa0", ""))
    assert asked(address, "POST", path, '{"on_error": "reject"}', **json)[0] == 200
    until(lambda: "Asked: on_error=reject" in asked(address)[1])
    assert job.end() == 0, job.said
    aside = hr.read_rejected(job.here / "out").take_all()
    assert sorted(row["id"] for row in aside) == list(range(805, 2000, 100))
    assert hr.read_parquet(job.here / "out").count() == 988


def test_new_columns_of_a_table_have_a_value_for_each_row(run: Callable[..., Job], tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake")
    deltalake.write_deltalake(tmp_path / "t", pa.table({"id": range(1000)}))
    job = run(on_error="null", source=str(tmp_path / "t"), mode="add_columns")
    address = job.address()
    path, json = f"/{address.split('/')[3]}/ask", {"Content-Type": "application/json"}
    page = until(lambda: found if "0% done" in (found := asked(address)[1].replace("\xa0", "")) else "")
    assert "<option>reject</option>" not in page and "null</option>" in page
    status, words = asked(address, "POST", path, '{"on_error": "reject"}', **json)
    assert status == 409 and words.startswith(
        "The run adds columns to a table, which need a value for each row."
    )
    asked_for = next((tmp_path / "t").rglob("events.jsonl")).parent / "asked.json"
    asked_for.write_text('{"on_error": "reject"}')  # by whoever goes past the page
    assert job.end() == 0
    rows = deltalake.DeltaTable(tmp_path / "t").to_pyarrow_table()
    assert rows.num_rows == 1000 and rows["score"].null_count == 10


def test_a_run_that_goes_on_is_not_called_what_it_is_not() -> None:
    history = History()
    assert head_of(history)["progress"]["words"] == "starting"
    history.add(RunStarted("r", "out", 4, 0, 0, 1_000, 1), at=100.0)
    history.add(WorkerReady(0, 0.5), at=104.0)
    assert slow_part(history) == ""  # nor that it is short beside its start-up
    history.add(RowsRead(0, 0, 100), at=130.0)
    history.tick(130.0)
    assert head_of(history)["progress"]["words"].startswith("100 of 1,000 rows")
    assert slow_part(history) == ""  # what is under way may be anything
    assert "10 % done" in verdict(history, known(history))


def known(history: History) -> Any:
    return facts(history, output="out", alive=True)


def head_of(history: History) -> Any:
    return head(history, known(history))


def test_the_page_of_a_run_that_has_ended_is_made_once(tmp_path: Path) -> None:
    hr.range(10).with_options(progress=False).write_parquet(tmp_path / "out")
    pages = Pages(Follower(tmp_path / "out", kind=History))
    first, ended = pages.page(anew=True)
    assert ended and pages.page(anew=True)[0] is first
