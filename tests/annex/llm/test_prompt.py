"""``prompt`` against a real server: answers, faults, limits."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import traceback
from collections import Counter

import pytest

import headrace as hr
from headrace.errors import (
    ArgumentError,
    ColumnExists,
    EndpointRefused,
    EndpointUnavailable,
    StepError,
    UnknownArgument,
    UnknownColumn,
)
from headrace.testing import FakeLLMServer

WORDS = hr.from_items([{"id": i, "word": f"w{i}"} for i in range(20)])


def inline(data, **options):
    return data.with_options(engine="inline", progress=False, **options)


def endpoint(server, **options) -> hr.llm.Endpoint:
    return hr.llm.Endpoint(server.url, "fake", **options)


def test_answers_come_with_counts_in_the_order_of_the_rows():
    with FakeLLMServer(str.upper, latency=lambda random: random.random() * 0.02) as server:
        asked = WORDS.prompt(
            "Say {word}",
            endpoint(server).with_options(system="Be brief.", sampling={"temperature": 0.0}, keep_raw=True),
        )
        table = inline(asked).to_arrow()
    assert table.column_names == [
        "id", "word", "answer", "answer_finish_reason", "answer_prompt_tokens", "answer_completion_tokens",
        "answer_latency", "answer_raw",
    ]  # fmt: skip
    assert table["answer"].to_pylist() == [f"SAY W{i}" for i in range(20)]
    assert set(table["answer_finish_reason"].to_pylist()) == {"stop"}
    assert set(table["answer_prompt_tokens"].to_pylist()) == {4}
    assert set(table["answer_completion_tokens"].to_pylist()) == {2}
    assert all(0 < each < 60 for each in table["answer_latency"].to_pylist())
    assert [
        json.loads(raw)["choices"][0]["message"]["content"] for raw in table["answer_raw"].to_pylist()
    ] == [f"SAY W{i}" for i in range(20)]
    assert len(server.requests) == 20
    request = min(server.requests, key=lambda each: int(each["messages"][-1]["content"][5:]))
    assert request == {
        "model": "fake",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Say w0"}],
        "temperature": 0.0,
    }


def test_the_columns_are_known_without_asking():
    model = hr.llm.Endpoint("http://localhost:1/v1", "m")
    schema = inline(
        WORDS.prompt("{word}", model.with_options(keep_raw=True), output="said", keep=["id"])
    ).schema()
    assert [(each.name, str(each.type)) for each in schema] == [
        ("id", "int64"), ("said", "string"), ("said_finish_reason", "string"), ("said_prompt_tokens", "int64"),
        ("said_completion_tokens", "int64"), ("said_latency", "double"), ("said_raw", "string"),
    ]  # fmt: skip
    assert inline(WORDS.filter(expr="id > 99").prompt("{word}", model)).to_arrow().num_columns == 7


@pytest.mark.parametrize(
    "alike", [{"sampling": {"temperature": 0}}, {"sampling": {"seed": 7}}, {"cache": "answers"}], ids=str
)
def test_equal_requests_are_asked_once_where_they_are_answered_alike(alike, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = hr.from_items([{"word": f"w{i % 3}"} for i in range(60)])
    with FakeLLMServer(latency=0.01) as server:
        answers = (
            inline(rows.prompt("{word}", endpoint(server).with_options(**alike)))
            .to_arrow()["answer"]
            .to_pylist()
        )
    assert answers == [f"w{i % 3}" for i in range(60)]
    assert len(server.requests) == 3


@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0}, {"top_p": 0.5}], ids=str)
def test_answers_that_are_drawn_are_drawn_for_each_row(sampling, tmp_path):
    """Rows that a flat_map repeats get answers of their own; killed and run again, none is given to two rows."""
    drawn = itertools.count()
    rows = hr.from_items([{"word": f"w{i}"} for i in range(10)])
    rows = rows.flat_map(lambda row: [row] * 8)
    down = []

    def answer(prompt):
        if (number := next(drawn)) > 50 and down:
            raise OSError("down")
        return f"{prompt} {number}"

    with FakeLLMServer(answer) as server:
        model = endpoint(server, max_in_flight=4, max_retries=0)
        asked = inline(rows.prompt("{word}", model.with_options(sampling=sampling)), shard_rows=2)
        down.append(True)
        with pytest.raises((StepError, EndpointUnavailable)):
            asked.write_parquet(tmp_path / "out")
        failed = server.outcomes["answered"] - 51
        down.clear()
        asked.write_parquet(tmp_path / "out")
        assert len(server.requests) <= 80 + failed + 4
    table = hr.read_parquet(tmp_path / "out").to_arrow()
    assert len(set(table["answer"].to_pylist())) == 80
    assert Counter(each.split()[0] for each in table["answer"].to_pylist()) == {f"w{i}": 8 for i in range(10)}


def test_messages_formats_braces_and_images():
    rows = hr.from_items([{"q": "Why?", "x": 1.25, "photo": b"\xff\xd8\xff\xe0abc"}])
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "{q} {{x}} {x:.1f}"},
                {"type": "image_url", "image_url": {"url": "{photo}"}},
            ],
        },
    ]
    with FakeLLMServer() as server:
        inline(rows.prompt(messages, endpoint(server))).take_all()
    sent = server.requests[0]["messages"]
    assert sent[:2] == messages[:2]
    assert sent[2]["content"] == [
        {"type": "text", "text": "Why? {x} 1.2"},
        {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,/9j/4GFiYw=="}},
    ]


def test_truncated_answers_are_errors_of_their_rows():
    rows = hr.from_items([{"text": "a b"}, {"text": "a b c d e"}, {"text": "a b c"}])
    with FakeLLMServer() as server:
        asked = rows.prompt("{text}", endpoint(server).with_options(sampling={"max_tokens": 3}))
        with pytest.raises(StepError, match=r"Truncated: the answer was cut after 3 tokens.*'a b c d e'"):
            inline(asked).take_all()
        nulled = inline(asked, on_error="null").to_arrow()
        assert nulled["answer"].to_pylist() == ["a b", None, "a b c"]
        assert nulled["answer_finish_reason"].to_pylist() == ["stop", None, "stop"]
        kept = inline(
            rows.prompt(
                "{text}", endpoint(server).with_options(sampling={"max_tokens": 3}, on_truncated="keep")
            )
        )
        assert [(row["answer"], row["answer_finish_reason"]) for row in kept.take_all()] == [
            ("a b", "stop"), ("a b c", "length"), ("a b c", "stop"),
        ]  # fmt: skip
        before = len(server.requests)
        more = inline(
            rows.prompt("{text}", endpoint(server).with_options(sampling={"max_tokens": 3}, on_truncated=9))
        ).take_all()
        assert [row["answer"] for row in more] == ["a b", "a b c d e", "a b c"]
        assert more[1]["answer_completion_tokens"] == 8  # what both answers cost
        assert len(server.requests) == before + 4


def refused(kind, data, **options):
    """Return the message of an error that ends a run, after a look at it."""
    with pytest.raises(kind) as caught:
        inline(data, on_error="reject", **options).take_all()
    text = str(caught.value)
    assert "\n" not in text and 60 < len(text) < 900, text
    return text


def test_a_wrong_key_ends_the_run_at_once_and_is_shown_nowhere(monkeypatch, tmp_path, capfd):
    monkeypatch.setenv("FAKE_KEY", "sk-wrong-0123456789")
    with FakeLLMServer(key="sk-right", latency=0.01) as server:
        asked = WORDS.prompt("{word}", endpoint(server, api_key_env="FAKE_KEY", max_in_flight=2))
        assert "does not let us in (401)" in refused(EndpointRefused, asked)
        assert len(server.requests) <= 2
        with pytest.raises(EndpointRefused) as caught:
            asked.with_options(engine="local", workers=1).write_parquet(tmp_path / "out")
        shown = "".join(traceback.format_exception(caught.value)) + "".join(capfd.readouterr())
        monkeypatch.setenv("FAKE_KEY", "sk-right")
        assert asked.with_options(engine="local", workers=1).write_parquet(tmp_path / "right").rows == 20
    shown += repr(asked) + repr(asked.explain()) + "".join(capfd.readouterr())
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 5
    for data in (shown.encode(), *(path.read_bytes() for path in files)):
        assert b"sk-wrong" not in data and b"sk-right" not in data


def test_other_refusals_end_the_run_at_once():
    with FakeLLMServer(model="fake", latency=0.01) as server:
        unknown = hr.llm.Endpoint(server.url, "fade", max_in_flight=1)
        assert "'fade'" in refused(EndpointRefused, WORDS.prompt("{word}", unknown))
        elsewhere = hr.llm.Endpoint(server.url + "/v2", "fake", max_in_flight=1)
        assert "usually ends with '/v1'" in refused(EndpointRefused, WORDS.prompt("{word}", elsewhere))
        assert len(server.requests) == 1


def test_a_server_that_is_not_there_or_never_answers_ends_the_run():
    with FakeLLMServer(latency=60) as server:
        silent = endpoint(server, timeout=0.1)
        text = refused(EndpointUnavailable, WORDS.prompt("{word}", silent))
        assert "does not answer any request: asked 3 times" in text
        assert re.search(r"no answer in [\d.]+ seconds \(timeout=0\.1\)", text)  # as long as it was
        gone = endpoint(server)
    text = refused(EndpointUnavailable, WORDS.prompt("{word}", gone))
    assert f"{gone.base_url} cannot be reached: nothing listens there" in text and "asked 3 times" in text


def test_a_cache_outlives_runs(tmp_path):
    with FakeLLMServer() as server:
        for _ in range(2):
            asked = WORDS.prompt("{word}", endpoint(server).with_options(cache=tmp_path / "cache"))
            assert len(inline(asked).take_all()) == 20
        assert len(server.requests) == 20
        cached = endpoint(server).with_options(cache=tmp_path / "cache")
        assert len(inline(WORDS.prompt("{word}!", cached)).take_all()) == 20
        assert len(server.requests) == 40


def test_a_preview_asks_for_no_more_rows_than_it_shows():
    with FakeLLMServer() as server:
        for rows in (1, 3):
            assert len(inline(WORDS.prompt("{word}", endpoint(server))).take(rows)) == rows
            assert len(server.requests) == rows
            server.requests.clear()


def test_wrong_arguments_are_told_before_anything_runs(monkeypatch):
    monkeypatch.delenv("NO_KEY", raising=False)
    model = hr.llm.Endpoint("http://localhost:1/v1", "m")
    with pytest.raises(UnknownColumn, match=r"prompt\(m\) asks for column 'wrod'.*Did you mean 'word'"):
        inline(WORDS.prompt("{wrod}", model)).take_all()
    with pytest.raises(ColumnExists, match="'said_latency'"):
        inline(WORDS.rename_columns({"id": "said_latency"}).prompt("{word}", model, output="said")).take_all()
    wrong = {
        "names no column": lambda: WORDS.prompt("Hello", model),
        "is not the name of a column": lambda: WORDS.prompt('{word} {"a": 1}', model),
        "cannot be read": lambda: WORDS.prompt("{word} {", model),
        "NO_KEY is not set": lambda: hr.llm.Endpoint("http://x/v1", "m", api_key_env="NO_KEY"),
        "and not the key": lambda: hr.llm.Endpoint("http://x/v1", "m", api_key_env="sk-abc-def"),
        "not the address of a server": lambda: hr.llm.Endpoint("localhost:8000", "m"),
        "leave '/chat/completions' out": lambda: hr.llm.Endpoint("http://x/v1/chat/completions", "m"),
        "holds a name or a password": lambda: hr.llm.Endpoint("http://u:p@x/v1", "m"),
        "what a token of Endpoint costs is not known": lambda: WORDS.prompt(
            "{word}", model.with_options(budget=hr.llm.Budget(run=1))
        ),
        "say n=": lambda: WORDS.prompt("{word}", model.with_options(sampling={"n": 2})),
        "more than max_tokens": lambda: WORDS.prompt(
            "{word}", model.with_options(sampling={"max_tokens": 9}, on_truncated=9)
        ),
        "it is an endpoint": lambda: WORDS.prompt("{word}", "gpt-4o"),
        "the role 'bot'": lambda: WORDS.prompt([{"role": "bot", "content": "{word}"}], model),
    }
    for words, call in wrong.items():
        with pytest.raises(ArgumentError, match=re.escape(words)):
            call()
    with pytest.raises(UnknownArgument, match="Did you mean 'sampling'"):
        model.with_options(sampeling={})
    with pytest.raises(
        UnknownArgument, match=r"sampling=\{'n': 1\}: the model has it: model.with_options\(sampling="
    ):
        WORDS.prompt("{word}", model, sampling={"n": 1})
    with pytest.raises(UnknownArgument, match=r"max_in_flight=8: the endpoint has it"):
        WORDS.prompt("{word}", model, max_in_flight=8)


def test_no_more_is_under_way_than_may_be_and_slow_requests_hold_up_nobody():
    rows = hr.from_items([{"i": i} for i in range(400)])
    slow = iter([True])

    async def latency(random):
        if next(slow, False):  # the first is answered when nearly all others are: it holds up nobody
            while server.outcomes["answered"] < 350:
                await asyncio.sleep(0.001)
        while server.most_at_once < 16:  # nobody is answered until so many are under way
            await asyncio.sleep(0.001)

    with FakeLLMServer(latency=latency, slots=1000) as server:
        answers = (
            inline(rows.prompt("{i}", endpoint(server, max_in_flight=16))).to_arrow()["answer"].to_pylist()
        )
    assert answers == [str(i) for i in range(400)]
    assert server.most_at_once == 16


def test_what_is_sent_again_is_told_with_the_run(tmp_path):
    with FakeLLMServer(too_many=0.3, resets=0.2, seed=1) as server:
        result = inline(WORDS.prompt("{word}", endpoint(server, max_retries=20))).write_parquet(
            tmp_path / "out"
        )
    assert result.rows == 20
    sent_again = Counter()
    for line in (tmp_path / "out" / "_headrace" / result.run / "events.jsonl").read_text().splitlines():
        event = json.loads(line)
        if event["event"] == "call retried":
            assert event["step"] == "prompt(fake)"
            sent_again[event["error"]] += 1
    assert sent_again == {"RateLimited": server.outcomes["429"], "ConnectionLost": server.outcomes["reset"]}
