"""Prompts by way of a batch service: what requests give, and nothing paid for twice, whatever dies on the way."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import re
import signal
import subprocess
import sys
from collections import Counter, deque

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
import headrace.session.preparing as session
from forked import Forked
from headrace.annex.llm import ahead as work
from headrace.annex.llm import batch_services as calls
from headrace.annex.llm.anthropic_form import chat_of, params_of
from headrace.annex.llm.batch_services import AnthropicBatches, OpenAIBatches
from headrace.annex.llm.client import Client
from headrace.annex.report.follow import Follower
from headrace.errors import ArgumentError, EndpointRefused, EngineError, PlanChanged, SpendingCapReached
from headrace.testing import FakeLLMServer

ERRORS = ("_step", "_error_type", "_error")
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}


@pytest.fixture(autouse=True)
def quick_batches(monkeypatch):
    monkeypatch.setattr(work, "FIRST_LOOK", 0.005)
    monkeypatch.setattr(work, "LONGEST_LOOK", 0.02)
    monkeypatch.setattr(calls, "FIRST_WAIT", 0.005)
    monkeypatch.setattr(calls, "LONGEST_WAIT", 0.02)
    monkeypatch.setattr(calls, "UNSURE_WAIT", 0.02)
    monkeypatch.setattr(calls, "SETTLED", 0.05)


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


def rows_of(count, **options):
    return hr.from_items([{"i": i} for i in range(count)]).with_options(
        engine="inline", progress=False, **options
    )


def model(server, *, prices=None, **settings):
    return hr.llm.Endpoint(server.url, "m", prices=prices).with_options(**settings)


def sent(server):
    """Return how often each prompt was answered by a batch."""
    answered = Counter()
    for batch in server.batches.all:
        bodies = {each["custom_id"]: each.get("body", each.get("params")) for each in batch.requests}
        for name in {each["custom_id"] for each in batch.answers}:
            if name in bodies:
                answered[bodies[name]["messages"][-1]["content"]] += 1
    return answered


def answers(out):
    return hr.read_parquet(out).to_arrow().to_pydict()


def said(prompt):
    """Say something else each time, and what is wrong in some cases."""
    if prompt.startswith("That is not"):
        return '{"n": 7}'
    if "bad" in prompt:
        return "no JSON"
    return '{"n": 1}'


# ------------------------------------------------------------ as with requests


def test_answers_repairs_and_rejected_rows_are_those_of_requests(tmp_path):
    def answer(prompt):
        if prompt == "refuse":
            return (400, {"error": {"message": "not this one", "code": "invalid_request_error"}}, {})
        return said(prompt)

    texts = ["one", "bad", "refuse", None, "one", "w " * 60, "two", "bad"]
    found = {}
    for via in ("requests", "batch"):
        with FakeLLMServer(answer, context=50) as server:
            rows = hr.from_items([{"i": i, "text": text} for i, text in enumerate(texts)])
            greedy = model(server, sampling={"temperature": 0, "max_tokens": 20})
            asked = rows.prompt("{text}", greedy, schema=SCHEMA, via=via)
            result = asked.with_options(engine="inline", on_error="reject", progress=False).write_parquet(
                tmp_path / via
            )
            if via == "batch":
                assert not server.requests and len(server.batches.all) == 2  # the second one repairs
                assert max(sent(server).values()) == 1
        table = hr.read_parquet(tmp_path / via).to_arrow().drop_columns(["answer_latency"])
        rejected = hr.read_rejected(tmp_path / via).to_arrow()
        errors = rejected.select(["i", *(each for each in rejected.schema.names if each in ERRORS)])
        found[via] = table, errors.to_pydict(), result.rejected
        told = Follower(tmp_path / via).poll().data()["language_model"]
        found[via] += (
            told["prompt_tokens"],
            told["completion_tokens"],
            told["repaired"],
            told["paid"]["answers"],
        )
    assert found["batch"] == found["requests"]
    assert found["batch"][1]["_error_type"] == ["RequestRefused", "BadRow", "ContextTooLong"]


def test_equal_prompts_are_drawn_for_each_row_or_asked_once(out, tmp_path):
    counter = itertools.count()
    with FakeLLMServer(lambda prompt: f"{prompt} {next(counter)}") as server:
        rows = hr.from_items([{"i": i} for i in range(6)]).with_options(engine="inline", progress=False)
        rows = rows.map(lambda row: {"i": row["i"], "text": "same"})
        rows.prompt("{text}", model(server), via="batch").write_parquet(out)
        assert sorted(answers(out)["answer"]) == [f"same {i}" for i in range(6)]
        once = rows.prompt("{text}", model(server, sampling={"temperature": 0}), via="batch")
        once.write_parquet(tmp_path / "once")
        assert answers(tmp_path / "once")["answer"] == ["same 6"] * 6
    assert not server.requests


def test_an_answer_that_is_cut_is_asked_again_in_the_next_round(out):
    with FakeLLMServer(lambda prompt: f"{prompt} " * 4) as server:
        cut = model(server, sampling={"max_tokens": 2}, on_truncated=9)
        asked = rows_of(3).prompt("{i}", cut, via="batch")
        asked.write_parquet(out)
    found = answers(out)
    assert [len(each.split()) for each in found["answer"]] == [4, 4, 4]
    assert found["answer_completion_tokens"] == [6, 6, 6] and len(server.batches.all) == 2


def test_two_prompts_one_after_the_other_and_more_steps(out):
    with FakeLLMServer(str.upper) as server:
        asked = (
            rows_of(5)
            .filter(lambda row: row["i"] != 3)
            .prompt("say {i}", model(server), output="first", via="batch")
            .prompt("again {first}", model(server), output="second", via="batch")
            .map(lambda row: {**row, "more": row["second"] + "!"})
        )
        asked.write_parquet(out)
    assert answers(out)["more"] == [f"AGAIN SAY {i}!" for i in (0, 1, 2, 4)]
    assert not server.requests and [len(batch.requests) for batch in server.batches.all] == [4, 4]


def test_a_judge_asks_by_batches(out):
    with FakeLLMServer(lambda prompt: '{"reason": "long", "verdict": "first"}') as server:
        judge = hr.llm.Judge("Which is better?", model(server), pair=("one", "other"), via="batch")
        rows = rows_of(4).map(lambda row: {"one": f"a{row['i']}", "other": "b"}).accumulate(better=judge)
        found = rows.write_parquet(out).metrics["better"]
    assert found["consistent"] == 0.0 and found["shares"]["tie"] == 1.0
    assert not server.requests and [len(batch.requests) for batch in server.batches.all] == [4, 4]


def test_only_rows_of_new_files_are_asked(out, tmp_path):
    with FakeLLMServer(str.upper) as server:
        for number in range(2):
            rows_of(3).map(lambda row, number=number: {"i": row["i"] + 10 * number}).write_csv(
                tmp_path / f"in{number}"
            )
            rows = hr.read_csv(str(tmp_path / "in*/*.csv"))
            asked = rows.prompt("say {i}", model(server), via="batch")
            asked.with_options(engine="inline", progress=False).write_parquet(out, incremental=True)
    assert sorted(answers(out)["answer"]) == sorted(f"SAY {i}" for i in (0, 1, 2, 10, 11, 12))
    assert [len(batch.requests) for batch in server.batches.all] == [3, 3]


@pytest.mark.local
def test_several_workers_and_stages_find_every_answer(out, tmp_path):
    counter = itertools.count()
    with FakeLLMServer(lambda prompt: f"{next(counter)}") as server:
        for number in range(8):
            part = pa.table({"i": range(50 * number, 50 * number + 50)})
            (tmp_path / "in").mkdir(exist_ok=True)
            pq.write_table(part, tmp_path / "in" / f"{number}.parquet")
        asked = hr.read_parquet(tmp_path / "in").map(
            lambda row: {"i": row["i"], "text": f"t{row['i'] % 100}"}
        )
        asked = asked.prompt("{text}", model(server), via="batch", concurrency=2)
        asked = asked.map_batches(lambda batch: batch, concurrency=2)
        asked.with_options(engine="local", progress=False).write_parquet(out)
    found = answers(out)
    assert found["i"] == list(range(400)) and not server.requests
    assert sum(len(batch.requests) for batch in server.batches.all) == 400


@pytest.mark.parametrize("via", ["batch", "auto"])
def test_vectors_are_those_of_requests(tmp_path, via):
    texts = ["mill", "race", None, "mill", "w" * 400, "wheel"]
    found = {}
    for way in ("requests", via):
        with FakeLLMServer(context=50) as server:
            rows = hr.from_items([{"i": i, "text": text} for i, text in enumerate(texts)])
            made = rows.embed("text", hr.llm.Endpoint(server.url, "m"), via=way, dimensions=3)
            out = tmp_path / way
            made.with_options(engine="inline", on_error="reject", progress=False).write_parquet(out)
            found[way] = answers(out), hr.read_rejected(out).to_arrow()["_error_type"].to_pylist()
            if way == via:
                assert not server.requests and [len(batch.requests) for batch in server.batches.all] == [4]
    assert found["requests"] == found[via] and found[via][1] == ["BadRow", "ContextTooLong"]


def test_rejected_rows_are_tried_again_by_batches(out):
    refused = {"1 a"}

    def answer(prompt):
        if prompt in refused:
            return (400, {"error": {"message": "not this one", "code": "invalid_request_error"}}, {})
        return prompt.upper()

    with FakeLLMServer(answer) as server:
        asked = rows_of(3, on_error="reject").prompt("{i} a", model(server), via="batch")
        assert asked.write_parquet(out).rejected == 1
        refused.clear()
        asked.write_parquet(out, refresh="rejected")
        assert not server.requests and [len(batch.requests) for batch in server.batches.all] == [3, 1]
    assert answers(out)["answer"] == ["0 A", "1 A", "2 A"]


# ------------------------------------------------------------ what services do


SERVICES = pytest.mark.parametrize("service", ["openai", "anthropic"])


@SERVICES
@pytest.mark.parametrize("end", ["expired", "missing", "double", "wrong"])
def test_what_a_batch_does_not_answer_goes_into_another(out, end, service):
    if (service, end) == ("anthropic", "wrong"):
        return  # it takes all batches
    with FakeLLMServer(str.upper) as server:
        server.batches.services, server.batches.ends = {service}, deque([end])
        server.batches.faults = {
            "upload": deque(["429", "lost"]),
            "create": deque(
                ["429", "500", *["lost"] * (end in ("expired", "wrong"))]
            ),  # else counts are wrong
            "look": deque(["500", "429", "lost"]),
            "list": deque(["", "500", "429"]),
            "download": deque(["500", "cut", "lost"]),
        }
        asked = rows_of(6, on_error="reject").prompt(
            "{i} a", model(server, sampling={"max_tokens": 9}), via="batch"
        )
        asked.write_parquet(out)
    expected = [f"{i} A" for i in range(6)][end == "wrong" :]
    assert answers(out)["answer"] == expected and max(sent(server).values()) == 1
    batches = {"expired": [6, 3], "missing": [6, 1], "double": [6], "wrong": [6, 5]}[end]
    assert [len(batch.requests) for batch in server.batches.all] == batches


def test_parts_are_of_one_model_and_within_the_limits(out, monkeypatch):
    monkeypatch.setattr(OpenAIBatches, "most_lines", 4)
    monkeypatch.setattr(OpenAIBatches, "most_bytes", 3000)
    texts = [f"{i} {'x' * (2000 if i < 2 else 4000 if i == 2 else 1)}" for i in range(13)]
    with FakeLLMServer(lambda prompt: prompt[:2], key="sk-1") as server:
        monkeypatch.setenv("KEY", "sk-1")
        rows = hr.from_items(
            [{"i": i, "text": text, "who": "m" if i % 2 else "n"} for i, text in enumerate(texts)]
        )
        keyed = hr.llm.Endpoint(server.url, "m", api_key_env="KEY")
        asked = rows.prompt("{text}", keyed.with_options(overrides={"model": "who"}), via="batch")
        asked.with_options(engine="inline", progress=False, on_error="reject").write_parquet(out)
        for batch in server.batches.all:
            assert len(batch.requests) <= 4 and len({each["body"]["model"] for each in batch.requests}) == 1
    assert answers(out)["i"] == [i for i in range(13) if i != 2]
    assert hr.read_rejected(out).to_arrow()["_error"].to_pylist()[0].startswith("it has 4,0")
    assert len({batch.metadata["headrace"] for batch in server.batches.all}) == len(server.batches.all) == 4
    assert len(server.batches.files) == len(server.batches.deleted) == 4


def test_where_too_much_waits_a_batch_comes_later(out, monkeypatch):
    monkeypatch.setattr(OpenAIBatches, "most_lines", 2)
    with FakeLLMServer(str.upper) as server:
        server.batches.ends, server.batches.looks = deque(["completed", "full"]), 3
        rows_of(6).prompt("{i} a", model(server), via="batch").write_parquet(out)
    assert answers(out)["answer"] == [f"{i} A" for i in range(6)] and len(server.batches.all) == 4


def test_anothers_batch_of_the_same_size_is_not_taken_for_ours(out):
    with FakeLLMServer(str.upper) as server:
        server.batches.services = {"anthropic"}
        chat = {"model": "c", "max_tokens": 9, "messages": [{"role": "user", "content": "a"}]}
        server.batches._begin([{"custom_id": name, "params": chat} for name in ("theirs", "theirs too")])
        server.batches._looked_at(server.batches.all[0])
        server.batches.faults = {"create": deque(["lost"])}
        brief = model(server, sampling={"max_tokens": 9})
        rows_of(2).prompt("{i} a", brief, via="batch").write_parquet(out)
    assert len(server.batches.all) == 2 and answers(out)["answer"] == ["0 A", "1 A"]


def test_batches_are_not_looked_for_at_another_service(out, monkeypatch):
    with FakeLLMServer(str.upper) as server, FakeLLMServer(str.upper) as other:
        asked = rows_of(5).prompt("{i} a", model(server), via="batch")
        with stopped_while_batches_are_at_work(server, monkeypatch):
            asked.write_parquet(out)
        with pytest.raises(PlanChanged, match=f"at the batch service of {server.url}"):
            rows_of(5).prompt("{i} a", model(other), via="batch").write_parquet(out)
        asked.write_parquet(out)
    assert len(server.batches.all) == 1 and not other.batches.all


def test_a_service_that_repeats_the_key_has_it_written_nowhere(monkeypatch):
    monkeypatch.setenv("KEY", "sk-secret")
    with FakeLLMServer(key="sk-secret") as server:
        server.batches._begin([])
        server.batches.all[0].metadata = {"headrace": "by sk-secret"}

        async def listed():
            client = Client(hr.llm.Endpoint(server.url, "x", api_key_env="KEY"))
            await client.open()
            try:
                return await client.call("GET", "/batches")
            finally:
                await client.close()

        said = asyncio.run(listed())
    assert b"by \xe2\x80\xa6" in said and b"sk-secret" not in said


@pytest.mark.parametrize("end", ["cancelled", "failed"])
def test_who_stops_a_batch_is_asked_and_it_goes_on(out, end):
    with FakeLLMServer(str.upper) as server:
        server.batches.ends = deque([end])
        asked = rows_of(6).prompt("{i} a", model(server), via="batch")
        with pytest.raises(EndpointRefused, match=r"was cancelled|did not take"):
            asked.write_parquet(out)
        asked.write_parquet(out)
    assert answers(out)["answer"] == [f"{i} A" for i in range(6)]
    assert set(sent(server).values()) == {1}


def test_a_batch_that_the_service_forgot_is_not_sent_again_by_itself(out):
    with FakeLLMServer(str.upper) as server:
        asked = rows_of(3).prompt("{i} a", model(server), via="batch")
        server.batches.faults = {"create": deque([lambda: server.batches.all.pop()])}
        for _ in range(2):
            with pytest.raises(EndpointRefused, match=r"does not know the batch batch-0 any more") as refused:
                asked.write_parquet(out)
        assert not server.batches.all
        (mark,) = re.findall(r"remove (\S+-gone)", str(refused.value))
        os.unlink(mark)
        asked.write_parquet(out)
    assert answers(out)["answer"] == ["0 A", "1 A", "2 A"]


def test_lines_that_are_no_answer_are_asked_again_and_then_rejected(out):
    tries = Counter()

    def answer(prompt):
        tries[prompt] += 1
        return (
            {"choices": []} if prompt == "0 a" or (prompt == "1 a" and tries[prompt] < 3) else prompt.upper()
        )

    with FakeLLMServer(answer) as server:
        asked = rows_of(4, on_error="reject").prompt("{i} a", model(server), via="batch")
        assert asked.write_parquet(out).rejected == 1
    assert answers(out)["answer"] == ["1 A", "2 A", "3 A"] and tries == {
        "0 a": 3,
        "1 a": 3,
        "2 a": 1,
        "3 a": 1,
    }


def test_a_model_that_is_not_there_ends_the_run_and_another_answer_is_kept(out):
    with FakeLLMServer(str.upper, model="other") as server:
        asked = rows_of(3).prompt("{i}", model(server), via="batch")
        with pytest.raises(EndpointRefused, match="The model `m` does not exist"):
            asked.write_parquet(out)
        server._model = "m"
        asked.write_parquet(out)
    assert answers(out)["answer"] == ["0", "1", "2"]


def test_lines_are_judged_as_responses_are(out):
    """One says that the credit is used up, which ends the run; by then, an overloaded server was asked again."""
    tries = Counter()
    empty = {"error": {"message": "no credit", "code": "insufficient_quota", "type": "billing_error"}}
    busy = {"error": {"message": "too busy", "type": "overloaded_error"}}

    def answer(prompt):
        tries[prompt] += 1
        if prompt == "0 a":
            return (529, busy, {}) if tries[prompt] < 3 else "yes"
        return (429, empty, {}) if prompt == "1 a" and tries["0 a"] < 4 else prompt.upper()

    with FakeLLMServer(answer) as server:
        asked = rows_of(3).prompt("{i} a", model(server), via="batch")
        with pytest.raises(EndpointRefused, match="its quota is used up"):
            asked.write_parquet(out)
        assert tries["1 a"] == 1
        tries["0 a"] = 3
        asked.write_parquet(out)
    assert answers(out)["answer"] == ["yes", "1 A", "2 A"] and tries["2 a"] == 1


# ------------------------------------------------------------ money


def test_a_cap_divides_the_work_and_is_never_exceeded(out):
    prices = {"input": 1_000_000, "output": 1_000_000, "batch": 0.5}  # a token costs 1, and half by a batch
    with FakeLLMServer(lambda prompt: "a b") as server:

        def ask(cap):
            capped = model(server, prices=prices, sampling={"max_tokens": 4}, budget=hr.llm.Budget(run=cap))
            return rows_of(20).prompt("{i}", capped, via="batch").write_parquet(out)

        with pytest.raises(SpendingCapReached, match=r"20 requests are left"):
            ask(10)
        assert not server.batches.all
        with pytest.raises(SpendingCapReached, match=r"requests are left"):
            ask(60)  # a request may cost about 43, and costs 1.5
        some = sum(sent(server).values())
        assert 0 < some < 20
        ask(300)
    assert answers(out)["answer"] == ["a b"] * 20 and set(sent(server).values()) == {1}
    assert len(server.batches.all) > some // 2
    paid = Follower(out).poll().data()["language_model"]["paid"]
    assert (paid["answers"], paid["cost"]) == (20, 30.0)


def test_a_service_that_does_not_count_is_charged_with_the_most(out):
    prices = {"input": 0.0, "output": 2_000_000}  # a token of an answer costs 1
    uncounted = {"choices": [{"index": 0, "message": {"content": "a"}, "finish_reason": "stop"}]}
    with FakeLLMServer(lambda prompt: uncounted) as server:
        capped = model(server, prices=prices, sampling={"max_tokens": 4}, budget=hr.llm.Budget(run=10))
        with pytest.raises(SpendingCapReached, match="3 requests are left"):
            rows_of(5).prompt("{i}", capped, via="batch").write_parquet(out)
        assert sum(sent(server).values()) == 2  # each may have cost 4


def test_a_cap_of_a_run_holds_for_requests_and_batches_together(out):
    """Rows are looked at for batches, and the prompt before asks its requests then."""
    budget = hr.llm.Budget(run=190)
    with FakeLLMServer(lambda prompt: "a b c d") as server:

        def capped(written):
            prices = {"input": 1_000_000, "output": written * 1_000_000}
            return model(server, prices=prices, sampling={"max_tokens": 4}, budget=budget)

        first = rows_of(20).prompt("{i}", capped(1), output="first")
        with pytest.raises(SpendingCapReached):
            first.prompt("{i}!", capped(10), via="batch").write_parquet(out)
        billed = 5 * len(server.requests) + 20.5 * sum(sent(server).values())
        assert len(server.requests) == 20 and billed <= 190


def test_days_and_outputs_count_batches_at_what_they_cost(out, tmp_path):
    prices = {"input": 1_000_000, "output": 1_000_000}
    with FakeLLMServer(lambda prompt: "a b") as server:
        for budget in (hr.llm.Budget(output=62, day=70), hr.llm.Budget(output=300, day=300)):
            capped = model(server, prices=prices, sampling={"max_tokens": 4}, budget=budget)
            asked = rows_of(20).prompt("{i}", capped, via="batch")
            if budget.caps["output"].cost == 62:
                with pytest.raises(SpendingCapReached, match="requests are left"):
                    asked.write_parquet(out)
            else:
                asked.write_parquet(out)
        capped = capped.with_options(budget=hr.llm.Budget(day=30 + 43))
        with pytest.raises(SpendingCapReached):  # 30 were spent today
            rows_of(20).prompt("{i}!", capped, via="batch").write_parquet(tmp_path / "more")
    assert set(sent(server).values()) == {1} and answers(out)["answer"] == ["a b"] * 20


# ------------------------------------------------------------ what cannot work


def test_what_cannot_work_is_refused_before_anything_is_sent(out, tmp_path):
    with FakeLLMServer() as server:
        asked = rows_of(3).prompt("{i}", model(server), via="batch")
        for read in (asked.take_all, asked.show, lambda: asked.limit(1).write_parquet(out)):
            with pytest.raises(ArgumentError, match="via='batch'"):
                read()
        with pytest.raises(ArgumentError, match="other machines do not see the answers"):
            asked.with_options(engine="local", fleet=True).write_parquet(tmp_path / "fleet")
        elsewhere = hr.llm.Endpoint(server.url.replace("/v1", "/v2"), "m")
        with pytest.raises(EndpointRefused, match=r"has no batch service.*Leave via='batch' out"):
            rows_of(3).prompt("{i}", elsewhere, via="batch").write_parquet(tmp_path / "none")
        assert not server.requests and not server.batches.all


def test_rows_that_are_others_each_time_are_not_asked_at_the_full_price(out):
    counter = itertools.count()
    with FakeLLMServer(str.upper) as server:
        asked = rows_of(3).map(lambda row: {"i": next(counter)}).prompt("{i}", model(server), via="batch")
        with pytest.raises(EngineError, match="make the same rows each time"):
            asked.write_parquet(out)
    assert not server.requests and len(server.batches.all) == 1


# ------------------------------------------------------------ death

JOB = """
import sys
from headrace.annex.llm import ahead as work, batch_services as calls
work.FIRST_LOOK = calls.FIRST_WAIT = calls.UNSURE_WAIT = 0.01
calls.SETTLED = 0.05
from headrace.annex.llm.batch_services import OpenAIBatches
from headrace.annex.llm.batch_services import AnthropicBatches
OpenAIBatches.most_lines = AnthropicBatches.most_lines = 8
import headrace as hr
from headrace.core import failpoints
if sys.argv[3]:
    failpoints.activate({sys.argv[3]: "kill@" + sys.argv[4]})
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
rows = hr.from_items([{"i": i, "text": f"{i} bad" if i % 5 == 0 else f"{i}"} for i in range(20)])
endpoint = hr.llm.Endpoint(sys.argv[1], "m", prices={"input": 1.0, "output": 1.0})
endpoint = endpoint.with_options(sampling={"max_tokens": 20})
asked = rows.prompt("{text}", endpoint, schema=SCHEMA, via=sys.argv[5])
asked.with_options(engine="inline", progress=False).write_parquet(sys.argv[2])
"""
POINTS = [
    "batch.chosen", "batch.sending", "batch.uploaded", "batch.creating", "batch.created", "batch.open",
    "batch.fetched", "batch.settled", "attempt.started", "stage.closed", "journal.append", "publish.rename",
]  # fmt: skip


AGAIN = ["batch.sending", "batch.created", "batch.settled"]


@pytest.mark.local
@pytest.mark.parametrize(
    ("points", "passage", "via", "service"),
    [
        (POINTS, 1, "batch", "openai"),
        (AGAIN, 2, "batch", "openai"),
        ([*AGAIN, "batch.open"], 2, "batch", "anthropic"),
        (["batch.chosen", "batch.created", "batch.settled"], 1, "requests", "openai"),
    ],
    ids=["first", "second", "anthropic", "goes-on-by-requests"],
)
def test_killed_at_any_point_nothing_is_paid_twice(tmp_path, points, passage, via, service):
    imports = "headrace.annex.llm.prompter headrace.annex.llm.ahead aiohttp jsonschema"
    with FakeLLMServer(said) as server:
        server.batches.looks, server.batches.services = 2, {service}
        for point in points:
            out, before = tmp_path / point, len(server.batches.all)
            command = [sys.executable, "-c", JOB, server.url, str(out)]
            killed = Forked([*command, point, str(passage), "batch"], also=imports).wait()
            assert killed == -signal.SIGKILL, point
            assert Forked([*command, "", "", via], also=imports).wait() == 0, point
            found = answers(out)
            assert found["i"] == list(range(20)), point
            bad = (
                service == "openai"
            )  # Anthropic's form has the schema in the last message, which is no bad one
            assert [each["n"] for each in found["answer"]] == [
                7 if bad and not i % 5 else 1 for i in range(20)
            ]
            paid = sum(len(batch.answers) for batch in server.batches.all[before:])
            told = Follower(out).poll().data()["language_model"]["paid"]["answers"]
            # What was sent is waited for, and the rest is asked one by one.
            assert paid + len(server.requests) == told == 20 + 4 * bad, (point, paid, told)
            assert not server.requests or via == "requests"
            server.requests.clear()


MANY = """
import sys, psutil, threading
from headrace.annex.llm import ahead as work
work.FIRST_LOOK = 0.01
import headrace as hr
rows = hr.range(int(sys.argv[3])).with_options(engine="inline", progress=False)
greedy = hr.llm.Endpoint(sys.argv[1], "m").with_options(sampling={"temperature": 0})
most, process = [0], psutil.Process()
def watch():
    while not ended.wait(0.05):
        most[0] = max(most[0], process.memory_info().rss)
