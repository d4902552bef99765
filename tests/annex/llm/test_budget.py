"""What a server bills is never more than any cap of a budget, whatever it does and whoever is killed."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
from datetime import date
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

import headrace as hr
from forked import Forked
from headrace.annex.llm import endpoint
from headrace.annex.llm.spending import Budget
from headrace.annex.llm.store import AnswerStore, Caps, Spent
from headrace.errors import ArgumentError, HeadraceError, PlanError, SpendingCapReached
from headrace.testing import FakeLLMServer

PRICES = {"input": 1e4, "output": 3e4}
"""A token costs one cent in, and three out."""

JOB = """
import json, sys, headrace as hr
from headrace.annex.llm import client

if __name__ == "__main__":
    client.FIRST_WAIT = 0.02
    told = json.loads(sys.argv[1])
    model = hr.llm.Endpoint(
        told["url"], "m", api_key_env="MY_KEY", prices={"input": 1e4, "output": 3e4}, timeout=0.4,
        max_in_flight=told["in_flight"], max_retries=told["retries"], hedge=told["hedge"],
    )
    schema = ["yes", "no"] if told["schema"] else None
    budget = hr.llm.Budget(**told["budget"])
    model = model.with_options(sampling={"max_tokens": 20}, repairs=2, budget=budget)
    rows = hr.from_items([{"i": f"{i} b c"} for i in range(told["rows"])])
    asked = rows.prompt("{i}", model, schema=schema, concurrency=told["workers"])
    asked = asked.with_options(workers=told["workers"], engine=told["engine"], progress=False, on_error="reject")
    asked.write_parquet(told["out"], mode=told["mode"])
