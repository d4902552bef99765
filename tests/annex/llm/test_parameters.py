"""Parameters that rows give, and tools that a model may call."""

from __future__ import annotations

import json
from typing import Any

import pytest

import headrace as hr
from headrace.errors import ArgumentError, UnknownColumn
from headrace.testing import FakeLLMServer

TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
CALL = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"place": "Oslo"}'}}


def inline(data: Any, **options: Any) -> Any:
    return data.with_options(engine="inline", progress=False, **options)


def test_rows_give_parameters():
    limits = [2, None, 4, 0, None, 3]
    rows = hr.from_items(
        [{"text": f"a b c d e {i}", "limit": limits[i], "t": i / 8, "id": i} for i in range(6)]
    )
    with FakeLLMServer() as server:
        model = hr.llm.Endpoint(server.url, "m")
        asked = rows.prompt(
            "{text}",
            model.with_options(
                sampling={"max_tokens": 5},
                overrides={"max_tokens": "limit", "temperature": "t"},
                on_truncated=6,
            ),
            keep=["id"],
        )
        with pytest.warns(
            UserWarning, match="column 'limit' holds 0 for max_tokens: it takes a whole number"
        ):
            made = inline(asked, on_error="reject").take_all()
        assert [(row["id"], row["answer_completion_tokens"]) for row in made] == [
            (i, n + 6) for i, n in zip((0, 1, 2, 4, 5), (2, 5, 4, 5, 3), strict=True)
        ]
        sent = {
            each["messages"][0]["content"][-1]: each for each in server.requests if each["max_tokens"] != 6
        }
        assert {int(i): (each["max_tokens"], each["temperature"]) for i, each in sent.items()} == {
            0: (2, 0.0), 1: (5, 0.125), 2: (4, 0.25), 4: (5, 0.5), 5: (3, 0.625)
        }  # fmt: skip
        for words, options in {
            "columns by parameter": {"overrides": ["limit"]},
            "say tools=": {"overrides": {"tools": "limit"}},
        }.items():
            with pytest.raises(ArgumentError, match=words):
                model.with_options(**options)
        with pytest.raises(UnknownColumn, match="limits"):
            inline(rows.prompt("{text}", model.with_options(overrides={"max_tokens": "limits"}))).schema()


def test_what_a_model_calls_is_a_column():
    rows = hr.from_items([{"text": text} for text in ("weather", "talk", "weather")])

    def answer(prompt: str) -> Any:
        return [CALL] if prompt == "weather" else "talk"

    with FakeLLMServer(answer) as server:
        model = hr.llm.Endpoint(server.url, "m")
        asked = inline(
            rows.prompt(
                "{text}", model.with_options(tools=[TOOL], sampling={"tool_choice": "auto", "seed": 1})
            )
        )
        assert asked.schema().field("answer_tool_calls").type == "string"
        made = asked.take_all()
        assert [(row["answer"], row["answer_finish_reason"]) for row in made] == [
            (None, "tool_calls"), ("talk", "stop"), (None, "tool_calls")
        ]  # fmt: skip
        assert [json.loads(row["answer_tool_calls"] or "0") for row in made] == [[CALL], 0, [CALL]]
        assert server.requests[0]["tools"] == [TOOL] and server.requests[0]["tool_choice"] == "auto"
        assert len(server.requests) == 2
        with pytest.warns(UserWarning, match="NoText"):  # who gives no tools has no use for calls
            assert len(inline(rows.prompt("{text}", model), on_error="reject").take_all()) == 1
    for words, options in {
        "it takes a list as OpenAI's": {"tools": [{"name": "weather"}]},
        "say tools=": {"sampling": {"tools": [TOOL]}},
    }.items():
        with pytest.raises(ArgumentError, match=words):
            model.with_options(**options)
    with pytest.raises(ArgumentError, match="Give one of them"):
        rows.prompt("{text}", model.with_options(tools=[TOOL]), schema=["a"])


def test_what_else_comes_with_an_answer_are_columns():
    def answer(prompt: str) -> Any:
        if prompt == "bare":
            return "yes"
        message = {"role": "assistant", "content": "yes", "reasoning_content": f"about {prompt}"}
        tokens = [{"token": "y", "logprob": -0.5}, {"token": "es", "logprob": 0}]
        choice = {"message": message, "finish_reason": "stop", "logprobs": {"content": tokens}}
        return (
            {"choices": [choice]}
            if prompt != "odd"
            else {"choices": [{**choice, "logprobs": {"content": [1]}}]}
        )

    rows = hr.from_items(
        [{"q": q, "by": by} for q, by in [("a", "lora-1"), ("bare", None), ("odd", "lora-2")]]
    )
    with FakeLLMServer(answer) as server:
        model = hr.llm.Endpoint(server.url, "base").with_options(
            sampling={"stop": ["."]}, overrides={"model": "by"}, columns=["model", "logprobs", "reasoning"]
        )
        asked = rows.prompt("{q}", model)
        assert asked.schema().names[6:] == [
            "answer_latency",
            "answer_reasoning",
            "answer_logprobs",
            "answer_model",
        ]
        with pytest.warns(UserWarning, match="logprobs have not the form of OpenAI's"):
            made = inline(asked, on_error="reject").take_all()
        sent = [(each["model"], each["logprobs"], each["stop"]) for each in server.requests[:3]]
        assert sorted(sent) == [(name, True, ["."]) for name in ("base", "lora-1", "lora-2")]
        assert [(row["answer_reasoning"], row["answer_model"]) for row in made] == [
            ("about a", "lora-1"), (None, "base")
        ]  # fmt: skip
        assert [None if (p := row["answer_logprobs"]) is None else list(p) for row in made] == [
            [-0.5, 0.0],
            None,
        ]
        with pytest.raises(ArgumentError, match="say columns="):
            model.with_options(sampling={"logprobs": True})
        numbered = hr.from_items([{"q": "a", "by": 3}]).prompt("{q}", model)
        with pytest.raises(
            hr.errors.StepError, match="column 'by' holds 3 for model: it takes the name of a model"
        ):
            inline(numbered).take_all()
