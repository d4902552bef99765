"""Answers that run away are counted, and stopped where that is asked for; ordinary runs are as they were."""

from __future__ import annotations

import pytest

import headrace as hr
from headrace.annex.llm.outliers import ROWS, Guard
from headrace.annex.report.follow import Follower
from headrace.errors import ArgumentError, SpendingCapReached
from headrace.testing import FakeLLMServer


def answered(prompt: str) -> str:
    """Forty words at most, but to Hindi a thousand."""
    return "word " * (1000 if "नमस्ते" in prompt else 20 + len(prompt) % 20)


def asked(server, rows, **settings):
    model = hr.llm.Endpoint(server.url, "m", max_in_flight=4)
    model = model.with_options(sampling={"max_tokens": 4000}, **settings)
    return rows.prompt("Translate: {text}", model).with_options(engine="inline", progress=False)


def texts(count, every):
    return [{"text": f"{'नमस्ते' if i >= 60 and i % every == 0 else 'hello'} {i}"} for i in range(count)]


def test_they_are_counted_and_nothing_else_changes(tmp_path):
    rows = hr.from_items(texts(120, 10))
    with FakeLLMServer(answered) as server:
        asked(server, rows).write_parquet(tmp_path / "out")
        table = hr.read_parquet(tmp_path / "out").to_arrow()
        assert all(body["max_tokens"] == 4000 for body in server.requests)
    said = [f"Translate: {row['text']}" for row in texts(120, 10)]
    assert table["answer"].to_pylist() == [answered(each) for each in said]
    assert Follower(tmp_path / "out").poll().data()["language_model"]["runaway"] == 6


def test_they_are_stopped_where_that_is_asked_for_and_their_rows_set_aside(tmp_path):
    rows = hr.from_items(texts(120, 20))
    with FakeLLMServer(answered) as server:
        result = (
            asked(server, rows, runaway=5).with_options(on_error="reject").write_parquet(tmp_path / "out")
        )
        assert (result.rows, result.rejected) == (117, 3)
        assert {body["max_tokens"] for body in server.requests} == {4000, 256}
        words = [row["_error"] for row in hr.read_rejected(tmp_path / "out").take_all()]
    assert len(words) == 3 and all(
        "the answer was stopped after 256 tokens, 5 times" in each for each in words
    )
    assert all("Most letters of the row are Devanagari" in each for each in words)
    assert Follower(tmp_path / "out").poll().data()["language_model"]["runaway"] == 3


def test_a_run_of_which_many_are_stopped_ends_and_goes_on_with_more(tmp_path):
    rows = hr.from_items(texts(400, 3))
    with FakeLLMServer(answered) as server:
        short = asked(server, rows, runaway=5).with_options(on_error="reject")
        with pytest.raises(SpendingCapReached, match=r"\d\d% of the last 200 answers .* \(runaway=5\)"):
            short.write_parquet(tmp_path / "out")
        sent = len(server.requests)
        assert sent < 300
        assert (
            asked(server, rows, runaway=100)
            .with_options(on_error="reject")
            .write_parquet(tmp_path / "out")
            .rows
            == 400
        )
        assert len(server.requests) < 400 + 60  # those that were stopped, and those under way


def test_batches_cannot_be_stopped():
    model = hr.llm.Endpoint("http://localhost:1/v1", "m").with_options(runaway=5)
    for via in ("batch", "auto"):
        with pytest.raises(ArgumentError, match="runaway= learns from answers as they come"):
            hr.from_items([{"text": "a"}]).prompt("{text}", model, via=via)


def test_a_run_whose_rows_cost_far_more_than_at_first_ends():
    guard = Guard(10.0, "prompt(m)")
    for i in range(ROWS):
        guard.add(20 + i % 10, spent=1.0)
    for i in range(ROWS):  # prompts may have grown, and not answers
        guard.add(20 + i % 10, spent=9.9)
        guard.check()
    for _ in range(ROWS // 2):
        guard.add(20, spent=11.0)
    with pytest.raises(SpendingCapReached, match="have cost 10 times as much as its first 200"):
        guard.check()
    counts = Guard(None)
    for _ in range(3 * ROWS):
        counts.add(5000, spent=counts._lengths.late or 0.0)
        counts.check()
