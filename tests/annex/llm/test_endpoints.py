"""Several endpoints as one: by their weights, and without those that do not answer."""

from __future__ import annotations

import contextlib
import socket
from typing import Any

import pytest

import headrace as hr
from headrace.annex.llm import client, pool
from headrace.annex.llm.pool import Member, chosen
from headrace.errors import ArgumentError, EndpointRefused, EndpointUnavailable
from headrace.testing import FakeLLMServer


@pytest.fixture(autouse=True)
def quick(monkeypatch, tmp_path):
    """Retries come soon, and each test has limits of its own."""
    monkeypatch.setattr(client, "FIRST_WAIT", 0.005)
    monkeypatch.setattr(client, "LONGEST_WAIT", 0.02)
    monkeypatch.setattr(client, "AHEAD_SECONDS", 0.0)
    monkeypatch.setattr(pool, "FIRST_WAIT", 0.005)
    monkeypatch.setattr(pool, "FIRST_REST", 0.01)
    monkeypatch.setattr(pool, "LONGEST_REST", 0.02)
    (tmp_path / "run").mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))


def inline(data: Any, **options: Any) -> Any:
    return data.with_options(engine="inline", progress=False, **options)


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


ROWS = hr.from_items([{"i": i} for i in range(200)])


def test_each_gets_its_share():
    with FakeLLMServer(latency=0.01) as one, FakeLLMServer(latency=0.01) as other:
        both = [hr.llm.Endpoint(each.url, "m", max_in_flight=8) for each in (one, other)]
        asked = inline(ROWS.prompt("{i}", hr.llm.Endpoints(both, weights=[3, 1])))
        assert [row["answer"] for row in asked.take_all()] == [str(i) for i in range(200)]
        assert len(one.requests) + len(other.requests) == 200
        assert 110 <= len(one.requests) <= 185


def test_one_that_does_not_answer_is_left_alone_and_tried_again():
    port = closed_port()
    with contextlib.ExitStack() as late:
        begun: list[FakeLLMServer] = []

        def answer(prompt: str) -> str:
            if int(prompt) == 60:
                begun.append(late.enter_context(FakeLLMServer(port=port)))
            return prompt

        with FakeLLMServer(answer, latency=0.01) as server:
            both = [
                hr.llm.Endpoint(url, "m", max_in_flight=4)
                for url in (server.url, f"http://127.0.0.1:{port}/v1")
            ]
            asked = inline(ROWS.prompt("{i}", hr.llm.Endpoints(both)))
            assert [row["answer"] for row in asked.take_all()] == [str(i) for i in range(200)]
            assert len(server.requests) + len(begun[0].requests) == 200
            assert begun[0].requests and len(server.requests) > 60


def test_a_server_that_fails_a_request_has_it_answered_by_another():
    def fails(prompt: str) -> str:
        if int(prompt) % 10 == 0:
            raise OSError("out of order")
        return prompt

    with FakeLLMServer(fails) as one, FakeLLMServer() as other:
        both = [hr.llm.Endpoint(each.url, "m", max_in_flight=4) for each in (one, other)]
        asked = inline(ROWS.prompt("{i}", hr.llm.Endpoints(both)))
        assert [row["answer"] for row in asked.take_all()] == [str(i) for i in range(200)]


def test_a_row_that_every_server_fails_is_an_error_of_that_row():
    def answer(prompt: str) -> str:
        if prompt == "199":  # the last one: nothing is answered between its tries
            raise ValueError("not this one")
        return prompt

    with FakeLLMServer(answer) as one, FakeLLMServer(answer) as other:
        both = hr.llm.Endpoints([hr.llm.Endpoint(each.url, "m", max_in_flight=1) for each in (one, other)])
        found = inline(ROWS.prompt("{i}", both), on_error="null").take_all()
    assert [row["answer"] for row in found] == [*map(str, range(199)), None]


def test_where_none_answers_or_one_refuses_the_run_ends():
    gone = [hr.llm.Endpoint(f"http://127.0.0.1:{closed_port()}/v1", "m") for _ in range(2)]
    with pytest.raises(EndpointUnavailable):
        inline(ROWS.prompt("{i}", hr.llm.Endpoints(gone)), on_error="reject").take_all()
    with FakeLLMServer() as server, FakeLLMServer(model="another") as wrong:
        both = [hr.llm.Endpoint(each.url, "m") for each in (server, wrong)]
        with pytest.raises(EndpointRefused, match=r"another|does not exist|does not know"):
            inline(ROWS.prompt("{i}", hr.llm.Endpoints(both)), on_error="reject").take_all()


def test_who_is_chosen():
    one, other = (
        Member(hr.llm.Endpoint(f"http://h{i}/v1", "m"), share) for i, share in enumerate((3.0, 1.0))
    )
    turns = []
    for _ in range(8):
        turns.append(chosen([one, other], 0.0))
        turns[-1].under_way += 1
    assert (turns.count(one), turns.count(other)) == (6, 2)
    rests = []
    for turn in range(4):
        one.failed(100.0 * turn)
        rests.append(one.alone_until - 100.0 * turn)
    assert rests == pytest.approx([0.01, 0.02, 0.02, 0.02])
    assert chosen([one, other], one.alone_until - 0.001) is other
    one.under_way = 0
    assert chosen([one, other], one.alone_until) is one
    one.under_way = 1
    assert chosen([one, other], one.alone_until) is other  # a single one, until it is answered
    other.failed(one.alone_until)
    assert chosen([one, other], one.alone_until) is None


def test_what_makes_no_sense_is_refused():
    one, other, cheap = (
        hr.llm.Endpoint("http://a:1/v1", "m"), hr.llm.Endpoint("http://b:1/v1", "n"),
        hr.llm.Endpoint("http://c:1/v1", "m", prices={"input": 1}),
    )  # fmt: skip
    for words, call in {
        "two or more": lambda: hr.llm.Endpoints([one]),
        "different models or prices": lambda: hr.llm.Endpoints([one, other]),
        "models or prices": lambda: hr.llm.Endpoints([one, cheap]),
        "the same base_url": lambda: hr.llm.Endpoints([one, one]),
        "a number above 0 for each of the 2": lambda: hr.llm.Endpoints(
            [one, hr.llm.Endpoint("http://b:1/v1", "m")], weights=[1]
        ),
        "is for prompt": lambda: ROWS.embed(
            "i", hr.llm.Endpoints([one, hr.llm.Endpoint("http://b:1/v1", "m")])
        ),
    }.items():
        with pytest.raises(ArgumentError, match=words):
            call()
