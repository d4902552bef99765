"""``embed`` against a real server, and by a model of this machine."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import headrace as hr
from headrace.annex.report.follow import Follower
from headrace.errors import ArgumentError, EndpointRefused, SpendingCapReached, UnknownColumn
from headrace.testing import FakeLLMServer


def inline(data, **options):
    return data.with_options(engine="inline", progress=False, **options)


def test_vectors_come_in_order_and_equal_texts_are_sent_once():
    rows = hr.from_items([{"id": i, "text": "e" * (i % 7 + 1)} for i in range(100)])
    with FakeLLMServer(latency=lambda random: random.random() / 50, too_many=0.1, resets=0.1) as server:
        model = hr.llm.Endpoint(server.url, "m", max_retries=20)
        table = inline(rows.embed("text", model, output="v", batch_size=14, dimensions=3)).to_arrow()
    assert table.column_names == ["id", "text", "v"]
    assert table.schema.field("v").type == pa.list_(pa.float32(), 3)
    expected = [[i % 7 + 1.0, i % 7 + 1.0, 1.0] for i in range(100)]
    assert table["v"].to_pylist() == expected
    assert {len(each["input"]) for each in server.requests} <= {7, 2}
    assert {each["dimensions"] for each in server.requests} == {3}


def test_texts_at_fault_are_found_by_dividing(tmp_path):
    rows = hr.from_items(
        [{"id": i, "text": None if i == 2 else "x" * (90 if i in (5, 40) else 3)} for i in range(64)]
    )
    with FakeLLMServer(context=20) as server:
        made = inline(rows.embed("text", hr.llm.Endpoint(server.url, "m")), on_error="reject")
        result = made.write_parquet(tmp_path / "out")
    assert (result.rows, result.rejected) == (61, 3)
    assert len(server.requests) <= 25
    rejected = hr.read_rejected(tmp_path / "out").to_arrow()
    assert sorted(rejected["id"].to_pylist()) == [2, 5, 40]
    vectors = np.stack(hr.read_parquet(tmp_path / "out").to_arrow()["embedding"].to_pylist())
    assert vectors.tolist() == [[3.0, 0.0, 1.0]] * 61


class Broken(FakeLLMServer):
    """Has another value in the vectors of the text "bad", and leaves vectors out of its first two responses."""

    def __init__(self, value=0.0, short=0):
        super().__init__()
        self.value, self.short = value, short

    def _embeddings(self, body):
        made = super()._embeddings(body)
        for each, text in zip(made["data"], body["input"], strict=True):
            if text == "bad":
                each["embedding"][1] = self.value
        return {**made, "data": made["data"][:1]} if len(self.requests) <= self.short else made


@pytest.mark.parametrize("value", [None, float("nan"), 1e39])
def test_a_vector_that_holds_no_number_is_the_fault_of_its_row(value):
    rows = hr.from_items([{"text": text} for text in ("good", "bad", "fine")])
    with Broken(value) as server:
        made = inline(rows.embed("text", hr.llm.Endpoint(server.url, "m")), on_error="reject")
        with pytest.warns(UserWarning, match="values that are not numbers"):
            assert [row["text"] for row in made.take_all()] == ["good", "fine"]


def test_vectors_that_are_missing_are_asked_for_again():
    rows = hr.from_items([{"text": text} for text in ("a", "bb")])
    with Broken(short=2) as server:
        made = inline(rows.embed("text", hr.llm.Endpoint(server.url, "m"))).take_all()
        assert len(server.requests) == 3
    assert [row["embedding"][0] for row in made] == [1.0, 2.0]


def test_wrong_models_and_arguments():
    rows = hr.from_items([{"text": "a"}])
    model = hr.llm.Endpoint("http://localhost:1/v1", "m")
    with pytest.raises(UnknownColumn, match=r"'txt'.*Did you mean 'text'"):
        inline(rows.embed("txt", model)).take_all()
    for words, call in {
        "the name of a column": lambda: rows.embed("", model),
        "batch_size=0": lambda: rows.embed("text", model, batch_size=0),
        "is for endpoints": lambda: rows.embed("text", "folder", dimensions=3),
        "is not a folder here": lambda: rows.embed("text", "all-MiniLM-L6-v2"),
    }.items():
        with pytest.raises(ArgumentError, match=words):
            call()
    with FakeLLMServer(key="k") as server, pytest.raises(EndpointRefused, match="401"):
        inline(rows.embed("text", hr.llm.Endpoint(server.url, "m"))).take_all()


PRICED = {"prices": {"input": 1_000_000.0}}  # a token of input costs 1: a word here


def test_what_vectors_cost_is_in_the_accounts_and_in_the_record(tmp_path):
    rows = hr.from_items([{"text": f"a b {i}"} for i in range(40)])
    with FakeLLMServer() as server:
        model = hr.llm.Endpoint(server.url, "m", **PRICED)
        inline(rows.embed("text", model, batch_size=8)).write_parquet(tmp_path / "out")
        told = Follower(tmp_path / "out").poll().data()["language_model"]
        assert (told["rows"], told["prompt_tokens"], told["completion_tokens"]) == (40, 120, 0)
        paid = told["paid"]
        assert (paid["answers"], paid["prompt_tokens"], paid["cost"]) == (5, 120, 120.0)
        (part,) = paid["parts"]
        assert part["what"] == "m" and part["cost"] == 120.0


@pytest.mark.parametrize("scope", ["run", "run_tokens", "output", "day"])
def test_a_cap_holds_for_vectors_and_a_higher_one_goes_on(tmp_path, monkeypatch, scope):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    rows = hr.from_items([{"text": f"a b {i}"} for i in range(60)])
    with FakeLLMServer(too_many=0.2) as server:

        def ask(cap):
            model = hr.llm.Endpoint(server.url, "m", max_retries=20, max_in_flight=2, **PRICED)
            model = model.with_options(budget=hr.llm.Budget(**{scope: cap}))
            made = inline(rows.embed("text", model, batch_size=2), shard_rows=6)
            return made.write_parquet(tmp_path / "out")

        with pytest.raises(SpendingCapReached, match=r"embed\(m\) has reached Budget"):
            ask(150)
        sent = [sum(len(text.split()) for text in body["input"]) for body in server.requests]
        assert 30 < sum(sent) <= 150
        ask(100_000)
    assert len(hr.read_parquet(tmp_path / "out").to_arrow()) == 60


def test_prompts_and_vectors_share_the_cap_of_a_run_without_an_output():
    rows = hr.from_items([{"text": f"a b {i}"} for i in range(20)])
    with FakeLLMServer(lambda prompt: "c d") as server:
        prices = {"input": 1_000_000.0, "output": 1_000_000.0}
        model = hr.llm.Endpoint(server.url, "m", prices=prices)
        budget = hr.llm.Budget(run=250)
        asked = rows.prompt("{text}", model.with_options(budget=budget, sampling={"max_tokens": 2}))
        with pytest.raises(SpendingCapReached):
            inline(asked.embed("text", model.with_options(budget=budget))).take_all()
        assert sum("input" in body for body in server.requests) < 20


def test_vectors_by_batches_are_within_the_cap_at_half_the_price(tmp_path):
    rows = hr.from_items([{"text": f"a b {i}"} for i in range(10)])
    with FakeLLMServer() as server:

        def ask(cap):
            model = hr.llm.Endpoint(server.url, "m", **PRICED).with_options(budget=hr.llm.Budget(run=cap))
            return inline(rows.embed("text", model, via="batch")).write_parquet(tmp_path / "out")

        with pytest.raises(SpendingCapReached, match="10 requests are left"):
            ask(20)
        assert not server.batches.all
        ask(1000)
        paid = Follower(tmp_path / "out").poll().data()["language_model"]["paid"]
        assert (paid["answers"], paid["cost"]) == (10, 15.0) and not server.requests


def test_a_budget_of_vectors_needs_the_price_of_what_goes_in():
    rows = hr.from_items([{"text": "a"}])
    model = hr.llm.Endpoint("http://localhost:1/v1", "m")
    with pytest.raises(ArgumentError, match="is not known"):
        rows.embed("text", model.with_options(budget=hr.llm.Budget(run=1)))
    with pytest.raises(ArgumentError, match="which are for prompt"):
        rows.embed("text", model.with_options(repairs=0))
