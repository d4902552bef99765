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


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("weather", '{"city": "Par', "with arguments that are no JSON"),
        ("weather", "[1]", "with arguments that are no JSON"),
        ("launch", "{}", "calls the tool 'launch', which was not given"),
    ],
)
def test_a_call_that_nobody_could_carry_out_is_no_answer(name, arguments, words, tmp_path):
    call = {"id": "1", "type": "function", "function": {"name": name, "arguments": arguments}}
    with FakeLLMServer(lambda prompt: [call]) as server:
        model = hr.llm.Endpoint(server.url, "m").with_options(tools=[TOOL])
        asked = hr.from_items([{"text": "a"}]).prompt("{text}", model)
        inline(asked, on_error="reject").write_parquet(tmp_path)
    (rejected,) = hr.read_rejected(tmp_path).to_arrow().to_pylist()
    assert "InvalidAnswer" in str(rejected) and words in rejected["_error"]


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


def test_several_answers_to_a_row_are_lists():
    def answer(prompt: str) -> Any:
        texts = {"few": ["{}"], "none": ["a", "b", "c"]}.get(prompt, ['{"x": 1}', "no", '{"x": 3}'])
        reasons = ["stop", "stop", "length"] if prompt == "cut" else ["stop"] * 3
        return {
            "choices": [
                {
                    "message": {"role": "assistant", "content": text, "reasoning": text[:2]},
                    "finish_reason": reason,
                }
                for text, reason in zip(texts, reasons, strict=False)
            ],
            "usage": {"prompt_tokens": 2, "completion_tokens": 9},
        }

    schema = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
    rows = hr.from_items([{"q": q} for q in ("good", "cut", "few", "none")])
    with FakeLLMServer(answer) as server:
        model = hr.llm.Endpoint(server.url, "m", prices={"input": 0, "output": 1e6})
        several = model.with_options(n=3, columns=["reasoning", "model"])
        asked = rows.prompt("{q}", several, schema=schema)
        with pytest.warns(UserWarning) as warned:
            made = inline(asked, on_error="reject").take_all()
        said = "".join(str(each.message) for each in warned)
        assert "2 of 4 rows failed" in said and "asked for 3 answers, and gave 1" in said, said
        assert [list(row["answer"]) for row in made] == [[{"x": 1}, None, {"x": 3}], [{"x": 1}, None, None]]
        assert list(made[1]["answer_finish_reason"]) == ["stop", "stop", "length"]
        assert list(made[0]["answer_reasoning"]) == ['{"', None, '{"'] and made[0]["answer_model"] == "m"
        assert made[0]["answer_completion_tokens"] == 9
        assert {each["n"] for each in server.requests} == {3}
        for more in ({"tools": [TOOL]}, {"sampling": {"max_tokens": 3}, "on_truncated": 9}):
            with pytest.raises(ArgumentError, match="n= above 1 goes with neither"):
                rows.prompt("{q}", several.with_options(**more))
        before = len(server.requests)  # a cap reserves for all of them: the first would fit, alone
        capped = several.with_options(budget=hr.llm.Budget(run=299.0), sampling={"max_tokens": 100})
        with pytest.raises(hr.errors.SpendingCapReached, match="may use up to"):
            inline(rows.prompt("{q}", capped, output="b")).take_all()
        assert len(server.requests) == before


def test_rows_are_asked_of_another_model_by_the_reason(tmp_path):
    def first(prompt: str) -> Any:
        body = {"message": {"role": "assistant", "content": "no"}, "finish_reason": "content_filter"}
        refusal = {"error": {"message": "maximum context length is 4", "code": "context_length_exceeded"}}
        usage = {"prompt_tokens": 10, "completion_tokens": 1}
        known = {"bad": {"choices": [body], "usage": usage}, "long": (400, refusal, {}), "odd": "maybe"}
        return known.get(prompt.split()[-1], "yes")

    rows = hr.from_items([{"q": q} for q in ("good", "bad", "long", "odd")])
    with FakeLLMServer(first) as one, FakeLLMServer(lambda prompt: "no") as other, FakeLLMServer() as third:
        fallback = {
            "filtered": hr.llm.Endpoint(other.url, "tolerant"),
            "too_long": hr.llm.Endpoint(third.url, "large"),
        }
        model = hr.llm.Endpoint(one.url, "small").with_options(
            system="Be brief.", sampling={"temperature": 0.0, "max_tokens": 5}, fallback=fallback, repairs=0
        )
        asked = rows.prompt("say {q}", model, schema=["yes", "no", "say long"])
        with pytest.warns(UserWarning, match="1 of 4 rows failed"):
            made = inline(asked, on_error="reject").take_all()
        assert [(row["answer"], row["answer_model"]) for row in made] == [
            ("yes", "small"), ("no", "tolerant"), ("say long", "large")
        ]  # fmt: skip
        assert made[1]["answer_prompt_tokens"] > 10  # those of both
        assert [len(each.requests) for each in (one, other, third)] == [4, 1, 1]
        kept = rows.prompt("say {q}", model.with_options(cache=tmp_path / "kept"), keep=["q"])
        for _ in range(2):
            inline(kept.filter(lambda row: row["q"] != "odd"), on_error="null").take_all()
        assert [len(each.requests) for each in (one, other, third)] == [
            4 + 5,
            2,
            2,
        ]  # a refusal is asked again
        sent = other.requests[0]
        assert (
            sent["model"] == "tolerant"
            and sent["temperature"] == 0
            and sent["messages"][0]["role"] == "system"
        )
        with pytest.raises(ArgumentError, match="costs is not known"):
            priced = hr.llm.Endpoint(one.url, "small", prices={"input": 1.0, "output": 1.0}).with_options(
                fallback=fallback
            )
            rows.prompt("{q}", priced.with_options(budget=hr.llm.Budget(run=1), sampling={"max_tokens": 1}))
        with pytest.raises(ArgumentError, match="endpoints without with_options"):
            model.with_options(fallback={"failed": model})


def test_a_cap_holds_over_a_model_and_the_one_that_stands_in_for_it(tmp_path):
    held_back = {"message": {"role": "assistant", "content": "no"}, "finish_reason": "content_filter"}
    usage = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
    prices = {"input": 1_000_000.0, "output": 1_000_000.0}  # a token costs 1
    rows = hr.from_items([{"q": q} for q in range(60)])
    with (
        FakeLLMServer(lambda prompt: {"choices": [held_back], "usage": usage}) as one,
        FakeLLMServer(lambda prompt: "a b c", too_many=0.1) as other,
    ):

        def ask(cap):
            fallback = {"filtered": hr.llm.Endpoint(other.url, "tolerant", prices=prices)}
            model = hr.llm.Endpoint(one.url, "small", prices=prices, max_in_flight=2).with_options(
                sampling={"max_tokens": 5, "temperature": 0}, fallback=fallback, budget=hr.llm.Budget(run=cap)
            )
            return inline(rows.prompt("say it {q}", model)).write_parquet(tmp_path / "out")

        with pytest.raises(hr.errors.SpendingCapReached):
            ask(400)
        billed = 4 * len(one.requests) + 6 * (len(other.requests) - other.outcomes["429"])
        assert 150 < billed <= 400
        ask(100_000)
        assert (len(one.requests), len(other.requests) - other.outcomes["429"]) == (60, 60)
    assert set(hr.read_parquet(tmp_path / "out").to_arrow()["answer_model"].to_pylist()) == {"tolerant"}
