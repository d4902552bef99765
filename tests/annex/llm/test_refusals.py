"""What a server says instead of an answer: what ends a run, what is a row's fault, and what passes."""

from __future__ import annotations

import json
from typing import Any

import pytest

import headrace as hr
from headrace.annex.llm.refusals import (
    Again,
    ContextTooLong,
    Doubtful,
    Filtered,
    RequestRefused,
    judged,
    refusal_of,
    told_wait,
)
from headrace.annex.report.follow import Follower
from headrace.errors import ArgumentError, EndpointRefused, EndpointUnavailable, StepError
from headrace.testing import FakeLLMServer

ROWS = hr.from_items([{"word": f"w{i}"} for i in range(60)])
HTML = "<html><body>Request blocked</body></html>"


def asked(server, rows=ROWS, **options):
    model = hr.llm.Endpoint(server.url, "m", max_in_flight=8)
    return rows.prompt("{word}", model, **options).with_options(
        engine="inline", progress=False, on_error="reject"
    )


def error(message, **more) -> dict[str, Any]:
    return {"error": {"message": message, **more}}


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (402, error("Insufficient credits", code=402)),  # OpenRouter
        (402, error("Insufficient Balance", type="unknown_error", code="invalid_request_error")),  # DeepSeek
        (429, error("You exceeded your current quota", type="insufficient_quota", code=None)),  # OpenAI
        (403, error("Budget limit exceeded", metadata={"limit_source": "openrouter_workspace_budget"})),
        (400, {"type": "error", **error("Your credit balance is too low", type="invalid_request_error")}),
    ],
)
def test_credit_that_is_gone_ends_the_run_which_goes_on_later(tmp_path, status, body):
    credit = [20]

    def answer(prompt):
        credit[0] -= 1
        return (status, body, {}) if credit[0] < 0 else prompt

    with FakeLLMServer(answer) as server:
        with pytest.raises(EndpointRefused, match="credit"):
            asked(server).write_parquet(tmp_path / "out")
        assert not (tmp_path / "out" / "_SUCCESS").exists()
        assert server.outcomes["answered"] == 20 and len(server.requests) <= 20 + 2 * 8
        credit[0] = 1_000
        result = asked(server).write_parquet(tmp_path / "out")
        assert (result.rows, result.rejected, server.outcomes["answered"]) == (60, 0, 60)
    assert not list((tmp_path / "out").rglob("answers-*"))  # kept until the run has ended


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (
            403,
            error("flagged", code=403, metadata={"reasons": ["violence"], "flagged_input": "w0"}),
            "Filtered",
        ),
        (403, HTML, "RequestRefused"),  # a firewall
        (404, error("No endpoints found that support image input", code=404), "RequestRefused"),
        (302, "", "RequestRefused"),
        (400, error("cannot parse: 'the model x does not exist'"), "RequestRefused"),
        (400, error("cannot parse: 'my credit balance'"), "RequestRefused"),
    ],
)
def test_what_is_refused_for_one_prompt_is_the_fault_of_its_row(tmp_path, status, body, kind):
    bad = {"w0", "w31", "w59"}  # the first row that is asked, too: a run that begins with it has an end

    def answer(prompt):
        return (status, body, {}) if prompt in bad else prompt

    with FakeLLMServer(answer) as server:
        result = asked(server).write_parquet(tmp_path / "out")
        assert (result.rows, result.rejected) == (57, 3)
        plain = [each for each in server.requests if each["messages"][0]["content"] == "Hi"]
        assert len(plain) == (0 if kind == "Filtered" else 3)
    rejected = hr.read_rejected(tmp_path / "out").to_arrow()
    assert set(rejected["word"].to_pylist()) == bad
    assert str(rejected.to_pylist()).count(kind) >= 3


def test_a_key_that_is_revoked_in_the_middle_loses_no_row(tmp_path):
    """Many requests are under way then, and all of them are refused, as a single prompt may be."""
    revoked = [20]

    def answer(prompt):
        revoked[0] -= 1
        return (403, error("no access"), {}) if prompt == "w5" or revoked[0] < 0 else prompt

    with FakeLLMServer(answer, latency=0.01) as server:
        with pytest.raises(EndpointRefused, match=r"does not let us in \(403\): it says 'no access'"):
            asked(server).write_parquet(tmp_path / "out")
        assert len(server.requests) <= 20 + 2 * 8
        revoked[0] = 1_000
        result = asked(server).write_parquet(tmp_path / "out")
        assert (result.rows, result.rejected) == (59, 1)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, error("Organization spend limit reached", code="blocked_api_access")),  # Groq
        (412, error("Account suspended, please check billing")),  # Fireworks
        (422, error("maintenance")),
    ],
)
def test_a_refusal_of_everything_in_unknown_words_loses_no_row(tmp_path, status, body):
    refused = [20]

    def answer(prompt):
        refused[0] -= 1
        return (status, body, {}) if refused[0] < 0 else prompt

    with FakeLLMServer(answer) as server:
        with pytest.raises(EndpointRefused, match=f"refuses every request.*{body['error']['message']}"):
            asked(server).write_parquet(tmp_path / "out")
        assert len(server.requests) <= 20 + 3 * 8
        refused[0] = 1_000
        result = asked(server).write_parquet(tmp_path / "out")
        assert (result.rows, result.rejected) == (60, 0)


