"""What servers send with status 200 that is no answer, or is one in another form."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import headrace as hr
from headrace.testing import FakeLLMServer

ROWS = hr.from_items([{"word": word} for word in ("good", "bad")])


def inline(data: Any, **options: Any) -> Any:
    return data.with_options(engine="inline", progress=False, **options)


def response(content: Any, reason: str | None = "stop", **message: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": content, **message}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    return {"choices": [{"message": message, "finish_reason": reason}], "usage": usage}


FAILURES = {
    "finish_reason error": (response("", "error"), "ServerFailed.*finish_reason 'error'"),
    "finish_reason abort": (response("half of i", "abort"), "ServerFailed.*finish_reason 'abort'"),
    "no choices": ({"choices": []}, "Malformed.*no choice with a message"),
    "no message": ({"choices": [{"finish_reason": "stop"}]}, "Malformed.*no choice with a message"),
    "no text": (response(None), "NoText.*the answer has no text"),
    "no parts": (response([]), None),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_a_response_without_an_answer_is_asked_for_again(failure: str) -> None:
    data, _ = FAILURES[failure]
    asked: Counter[str] = Counter()

    def answer(prompt: str) -> Any:
        asked[prompt] += 1
        return data if prompt == "bad" and asked[prompt] < 3 else prompt

    with FakeLLMServer(answer) as server:
        model = hr.llm.Endpoint(server.url, "m", max_retries=4)
        made = inline(ROWS.prompt("{word}", model)).take_all()
    assert [row["answer"] for row in made] == ["good", "bad"]
    assert asked == {"good": 1, "bad": 3}


@pytest.mark.parametrize("failure", [name for name, (_, words) in FAILURES.items() if words])
def test_where_it_stays_without_one_it_is_the_fault_of_its_row(failure: str) -> None:
    data, words = FAILURES[failure]
    with FakeLLMServer(lambda prompt: data if prompt == "bad" else prompt) as server:
        model = hr.llm.Endpoint(server.url, "m", max_retries=2)
        with pytest.warns(UserWarning, match=f"(?s){words}".replace(".*", ".*asked 3 times.*", 1)):
            made = inline(ROWS.prompt("{word}", model), on_error="reject").take_all()
        assert len(server.requests) == 4
    assert [row["answer"] for row in made] == ["good"]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (response(None, refusal="I cannot help."), "Filtered.*refused to answer: 'I cannot help.'"),
        (response(None, reasoning_content="Hm."), "NoText.*only the model's reasoning"),
        (response("", reasoning="Hm."), "NoText.*only the model's reasoning"),
        (response(None, "tool_calls", tool_calls=[{"id": "1"}]), "NoText.*only calls of tools"),
        (response(None, "content_filter"), "Filtered.*held the answer back"),
        (response(None, "length", reasoning_content="Hm."), "Truncated"),
    ],
)
def test_what_another_try_would_not_change_is_asked_once(data: Any, words: str) -> None:
    with FakeLLMServer(lambda prompt: data if prompt == "bad" else prompt) as server:
        with pytest.warns(UserWarning, match=words):
            made = inline(
                ROWS.prompt("{word}", hr.llm.Endpoint(server.url, "m")), on_error="reject"
            ).take_all()
        assert len(server.requests) == 2
    assert [row["answer"] for row in made] == ["good"]


def test_a_refusal_is_not_repaired() -> None:
    with FakeLLMServer(lambda prompt: response(None, refusal="No.")) as server:
        asked = ROWS.prompt(
            "{word}", hr.llm.Endpoint(server.url, "m").with_options(repairs=3), schema=["yes", "no"]
        )
        with pytest.warns(UserWarning, match="Filtered"):
            assert inline(asked, on_error="reject").take_all() == []
        assert len(server.requests) == 2


def test_an_answer_in_parts_is_their_texts() -> None:
    parts = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]},
        {"type": "text", "text": "a "},
        {"type": "text", "text": "b"},
    ]
    with FakeLLMServer(lambda prompt: response(parts)) as server:
        made = inline(ROWS.prompt("{word}", hr.llm.Endpoint(server.url, "m"))).take_all()
        assert len(server.requests) == 2
    assert [row["answer"] for row in made] == ["a b", "a b"]


def test_an_empty_answer_is_one() -> None:
    with FakeLLMServer(lambda prompt: response("")) as server:
        made = inline(ROWS.prompt("{word}", hr.llm.Endpoint(server.url, "m"))).take_all()
    assert [row["answer"] for row in made] == ["", ""]


@pytest.mark.parametrize("reason", ["length", "model_length", "MAX_TOKENS", "model_context_window_exceeded"])
def test_an_answer_that_was_cut_is_none_whatever_the_server_calls_it(reason: str, tmp_path: Any) -> None:
    with FakeLLMServer(lambda prompt: response("half of i", reason) if prompt == "bad" else prompt) as server:
        asked = inline(ROWS.prompt("{word}", hr.llm.Endpoint(server.url, "m")), on_error="reject")
        assert asked.write_parquet(tmp_path / "out").rejected == 1
        assert len(server.requests) == 2
    assert "Truncated" in str(hr.read_rejected(tmp_path / "out").to_arrow().to_pylist())


def test_an_answer_as_long_as_it_may_be_was_cut_unless_the_server_says_otherwise(tmp_path: Any) -> None:
    said = {**response("half", ""), "usage": {"prompt_tokens": 3, "completion_tokens": 8}}
    with FakeLLMServer(lambda prompt: said) as server:
        for longest, rejected in ((8, 2), (9, 0)):
            model = hr.llm.Endpoint(server.url, "m").with_options(sampling={"max_tokens": longest})
            asked = inline(ROWS.prompt("{word}", model), on_error="reject")
            assert asked.write_parquet(tmp_path / str(longest)).rejected == rejected


def test_an_answer_that_was_held_back_is_none_whatever_the_server_calls_it(tmp_path: Any) -> None:
    with FakeLLMServer(
        lambda prompt: response("half of i", "SAFETY") if prompt == "bad" else prompt
    ) as server:
        asked = inline(ROWS.prompt("{word}", hr.llm.Endpoint(server.url, "m")), on_error="reject")
        assert asked.write_parquet(tmp_path / "out").rejected == 1
    assert "Filtered" in str(hr.read_rejected(tmp_path / "out").to_arrow().to_pylist())