ended = threading.Event()
threading.Thread(target=watch, daemon=True).start()
rows.prompt("{id} " + "many words " * 30, greedy, via="batch").write_parquet(sys.argv[2])
ended.set()
print(most[0])
"""


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("many", [100_000])
def test_memory_does_not_grow_with_the_prompts(tmp_path, many):
    peaks = []
    for count in (many // 5, many):
        with FakeLLMServer(lambda prompt: prompt[:20]) as server:
            command = [sys.executable, "-c", MANY, server.url, str(tmp_path / str(count)), str(count)]
            peaks.append(int(subprocess.run(command, check=True, capture_output=True).stdout))
            assert sum(len(batch.answers) for batch in server.batches.all) == count
    assert peaks[1] - peaks[0] < 48 << 20, peaks


# ------------------------------------------------------------ the cheaper way


def test_auto_takes_batches_where_they_are_cheaper_and_soon_enough(tmp_path):
    with FakeLLMServer(str.upper) as server:
        cheap, dear = ({"input": 1.0, "batch": share} for share in (0.4, 1.5))
        cases: dict[str, tuple[object, bool]] = {
            "asked by its batch service, if it has one: 0.4 of the price": (
                model(server, prices=cheap),
                True,
            ),
            "0.5 of the price, within 24 hours": (model(server, deadline=100_000), True),
            "by requests: batches take up to 24 hours, and the deadline is in 2": (
                model(server, deadline=7200),
                False,
            ),
            "by requests: a batch costs 1.5 times as much": (model(server, prices=dear), False),
        }
        for number, (words, (endpoint, batches)) in enumerate(cases.items()):
            asked = rows_of(2).prompt("{i} a", endpoint, via="auto")
            assert words in str(asked.explain())
            before = len(server.batches.all)
            asked.write_parquet(tmp_path / f"{number}")
            assert answers(tmp_path / f"{number}")["answer"] == ["0 A", "1 A"]
            assert len(server.batches.all) - before == batches and bool(server.requests) != batches
            server.requests.clear()
        before = len(server.batches.all)
        few = rows_of(9).prompt("{i} a", model(server), via="auto")
        assert few.take(1)[0]["answer"] == "0 A"
        few.limit(2).write_parquet(tmp_path / "few")  # rows would be asked that nobody needs
        few.with_options(engine="local", fleet=True).write_parquet(tmp_path / "fleet")
        assert len(server.batches.all) == before and answers(tmp_path / "few")["answer"] == ["0 A", "1 A"]


def cost_in_record(out):
    """Return what the answers to the rows of an output have cost, as its record says."""
    return Follower(out).poll().facts.ledger.answered.cost


def test_what_an_answer_has_cost_is_by_who_was_asked(tmp_path):
    prices = {"input": 1e6, "output": 0.0, "batch": 0.25}
    with FakeLLMServer(str.upper, context=2) as server, FakeLLMServer(str.upper) as large:
        for via, cost in {"requests": 2.0, "batch": 0.5, "auto": 0.5}.items():
            rows_of(3).prompt("{i} a", model(server, prices=prices), via=via).write_parquet(tmp_path / via)
            assert cost_in_record(tmp_path / via) == 3 * cost
            rows = hr.from_items([{"text": f"{i} a"} for i in range(3)])
            vectors = rows.embed("text", model(server, prices=prices), via=via)
            vectors.with_options(engine="inline", progress=False).write_parquet(tmp_path / f"{via}-v")
            assert cost_in_record(tmp_path / f"{via}-v") == 3 * cost
        dear = hr.llm.Endpoint(large.url, "large", prices={"input": 1e7, "output": 0.0})
        asked = rows_of(3).prompt("{i} a b", model(server, prices=prices, fallback={"too_long": dear}))
        asked.write_parquet(tmp_path / "other")
        assert cost_in_record(tmp_path / "other") == 3 * 30.0


@contextlib.contextmanager
def stopped_while_batches_are_at_work(server, monkeypatch):
    """Have the driver stop once it has looked at a batch some times, which ends only after that."""

    class Stopped(session._Work):
        def _tick(self):
            super()._tick()
            if server.batches.calls["look"] > 3:
                raise KeyboardInterrupt

    server.batches.looks = 1_000_000
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(session, "_Work", Stopped)
        yield
    server.batches.all[0].looks = 1


def test_a_driver_that_was_away_finds_what_was_answered_meanwhile(out, monkeypatch):
    with FakeLLMServer(str.upper) as server:
        asked = rows_of(5).prompt("{i} a", model(server), via="batch")
        with stopped_while_batches_are_at_work(server, monkeypatch):
            asked.write_parquet(out)
        told = Follower(out).poll()
        assert told.facts.status == "interrupted"
        words = "prompt(m): 0 of 5 requests are answered; at work: batch-0"
        assert dict(told.lines())["batches"] == words and told.data()["batches"][0]["answered"] == 0
        asked.write_parquet(out)
        assert len(server.batches.all) == 1 and answers(out)["answer"] == [f"{i} A" for i in range(5)]
        assert "batches" not in dict(Follower(out).poll().lines())


def test_another_program_does_not_drop_batches_that_are_at_work(out, monkeypatch):
    with FakeLLMServer(str.upper) as server:
        asked = rows_of(5).prompt("{i} a", model(server), via="batch")
        with stopped_while_batches_are_at_work(server, monkeypatch):
            asked.map(lambda row: {**row, "more": 1}).write_parquet(out)
        other = asked.map(lambda row: {**row, "more": 2})
        with pytest.raises(PlanChanged):
            other.write_parquet(out)
        with pytest.raises(PlanChanged):
            asked.write_parquet(out)
        other.write_parquet(out, on_change="continue")
    assert len(server.batches.all) == 1 and answers(out)["more"] == [2] * 5


# ------------------------------------------------------------ Anthropic's


def test_the_same_by_a_service_of_anthropics_form(tmp_path):
    texts = ["one", "bad", None, "one", "w " * 60, "two"]
    found = {}
    for form in ("openai", "anthropic"):
        with FakeLLMServer(str.upper, context=50) as server:
            server.batches.services = {form}
            server.batches.ends = deque(["expired"])
            server.batches.faults = {"create": deque(["lost"]), "download": deque(["cut"])}
            rows = hr.from_items([{"i": i, "text": text} for i, text in enumerate(texts)])
            brief = model(server, system="Be brief.", sampling={"temperature": 0, "max_tokens": 20})
            asked = rows.prompt("{text}", brief, via="batch")
            out = tmp_path / form
            asked.with_options(engine="inline", on_error="reject", progress=False).write_parquet(out)
            assert not server.requests
            for batch in server.batches.all:
                assert all(("params" in each) == (form == "anthropic") for each in batch.requests)
        rejected = hr.read_rejected(out).to_arrow()
        found[form] = answers(out), rejected["_error_type"].to_pylist()
    (openai, failed), (anthropic, others) = found.values()
    assert failed == others == ["BadRow", "ContextTooLong"]
    assert openai["answer"] == ["ONE", "BAD", "ONE", "TWO"]
    for name in ("i", "answer", "answer_finish_reason", "answer_completion_tokens"):
        assert openai[name] == anthropic[name]


def test_what_anthropics_form_has_its_own_words_for():
    chat = {
        "model": "c",
        "max_completion_tokens": 9,
        "messages": [
            {
                "role": "user",
                "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}],
            },
        ],
        "response_format": {"json_schema": {"schema": {"type": "object"}}},
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
    }
    parts = [{"role": "system", "content": [{"type": "text", "text": "Be brief."}]}]
    assert params_of({**chat, "messages": parts})["system"] == "Be brief."
    params = params_of(chat)
    image, told = params["messages"]
    assert image["content"][0]["source"] == {"type": "base64", "media_type": "image/png", "data": "AA"}
    assert '{"type": "object"}' in told["content"] and params["max_tokens"] == 9
    assert params["tools"] == [{"name": "f", "input_schema": {"type": "object"}}]
    blocks = [
        {"type": "thinking", "thinking": "hm"},
        {"type": "tool_use", "id": "1", "name": "f", "input": {"a": 1}},
    ]
    usage = {"input_tokens": 3, "cache_read_input_tokens": 4, "output_tokens": 5}
    data = chat_of({"content": blocks, "stop_reason": "tool_use", "usage": usage})
    (choice,) = data["choices"]
    assert choice["finish_reason"] == "tool_calls" and choice["message"]["reasoning_content"] == "hm"
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a":1}'}
    assert data["usage"]["prompt_tokens"] == 7
    for wrong in ({**usage, "input_tokens": "7"}, {**usage, "output_tokens": [1]}, {}, "none"):
        assert "usage" not in chat_of({"content": blocks, "stop_reason": "end_turn", "usage": wrong})


def test_what_anthropics_lines_say():
    def status(kind, error=None):
        result = {"type": kind, "error": {"type": "error", "error": error}}
        line = msgspec.json.encode({"custom_id": "a", "result": result})
        return AnthropicBatches.outcome(line).status

    assert [status("expired"), status("canceled"), status("odd")] == [0, 0, 0]
    assert status("errored", {"type": "overloaded_error", "message": "busy"}) == 529
    assert status("errored", {"type": "rate_limit_error"}) == 429
    for error in ({"type": "invalid_request_error"}, {"type": "billing_error"}, "odd", None):
        assert status("errored", error) == 400


def test_anthropics_service_without_max_tokens_is_refused(out):
    with FakeLLMServer() as server:
        server.batches.services = {"anthropic"}
        with pytest.raises(EndpointRefused, match="needs max_tokens"):
            rows_of(2).prompt("{i}", model(server), via="batch").write_parquet(out)
        assert not server.batches.all