def test_many_bad_rows_in_a_row_end_no_run():
    """Neither by what they hold, nor by a parameter of theirs."""

    def answer(prompt):
        known = server.requests[-1].get("top_k", 1) == 1
        return prompt if known and prompt not in bad else (400, error("Invalid value: 'x'"), {})

    bad = {f"w{i}" for i in range(20, 40)}
    with FakeLLMServer(answer) as server, pytest.warns(UserWarning, match="RequestRefused"):
        assert len(asked(server).take_all()) == 40
        plain = [each for each in server.requests if each["messages"][0]["content"] == "Hi"]
        assert 1 <= len(plain) <= 7
        alone = hr.llm.Endpoint(server.url, "m", max_in_flight=1)
        bad_parameter = ROWS.limit(9).prompt("{word}", alone.with_options(sampling={"top_k": 2}))
        options = {"engine": "inline", "progress": False, "on_error": "reject"}
        assert bad_parameter.with_options(**options).take_all() == []


@pytest.mark.parametrize("left", [1, 2, 15])
def test_a_rate_limit_that_does_not_end_rejects_no_row(tmp_path, left):
    allowed = [60 - left]

    def answer(prompt):
        allowed[0] -= 1
        return (429, error("too many"), {}) if allowed[0] < 0 else prompt

    with FakeLLMServer(answer) as server:
        model = hr.llm.Endpoint(server.url, "m", max_in_flight=4, max_retries=2)
        asking = ROWS.prompt("{word}", model).with_options(engine="inline", progress=False, on_error="reject")
        with pytest.raises(EndpointUnavailable, match="429, 'too many'"):
            asking.write_parquet(tmp_path / "out")
        allowed[0] = 1_000
        result = asking.write_parquet(tmp_path / "out")
        assert (result.rows, result.rejected) == (60, 0)


def test_a_schema_is_refused_for_all_or_for_a_row():
    def answer(prompt):
        return (400, error("Invalid value near 'json_schema'"), {}) if prompt in bad else '{"a": 1}'

    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    bad = {"w3"}
    with FakeLLMServer(answer) as server:
        with pytest.warns(UserWarning, match="RequestRefused"):
            assert len(asked(server, schema=schema).take_all()) == 59
        bad.add("Hi")  # what is asked without anything of the row
        with pytest.raises(EndpointRefused, match="refuses the schema"):
            asked(server, schema=schema).take_all()


def test_tokens_of_plain_requests_are_counted(tmp_path):
    with FakeLLMServer(lambda prompt: (403, HTML, {}) if prompt == "w3" else prompt) as server:
        assert asked(server, ROWS.limit(5)).write_parquet(tmp_path / "out").rejected == 1
        assert server.outcomes == {"403": 1, "answered": 5}
    paid = Follower(tmp_path / "out").poll().data()["language_model"]["paid"]
    assert (paid["answers"], paid["prompt_tokens"], paid["completion_tokens"]) == (5, 5, 5)


GEMINI = [
    error(
        "You exceeded your current quota, please check your plan and billing details.",
        code=429,
        status="RESOURCE_EXHAUSTED",
        details=[
            {
                "@type": "type.googleapis.com/google.rpc.QuotaFailure",
                "violations": [{"quotaId": "GenerateRequestsPerMinutePerProjectPerModel-FreeTier"}],
            },
            {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "0.045837906s"},
        ],
    )
]


def test_a_quota_of_a_minute_is_waited_for():
    assert told_wait(refusal_of(429, json.dumps(GEMINI).encode())) == 0.045837906
    refusals = [GEMINI] * 5 + [error("billing: please try again in 20ms.")] * 5

    def answer(prompt):
        return (429, refusals.pop(), {}) if refusals else prompt

    with FakeLLMServer(answer) as server:
        assert len(asked(server).take_all()) == 60
        assert server.outcomes == {"429": 10, "answered": 60}


