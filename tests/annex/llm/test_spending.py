"""What is counted against a cap, by whom it is counted; and what is sent to a server beside the request."""

from __future__ import annotations

import base64
import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

import headrace as hr
from headrace.annex.llm.usage import tokens_of
from headrace.errors import EndpointRefused, SpendingCapReached
from headrace.testing import FakeLLMServer

ROWS = hr.from_items([{"text": f"{i:02} b c d"} for i in range(20)])
WHOLE = {"choices": [{"message": {"role": "assistant", "content": "x" * 300}, "finish_reason": "stop"}]}


@contextlib.contextmanager
def serving(answer: dict[str, Any]) -> Iterator[tuple[str, list[tuple[str, Any]]]]:
    """A server that always answers the same; it notes the path and the headers of what it was asked."""
    seen: list[tuple[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            seen.append((self.path, self.headers))
            data = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *said):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", seen
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def inline(data, **options):
    return data.with_options(engine="inline", progress=False, **options)


def test_passwords_of_netrc_are_not_sent(monkeypatch, tmp_path):
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password secret\ndefault login me password secret\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    monkeypatch.setenv("MY_KEY", "sk-1")
    with serving(WHOLE) as (url, seen):
        for name in (None, "MY_KEY"):
            model = hr.llm.Endpoint(url, "m", api_key_env=name)
            assert inline(ROWS.limit(1).prompt("{text}", model)).take_all()[0]["answer"] == "x" * 300
    assert [headers.get_all("Authorization") for _, headers in seen] == [None, ["Bearer sk-1"]]


def test_the_proxy_of_the_environment_is_used_unless_the_server_is_excepted(monkeypatch):
    monkeypatch.setenv("MY_KEY", "sk-1")
    with serving(WHOLE) as (url, seen), serving(WHOLE) as (proxy, proxied):
        host = proxy.removeprefix("http://").removesuffix("/v1")

        def ask(to):
            asked = ROWS.limit(1).prompt("{text}", hr.llm.Endpoint(to, "m", api_key_env="MY_KEY"))
            return inline(asked).take_all()[0]["answer"]

        monkeypatch.setenv("http_proxy", f"http://me:pass@{host}")
        assert ask("http://model.invalid/v1") == "x" * 300
        path, headers = proxied[0]
        assert path == "http://model.invalid/v1/chat/completions"
        assert headers.get_all("Authorization") == ["Bearer sk-1"]
        assert headers["Proxy-Authorization"] == "Basic " + base64.b64encode(b"me:pass").decode()
        monkeypatch.setenv("http_proxy", host)  # without http://, as other programs take it
        assert ask("http://model.invalid/v1") == "x" * 300
        for excepted in ("127.0.0.1", url.removeprefix("http://").removesuffix("/v1"), "*"):
            monkeypatch.setenv("no_proxy", excepted)
            assert ask(url) == "x" * 300
        assert (len(proxied), len(seen)) == (2, 3)
        monkeypatch.delenv("no_proxy")
        monkeypatch.setenv("http_proxy", "socks5://me:pass@127.0.0.1:1")
        with pytest.raises(EndpointRefused, match="http_proxy holds no address of an HTTP proxy") as refused:
            ask(url)
        assert "pass@" not in str(refused.value)


def test_tokens_are_those_of_the_server_or_a_third_of_the_bytes():
    assert tokens_of(WHOLE, 7) == (7, 100)
    assert tokens_of({**WHOLE, "usage": {"prompt_tokens": 3, "completion_tokens": 0}}, 7) == (3, 0)
    assert tokens_of({**WHOLE, "usage": {"prompt_tokens": None, "completion_tokens": 5}}, 7) == (7, 5)
    message = {"role": "assistant", "content": "é\ud800", "reasoning_content": "abc"}
    assert tokens_of({"choices": [{"message": message}]}, 7) == (7, 2)
    for nothing in ({}, {"choices": []}, {"choices": [{"message": None}]}, {"choices": [1], "usage": 1}):
        assert tokens_of(nothing, 7) == (7, 1)


def test_a_cap_counts_its_own_run_and_not_what_others_kept_in_the_cache(tmp_path):
    with FakeLLMServer() as server:
        model = hr.llm.Endpoint(server.url, "m", max_in_flight=1)

        def asked(template, cap=None):
            return inline(
                ROWS.prompt(
                    template,
                    model.with_options(
                        sampling={"max_tokens": 4},
                        cache=tmp_path / "cache",
                        budget=cap and hr.llm.Budget(run_tokens=cap),
                    ),
                )
            )

        assert len(asked("{text}").take_all()) == 20  # 160 tokens, which no other run has used
        assert len(asked("{text}!", 240).take_all()) == 20
        assert asked("{text}?", 240).write_parquet(tmp_path / "first").rows == 20
        assert len(server.requests) == 60
        out = tmp_path / "out"
        with pytest.raises(
            SpendingCapReached, match=r"reached Budget\(run_tokens=120\): in this run, \d answers"
        ):
            asked("{text}.", 120).write_parquet(out)
        first = len(server.requests) - 60
        assert 5 <= first <= 7
        with pytest.raises(SpendingCapReached, match=f", {first} answers"):  # it counts on from there
            asked("{text}.", 120).write_parquet(out)
        assert len(server.requests) == 60 + first
        assert asked("{text}.", 1_000).write_parquet(out).rows == 20
        assert len(server.requests) == 80
        assert not list(out.rglob("answers-*"))


def test_what_a_model_thinks_is_counted_where_only_the_total_has_it():
    """xAI and Google leave it out of ``completion_tokens``, and it is paid for."""
    usage = {"prompt_tokens": 20, "completion_tokens": 1, "total_tokens": 120}
    with serving({**WHOLE, "usage": usage}) as (url, _):
        model = hr.llm.Endpoint(
            url, "m", prices={"input": 0.0, "output": 1e4}, max_in_flight=1
        )  # a cent each
        capped = model.with_options(sampling={"max_tokens": 100}, budget=hr.llm.Budget(run=2.5))
        with pytest.raises(SpendingCapReached, match="2 answers have used 40 tokens in and 200 out"):
            inline(ROWS.prompt("{text}", capped)).take_all()


@pytest.mark.parametrize("counted", [2**70, 10**30, -5, "7", 3.5, True, None])
def test_a_count_that_makes_no_sense_is_none(counted, tmp_path):
    """What nobody knows is counted at its most, and the run goes on."""
    usage = {"prompt_tokens": counted, "completion_tokens": counted, "total_tokens": counted}
    with serving({**WHOLE, "usage": usage}) as (url, _):
        model = hr.llm.Endpoint(url, "m", prices={"input": 0.0, "output": 1e4}, max_in_flight=1)
        capped = model.with_options(sampling={"max_tokens": 100}, budget=hr.llm.Budget(run=100.0))
        assert inline(ROWS.limit(2).prompt("{text}", capped)).write_parquet(tmp_path / "out").rows == 2
        with pytest.raises(SpendingCapReached, match="1 answers have used"):
            least = model.with_options(sampling={"max_tokens": 100}, budget=hr.llm.Budget(run=1.5))
            inline(ROWS.prompt("{text}", least)).take_all()


def test_a_cap_of_a_run_without_an_output_is_one_for_all_its_prompts():
    with FakeLLMServer(lambda prompt: "a b") as server:
        model = hr.llm.Endpoint(server.url, "m", prices={"input": 1e6, "output": 1e6}, max_in_flight=1)
        capped = model.with_options(sampling={"max_tokens": 2}, budget=hr.llm.Budget(run=200.0))
        first = ROWS.prompt("{text}", capped, output="first")
        assert len(inline(first).take_all()) == 20  # a request costs 6, and up to 70 or so
        with pytest.raises(SpendingCapReached):
            inline(ROWS.prompt("{text}", capped, output="one").prompt("{text}", capped)).take_all()
        assert 6 * (len(server.requests) - 20) <= 200