"""


@pytest.fixture(autouse=True)
def prepared(monkeypatch, tmp_path):
    """Each test has a key."""
    monkeypatch.setenv("MY_KEY", "sk-secret")
    monkeypatch.chdir(tmp_path)


# ---------------------------------------------------------------- a server that does what servers do


def check_rate(sent: list[float], each_second: float, ahead: float) -> None:
    """In no time may more be sent than a rate allows in it, and in so many seconds more."""
    sent.sort()
    for i, begin in enumerate(sent):
        for count, end in enumerate(sent[i:], 1):
            assert count <= 1 + each_second * (end - begin + ahead), (i, count, end - begin)


class Hostile:
    """A server whose answers are drawn by lot, and which counts what it bills: also where nobody gets an answer.

    ``kinds`` are the outcomes with their weights. ``cents`` is what it has billed, and ``on_request`` is called for
    each request that it gets.
    """

    KINDS = (
        "answer", "no usage", "late", "silent", "half", "no json", "error in 200", "empty", "500", "502", "reset",
        "429", "429 odd", "503", "400", "302",
    )  # fmt: skip
    ODD = (
        {"Retry-After": "nan"}, {"Retry-After": "-3"}, {"Retry-After": "soon"}, {"Retry-After": "0.01, 0.02"},
        {"Retry-After": "Thu, 01 Jan 1970 00:00:00 GMT"}, {"retry-after-ms": "5"}, {"retry-after-ms": "x"},
        {"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "6x"},
        {"anthropic-ratelimit-requests-remaining": "0", "anthropic-ratelimit-requests-reset": "yesterday"},
    )  # fmt: skip

    def __init__(self, lot: random.Random, weights: dict[str, float]) -> None:
        self.cents = 0
        self.requests = 0
        self.on_request = lambda: None
        self._lot, self._kinds, self._lock = lot, weights, threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with contextlib.suppress(OSError):
                    outer.answer(self, body)

            def log_message(self, *said):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.elsewhere = socket.create_server(("127.0.0.1", 0))  # where it sends us, and keys are not taken
        self.elsewhere.setblocking(False)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"
        self.ending = threading.Event()

    def __enter__(self) -> Hostile:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.ending.set()
        self._server.shutdown()
        self._server.server_close()
        with self.elsewhere, pytest.raises(BlockingIOError):
            self.elsewhere.accept()

    def answer(self, handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        with self._lock:
            lot = self._lot
            kind = lot.choices([*self._kinds], [*self._kinds.values()])[0]
            written = lot.randint(1, body["max_tokens"])
            odd, cut = lot.choice(self.ODD), lot.random()
            read = sum(len(each["content"].split()) for each in body["messages"])
            # A tokenizer that is hard on some scripts: a token for nearly each byte.
            read += lot.choice((0, len(body["messages"][0]["content"].encode())))
            self.requests += 1
            if not kind.startswith(("429", "503", "400", "302")):
                self.cents += read + 3 * written
        self.on_request()
        usage = {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
        message = {"role": "assistant", "content": "word " * written}
        data: dict[str, Any] = {"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage}
        if kind == "no usage":
            del data["usage"]
        elif kind == "empty":
            data = {"choices": [], "usage": lot.choice((None, {"prompt_tokens": "7"}))}
        elif kind == "error in 200":
            data = {"error": {"message": "failed"}}
        said = json.dumps(data).encode()
        if kind == "no json":
            said = said[: int(cut * len(said))]
        if kind == "late":
            self.ending.wait(0.6)  # more than the client's timeout
        elif kind == "silent":
            self.ending.wait(1.0)
            handler.close_connection = True
            return
        elif kind == "reset":
            handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            handler.connection.close()
            handler.close_connection = True
            return
        status = int(kind[:3]) if kind[:3].isdigit() else 200
        handler.send_response(status)
        more = {"429 odd": odd, "302": {"Location": f"http://127.0.0.1:{self.elsewhere.getsockname()[1]}/v1"}}
        for name, value in more.get(kind, {}).items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(said)))
        handler.end_headers()
        handler.wfile.write(said[: int(cut * len(said))] if kind == "half" else said)
        if kind == "half":
            handler.close_connection = True


@dataclasses.dataclass
class History:
    """A job, by lot: what the server does, what the caps are, and when all its processes are killed."""

    seed: int

    def __post_init__(self) -> None:
        lot = random.Random(self.seed)
        few = lot.sample(Hostile.KINDS[1:], lot.randint(1, 4))
        self.kinds = {"answer": 1.0, **{kind: lot.choice((0.05, 0.2, 0.5)) for kind in few}}
        names = lot.sample(["run", "output", "day"], lot.randint(1, 3))
        self.budget = {
            name: lot.choice((4.0, 9.0, 25.0)) for name in names
        }  # a request takes up to 1.2 or so
        self.kills = sorted(lot.sample(range(3, 60), lot.choice((0, 1, 1, 2))))
        self.runs = lot.randint(1, 2)  # into the same output
        self.beside = (
            lot.random() < 0.3
        )  # another program with the same key at the same time, into its own output
        self.told = {
            "in_flight": lot.choice((2, 8, 30)), "retries": lot.randint(0, 3), "hedge": lot.random() < 0.3,
            "schema": lot.random() < 0.3, "rows": 50, "workers": lot.choice((1, 2)),
            "engine": lot.choice(("inline", "inline", "inline", "local")), "budget": self.budget,
        }  # fmt: skip


def play(history: History, folder: str) -> float:
    """Run a history; its caps hold by what the server has billed. Return how much of the least cap that is."""
    running: list[Any] = []
    kills = list(history.kills)
    with Hostile(random.Random(history.seed), history.kinds) as server:

        def on_request():
            if kills and server.requests >= kills[0]:
                kills.pop(0)
                for each in list(running):
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(each.pid, signal.SIGKILL)  # driver and workers, at one moment

        def job(out: str, mode: str) -> Any:
            told = {**history.told, "url": server.url, "out": f"{folder}/{out}", "mode": mode}
            command = [sys.executable, "-c", JOB, json.dumps(told)]
            return Forked(command, workers=True, start_new_session=True, stderr=subprocess.PIPE, text=True)

        outs = ["out", "beside"] if history.beside else ["out"]
        for run in range(history.runs):
            before, mode = server.cents, "overwrite" if run else "resume"
            while True:
                running[:] = [job(out, mode) for out in outs]
                said = [each.communicate(timeout=120)[1] for each in running]
                mode = "resume"
                billed = {"run": server.cents - before, "output": server.cents, "day": server.cents}
                for name, cap in history.budget.items():
                    times = 1 if name == "day" else len(outs)
                    assert billed[name] <= 100 * cap * times, (name, history, billed, said)
                if all(each.returncode != -signal.SIGKILL for each in running):
                    break
            for each, words in zip(running, said, strict=True):
                ends = ("SpendingCapReached", "EndpointUnavailable", "EndpointRefused")
                assert each.returncode == 0 or any(end in words for end in ends), words
        return max(billed[name] / cap / 100 for name, cap in history.budget.items())


# ---------------------------------------------------------------- caps


def test_a_budget_says_what_it_is_and_refuses_what_is_none():
    assert repr(Budget(run=5.0, day=15, output_tokens=1000)) == "Budget(run=5, output_tokens=1000, day=15)"
    assert Budget(run=5) == Budget(run=5.0) != Budget(output=5)
    for words, arguments in {
        "say what may be spent": {},
        "run=0: it takes a number above 0": {"run": 0},
        "day=True: it takes a number": {"day": True},
        "day=inf": {"day": float("inf")},
        "run_tokens=1.5: it takes a whole number": {"run_tokens": 1.5},
        "no argument 'daily'": {"daily": 5},
    }.items():
        with pytest.raises(HeadraceError, match=words):
            Budget(**arguments)
    searching = hr.llm.Endpoint("http://localhost:1/v1", "m").with_options(
        tools=[{"type": "web_search"}], budget=Budget(run_tokens=9), sampling={"max_tokens": 1}
    )
    with pytest.raises(HeadraceError, match="carries out the tool 'web_search' itself"):
        hr.from_items([{"q": "a"}]).prompt("{q}", searching)


def test_what_is_under_way_at_midnight_counts_for_both_days(tmp_path):
    now = [86_400.0 * 20_000 + 86_395]
    caps = Caps(cost=10.0)
    one, other = (
        AnswerStore(str(tmp_path), "key", daily=True, name="spent", clock=lambda: now[0]) for _ in range(2)
    )
    assert one.reserve(1, 4.0, caps, Spent()) == other.reserve(1, 5.0, caps, Spent()) == "reserved"
    other.count(reserved_cost=-5.0, cost=5.0)
    assert one.reserve(1, 2.0, caps, Spent()) == "later"
    now[0] += 10  # the next day has begun; what is under way may be counted there
    third = AnswerStore(str(tmp_path), "key", daily=True, name="spent", clock=lambda: now[0])
    assert third.reserve(1, 6.5, caps, Spent()) == "later"
    assert third.reserve(1, 6.0, caps, Spent()) == "reserved"
    assert other.reserve(1, 0.1, caps, Spent()) == "later"
    one.count(reserved_cost=-4.0, cost=1.0)
    assert one.spent().cost == 1.0 and one.spent().reserved_cost == 6.0
    assert other.reserve(1, 3.0, caps, Spent()) == "reserved"
    now[0] -= 10  # a clock that is set back
    assert one.spent().cost == 5.0
    another = AnswerStore(str(tmp_path), "another key", daily=True, name="spent", clock=lambda: now[0])
    assert another.spent() == Spent()
    for each in (one, other, third, another):
        each.close()


def test_what_was_settled_for_a_dead_worker_makes_no_room_on_the_day_after(tmp_path):
    now = [86_400.0 * 20_000]
    dead, other = (
        AnswerStore(str(tmp_path), "key", daily=True, name="spent", clock=lambda: now[0]) for _ in range(2)
    )
    assert dead.reserve(1, 4.0, Caps(cost=5.0), Spent()) == "reserved"  # for a batch, and is killed
    now[0] += 86_400
    other.count(reserved_tokens=-1, reserved_cost=-4.0, cost=1.0)
    assert (other.spent().cost, other.spent().reserved_cost) == (1.0, 0.0)
    now[0] += 86_400
    assert other.reserve(1, 6.0, Caps(cost=5.0), Spent()) == "never"
    assert other.spent() == Spent()
    dead.close()
    other.close()


def test_an_output_and_a_day_count_all_runs_and_a_run_itself(tmp_path):
    rows = hr.from_items([{"i": f"{i:02}"} for i in range(4)])
    with FakeLLMServer() as server:
        model = hr.llm.Endpoint(server.url, "m", prices=PRICES, max_in_flight=1)

        def write(out, **budget):
            asked = model.with_options(sampling={"max_tokens": 1}, budget=Budget(**budget))
            data = rows.prompt("{i}", asked).with_options(engine="inline", progress=False)
            return data.write_parquet(tmp_path / out, mode="overwrite").rows

        assert write("first", output=2.0, day=2.0) == 4  # each of 4 answers costs 4 cents, and up to 1 or so
        assert write("first", output=2.0, day=2.0) == 4
        assert write("first", run=1.2) == 4  # counts itself alone
        with pytest.raises(
            SpendingCapReached, match=r"Budget\(output=1.1\): for this output, in all its runs, 12 ans"
        ):
            write("first", output=1.1)
        with pytest.raises(
            SpendingCapReached, match=r"Budget\(day=1.1\): with this key today .* after 00:00 UTC"
        ):
            write("second", run=5.0, day=1.1)
        assert write("second", run=1.2) == 4
        with pytest.raises(PlanError, match="This output is in an object store"):
            asked = model.with_options(sampling={"max_tokens": 1}, budget=Budget(output=5.0))
            rows.prompt("{i}", asked)._plan.steps[-1].check_output("")


def test_prices_come_from_a_table_and_have_a_date_and_a_source(tmp_path):
    url = "http://localhost:1/v1"
    assert hr.llm.Endpoint(url, "gpt-5-nano", prices="table").prices == {"input": 0.05, "output": 0.4}
    path = tmp_path / "newer.csv"
    path.write_text("model,input,output,seen\nmine,1,2.5,2027-01-01\nbad,x,1,\n")
    with pytest.raises(ArgumentError, match="not a table of prices"):
        hr.llm.Endpoint(url, "mine", prices=path)
    path.write_text("model,input,output,batch\nmine,1,2.5,\nother,1,2.5,0.4\n")
    assert hr.llm.Endpoint(url, "other", prices=path).prices == {"input": 1.0, "output": 2.5, "batch": 0.4}
    assert hr.llm.Endpoint(url, "mine", prices=path).prices == {"input": 1.0, "output": 2.5}
    with pytest.raises(
        ArgumentError, match=r"it has no price of 'gpt-9'\. It has claude-haiku-4-5, .* the path of a table"
    ):
        hr.llm.Endpoint(url, "gpt-9", prices="table")
    with open(os.path.join(os.path.dirname(endpoint.__file__), "prices.csv"), newline="") as file:
        for row in csv.DictReader(file):
            assert date.fromisoformat(row["seen"]) and row["source"].startswith("https://")
            assert 0 < float(row["input"]) < float(row["output"])


# ---------------------------------------------------------------- histories


@pytest.mark.local
def test_no_cap_is_passed_whatever_happens(tmp_path):
    used = [play(History(seed), str(tmp_path / str(seed))) for seed in range(6)]
    assert sum(share > 0.5 for share in used) > 2, used  # caps were reached


@pytest.mark.soak
def test_no_cap_is_passed_in_200_histories(tmp_path):
    for seed in range(200):
        play(History(seed), str(tmp_path / str(seed)))
