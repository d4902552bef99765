"""Second requests for those that are late: the first answer counts, both are paid for and told."""

from __future__ import annotations

import asyncio
import itertools

import pytest

import headrace as hr
from headrace.annex.llm.outliers import Latencies, first_of, has_lost
from headrace.annex.report.follow import Follower
from headrace.testing import FakeLLMServer


def slow_once(number):
    """Return a latency by which one request, of all that share it, takes very long."""
    counter = itertools.count()
    return lambda random: 30.0 if next(counter) == number else 0.003


def test_what_is_late_is_asked_for_twice_and_both_are_paid(tmp_path):
    rows = hr.from_items([{"n": n} for n in range(300)])
    latency = slow_once(298)  # one of the last: before, others have no room to spare
    with FakeLLMServer(latency=latency) as server:
        prices = {"input": 1e6, "output": 1e6}
        model = hr.llm.Endpoint(server.url, "m", max_in_flight=8, prices=prices, hedge=True)
        options = {"engine": "inline", "progress": False}
        rows.prompt("{n}", model).with_options(**options).write_parquet(tmp_path / "out")
        received = len(server.requests)
    assert hr.read_parquet(tmp_path / "out").to_arrow()["answer"].to_pylist() == [str(n) for n in range(300)]
    told = Follower(tmp_path / "out").poll().data()["language_model"]
    twice = told["tried_again"].pop("Hedged")
    assert twice >= 1 and not told["tried_again"]
    assert 300 < received <= 300 + twice
    assert told["rows"] == 300 and told["completion_tokens"] == 300
    paid = told["paid"]
    assert paid["answers"] == paid["completion_tokens"] == 300 + twice and paid["unanswered"] == 0
    assert paid["cost"] == 2 * (300 + twice)


def test_second_requests_do_not_go_beyond_the_cap(tmp_path, monkeypatch):
    """They are left out where no money is left, and the first of them are waited for."""
    monkeypatch.setattr(Latencies, "late", 0.0)  # whatever has room is asked for twice
    rows = hr.from_items([{"n": n} for n in range(9)])
    prompt = "w" * 900  # of which nobody knows that it is one token: 12 requests may be under way
    with FakeLLMServer(lambda prompt: "a", latency=0.3) as server:
        model = hr.llm.Endpoint(
            server.url, "m", max_in_flight=64, prices={"input": 1e6, "output": 1e6}, hedge=True
        )
        asked = rows.prompt(
            prompt + "{n}", model.with_options(sampling={"max_tokens": 1}, budget=hr.llm.Budget(run=12_000))
        )
        asked.with_options(engine="inline", progress=False).write_parquet(tmp_path / "out")
        assert len(server.requests) <= 13  # one was answered before the others were asked
    told = Follower(tmp_path / "out").poll().data()["language_model"]
    assert told["rows"] == 9 and 1 <= told["tried_again"]["Hedged"] <= 4


def test_the_first_answer_counts_and_a_failure_only_where_both_fail():
    lost = []

    async def after(seconds, outcome):
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            lost.append(has_lost())
            raise
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def both(first, second, late=0.0):
        said, _ = await first_of(
            lambda: after(*first), lambda: None if second is None else after(*second), late
        )
        return said

    assert asyncio.run(both((9, "a"), (0.01, "b"))) == "b" and lost == [True]
    assert asyncio.run(both((0.01, "a"), (9, "b"))) == "a" and lost == [True, True]
    assert asyncio.run(both((0.02, "a"), (0.0, ValueError("second")))) == "a"
    assert asyncio.run(both((0.0, "a"), (9, "b"), None)) == "a"
    assert asyncio.run(both((0.0, "a"), None)) == "a"
    with pytest.raises(ValueError, match="first"):
        asyncio.run(both((0.02, ValueError("first")), (0.0, ValueError("second"))))

    async def given_up():
        task = asyncio.ensure_future(both((9, "a"), (9, "b")))
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    lost.clear()
    asyncio.run(given_up())
    assert lost == [False, False]
