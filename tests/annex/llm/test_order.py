"""The order of work: what begins alike is asked together, what is long not last; answers in the order of the rows."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import deque
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.annex.llm.engine_client import EngineStream
from headrace.annex.llm.order import ArrivalOrder, PrefixOrder, made_order
from headrace.errors import ArgumentError
from headrace.testing import FakeLLMServer, SimulatedLLMEngine, SimulatedPrefixCache

SLOTS, WINDOW = 32, 512


class CachingEngine(SimulatedLLMEngine):
    """Looks each prompt up in a cache of beginnings, as it comes."""

    def __init__(self) -> None:
        super().__init__(SLOTS)
        self.cache = SimulatedPrefixCache(blocks=500)

    def add(self, number: int, request: Any) -> None:
        self.cache.look_up(request.split())
        super().add(number, 20 + len(request) % 30)


def mixed(rows: int) -> list[str]:
    """Questions about documents of different lengths, each asked for often, between others that stand alone."""
    drawn = random.Random(3)
    documents = [[f"d{i}w{j}" for j in range(drawn.choice((80, 160, 480)))] for i in range(40)]
    made = []
    for i in range(rows):
        question = [f"q{i}w{j}" for j in range(48)]
        made.append(
            " ".join(["system"] * 16 + (drawn.choice(documents) if drawn.random() < 0.7 else []) + question)
        )
    return made


async def answered(prompts: list[str], order: str) -> tuple[list[int], CachingEngine, int]:
    """Ask for all, at most ``WINDOW`` ahead of the first that is not answered."""
    engine, stream = CachingEngine(), EngineStream(order=made_order(order))
    asked: deque[asyncio.Task[int]] = deque()
    answers, most = [], 0

    async def feed() -> None:
        nonlocal most
        for prompt in prompts:
            asked.append(asyncio.ensure_future(stream.ask(lambda prompt=prompt: prompt, prompt)))
            most = max(most, len(asked))
            while len(asked) >= WINDOW:
                answers.append(await asked.popleft())
        stream.slots.order.input_ends(True)
        while asked:
            answers.append(await asked.popleft())

    feeding = asyncio.ensure_future(feed())
    while not feeding.done():
        for _ in range(4):
            await asyncio.sleep(0)
        if not stream.idle:
            stream.deliver(*stream.turn(engine))
    await feeding
    return answers, engine, most


def test_beginnings_are_found_more_often_and_answers_keep_their_order():
    prompts = mixed(4_000)
    expected = [20 + len(prompt) % 30 for prompt in prompts]
    shares = {}
    for order in ("arrival", "prefix"):
        answers, engine, most = asyncio.run(answered(prompts, order))
        assert answers == expected
        assert most <= WINDOW and engine.worked == sum(expected)
        shares[order] = engine.cache.hits / engine.cache.looked
    assert shares["prefix"] >= 1.3 * shares["arrival"] > 0.1


def test_of_the_last_the_longest_begin_first():
    drawn = random.Random(7)
    lengths = [max(1, round(60 * drawn.lognormvariate(-0.5, 1.0))) for _ in range(10_000)]

    async def share(order: str) -> float:
        engine = SimulatedLLMEngine(256)
        stream = EngineStream(order=made_order(order))
        asks = []
        for place, length in enumerate(lengths):
            asks.append(asyncio.ensure_future(stream.ask(lambda length=length: length, "x" * length)))
            if place == 2_000:  # so many are done before the end is known
                await asyncio.sleep(0)
        stream.slots.order.input_ends(True)
        answers = asyncio.gather(*asks)
        while not answers.done():
            for _ in range(4):
                await asyncio.sleep(0)
            stream.deliver(*stream.turn(engine))
        assert await answers == lengths
        return engine.worked / (engine.steps * 256)

    assert asyncio.run(share("arrival")) < 0.9
    assert asyncio.run(share("longest")) >= 0.97


@pytest.mark.parametrize("of_length", [lambda length: length, lambda length: 3_000 // (length + 3)])
def test_which_prompts_take_long_is_learnt_while_they_run(of_length):
    """The drain, from the last request's begin to the end, is half as long, whichever prompts have long answers."""
    drawn = random.Random(3)
    lengths = [max(1, round(60 * drawn.lognormvariate(-0.5, 1.0))) for _ in range(10_000)]
    texts = [
        f"{i} {'x' * round(of_length(each) * drawn.lognormvariate(0, 0.3))}" for i, each in enumerate(lengths)
    ]

    async def drain(order: str) -> int:
        engine = SimulatedLLMEngine(256)
        stream = EngineStream(order=made_order(order))
        asks = [
            asyncio.ensure_future(stream.ask(lambda length=length: length, text))
            for text, length in zip(texts, lengths, strict=True)
        ]
        answers = asyncio.gather(*asks)
        while not answers.done():
            if engine.steps == 500:  # a fifth is done before the end is known
                stream.slots.order.input_ends(True)
            for _ in range(4):
                await asyncio.sleep(0)
            stream.deliver(*stream.turn(engine))
        assert await answers == lengths
        _, steps = engine.busy_until_last_begin()
        return int(engine.steps - steps)

    assert asyncio.run(drain("longest")) <= asyncio.run(drain("arrival")) / 2