def test_a_wait_of_an_hour_ends_the_run_and_says_when_to_come_back(tmp_path):
    calls = iter(range(1_000))

    def answer(prompt):
        return (429, error("too many"), {"Retry-After": "3600"}) if next(calls) == 10 else prompt

    with FakeLLMServer(answer) as server:
        with pytest.raises(EndpointUnavailable, match=r"nothing for 3,600 seconds.*After 20\d\d-.* UTC, run"):
            asked(server).write_parquet(tmp_path / "out")
        assert asked(server).write_parquet(tmp_path / "out").rows == 60


def test_an_answer_with_a_byte_that_is_no_text_is_paid_once():
    """Models cut characters in two; what is asked again may come as it was, and is paid again."""
    cut = b'{"choices": [{"message": {"content": "caf\xc3"}, "finish_reason": "stop"}]}'
    answers = [cut, *[b"{}"] * 9]
    with FakeLLMServer(lambda prompt: (200, answers.pop(0), {})) as server:
        rows = asked(server, hr.from_items([{"word": "w"}])).take_all()
        assert len(server.requests) == 1
    assert rows[0]["answer"] == "caf\ufffd"


def judge(status, body, headers=None, request=None):
    said = body if isinstance(body, str) else json.dumps(body)
    return judged(status, said.encode(), headers or {}, where="The endpoint x", request=request or {})


def test_refusals_are_judged_by_what_the_server_chose():
    daily = json.loads(json.dumps(GEMINI).replace("PerMinute", "PerDay"))
    assert isinstance(judge(429, daily), EndpointRefused)
    passing = judge(402, error("in flight budget", code=402), {"Retry-After": "3"})  # OpenRouter
    assert isinstance(passing, Again) and passing.wait == 3
    waits = {"try again in 1.2s": 1.2, "Please retry in 36.4s.": 36.4, "try again in 99m": 60.0, "soon": None}
    for words, seconds in waits.items():
        again = judge(429, error(words))
        assert isinstance(again, Again) and again.wait == seconds
    missing = {"object": "error", "message": "The model `m` does not exist.", "type": "NotFoundError"}
    assert isinstance(judge(404, missing), Doubtful)
    for known in ({**missing, "param": "model"}, error("no", code="model_not_found")):
        assert isinstance(judge(404, known), EndpointRefused)
    assert isinstance(judge(400, error("blocked", code="content_filter")), Filtered)  # Azure
    assert type(judge(400, error("This model's maximum context length is 4"))) is ContextTooLong
    assert type(judge(400, error("who pays for billing and quota?"))) is RequestRefused


def ended_by(url: str) -> EndpointRefused | EndpointUnavailable:
    model = hr.llm.Endpoint(url, "m", max_in_flight=8)
    with pytest.raises((EndpointRefused, EndpointUnavailable)) as raised:
        ROWS.prompt("{word}", model).with_options(engine="inline", progress=False).take_all()
    return raised.value


def test_a_name_that_no_server_has_is_tried_three_times() -> None:
    said = str(ended_by("http://no-such-host.invalid/v1"))
    assert "there is no server of this name" in said and "asked 3 times" in said


def test_a_server_without_tls_is_told_from_one_that_is_away() -> None:
    with FakeLLMServer() as server:
        said = str(ended_by(server.url.replace("http://", "https://")))
    assert "A server without TLS has http:// in base_url=." in said


@pytest.mark.parametrize("longest", [0, -1, 2.5, "many"])
def test_a_budget_needs_a_length_of_answers(longest) -> None:
    model = hr.llm.Endpoint("http://localhost:1/v1", "m", prices={"input": 1, "output": 1})
    with pytest.raises(ArgumentError, match=r"how long an answer may be|max_tokens"):
        model = model.with_options(sampling={"max_tokens": longest}, budget=hr.llm.Budget(run=1.0))
        ROWS.prompt("{word}", model)


def test_an_error_of_a_row_shows_no_code_of_ours(tmp_path) -> None:
    with FakeLLMServer(
        lambda prompt: (400, error("prompt too odd"), {}) if prompt == "w7" else prompt
    ) as server:
        model = hr.llm.Endpoint(server.url, "m", max_in_flight=8)
        rows = ROWS.prompt("{word}", model).with_options(engine="inline", progress=False)
        with pytest.raises(StepError) as raised:
            rows.write_parquet(tmp_path / "out")
    assert "prompt too odd" in str(raised.value)
    assert "headrace/annex" not in str(raised.value)