@given(st.lists(st.one_of(st.none(), st.text("ab", max_size=4)), max_size=60), st.integers(0, 60))
def test_everybody_has_a_turn_once(events, ends_at):
    for order in (ArrivalOrder(), ArrivalOrder(longest_last=True), PrefixOrder()):
        waiting: list[tuple[int, str]] = []
        taken = []
        for number, event in enumerate(events):
            if number == ends_at:
                order.input_ends(True)
            if event is not None:
                order.add((number, event), event)
                waiting.append((number, event))
            elif waiting:
                taken.append(order.next())
                waiting.remove(taken[-1])
            assert len(order) == len(waiting)
        order.input_ends(False)
        taken += [order.next() for _ in range(len(order))]
        assert sorted(taken) == [(n, e) for n, e in enumerate(events) if e is not None]


def test_an_endpoint_is_asked_in_the_order_that_is_wanted():
    rows = hr.from_items([{"text": f"{'cba'[i % 3]} {i:02}", "id": i} for i in range(30)])

    def asked(**options: Any) -> tuple[list[str], list[str]]:
        with FakeLLMServer(str.upper, latency=0.005) as server:
            model = hr.llm.Endpoint(server.url, "m", max_in_flight=1)
            data = rows.prompt("{text}", model.with_options(**options)).with_options(
                engine="inline", progress=False
            )
            answers = [row["answer"] for row in data.take_all()]
            return answers, [each["messages"][0]["content"] for each in server.requests]

    answers, requests = asked(order="prefix")
    assert answers == [f"{'CBA'[i % 3]} {i:02}" for i in range(30)]
    assert asked()[1] == [f"{'cba'[i % 3]} {i:02}" for i in range(30)]
    changes = sum(one[0] != other[0] for one, other in itertools.pairwise(requests[1:]))
    assert changes <= 3 and sorted(requests) == sorted(answer.lower() for answer in answers)
    with pytest.raises(ArgumentError, match="it takes 'arrival', 'prefix' or 'longest'"):
        asked(order="length")


def test_the_longest_of_the_last_rows_is_not_asked_last():
    """The end of the input is heard of where requests wait, through all of the worker."""
    rows = hr.from_items([{"text": "x" * (i + 1)} for i in range(16)])
    with FakeLLMServer(str.upper, latency=0.05) as server:
        model = hr.llm.Endpoint(server.url, "m", max_in_flight=1)
        asked = rows.prompt("{text}", model.with_options(order="longest")).with_options(
            engine="inline", progress=False
        )
        assert [row["answer"] for row in asked.take_all()] == ["X" * (i + 1) for i in range(16)]
        assert len(server.requests[-1]["messages"][0]["content"]) < 16
