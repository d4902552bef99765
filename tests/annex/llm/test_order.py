"""The order of work: what begins alike is asked together, what is long not last; answers in the order of the rows."""

from __future__ import annotations

import itertools
import random
from collections import OrderedDict, deque
from heapq import heappop, heappush
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.annex.llm.order import ORDERS, Order
from headrace.errors import ArgumentError
from headrace.testing import FakeLLMServer


class Engine:
    """Works on at most ``slots`` requests at a time, a token of each in a step; a request is how many it takes."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.waiting: deque[tuple[int, int]] = deque()
        self.running: list[tuple[int, int]] = []  # when it ends, and its number
        self.steps = self.worked = self.last_begin = 0

    def step(self) -> list[int]:
        """Make one token for each request at work; return those that ended."""
        while self.waiting and len(self.running) < self.slots:
            number, length = self.waiting.popleft()
            heappush(self.running, (self.steps + length, number))
            self.last_begin = self.steps
        self.steps += 1
        self.worked += len(self.running)
        ended = []
        while self.running and self.running[0][0] <= self.steps:
            ended.append(heappop(self.running)[1])
        return ended


class PrefixCache:
    """A cache of what was computed for beginnings of prompts, in 500 blocks of 16 tokens; the oldest are let go."""

    def __init__(self) -> None:
        self.known: OrderedDict[int, None] = OrderedDict()
        self.looked = self.hits = 0

    def look_up(self, tokens: list[str]) -> None:
        """Take a prompt: find how much of its beginning is there, and keep it."""
        beginning, found = 0, True
        for start in range(0, len(tokens) - 15, 16):
            beginning = hash((beginning, tuple(tokens[start : start + 16])))
            found = found and beginning in self.known
            self.looked += 1
            self.hits += found
            self.known[beginning] = None
            self.known.move_to_end(beginning)
            if len(self.known) > 500:
                self.known.popitem(last=False)


def played(
    texts: list[str], lengths: list[int], order: str, *, slots: int, window: int, ends_after: int = 0
) -> tuple[Engine, PrefixCache]:
    """Give requests to an engine in an order of which ``window`` wait; the end is known after some steps."""
    engine, cache = Engine(slots), PrefixCache()
    waiting: Order[int] = Order(order)
    begun: dict[int, int] = {}
    known = ended = 0
    over = False
    while ended < len(texts):
        while known < len(texts) and len(waiting) < window:
            waiting.add(known, texts[known])
            known += 1
        if not over and known == len(texts) and engine.steps >= ends_after:
            over = True
            waiting.input_ends(True)
        while len(waiting) and len(begun) < slots + slots // 4:
            number = waiting.next()
            cache.look_up(texts[number].split())
            engine.waiting.append((number, lengths[number]))
            begun[number] = engine.steps
        for number in engine.step():
            waiting.learn(texts[number], engine.steps - begun.pop(number))
            ended += 1
    assert engine.worked == sum(lengths)
    return engine, cache


def test_beginnings_are_found_more_often():
    """Questions about documents of different lengths, each asked for often, between others that stand alone."""
    drawn = random.Random(3)
    documents = [[f"d{i}w{j}" for j in range(drawn.choice((80, 160, 480)))] for i in range(40)]
    texts = []
    for i in range(4_000):
        words = [*["system"] * 16, *(drawn.choice(documents) if drawn.random() < 0.7 else [])]
        texts.append(" ".join([*words, *(f"q{i}w{j}" for j in range(48))]))
    lengths = [20 + len(text) % 30 for text in texts]
    shares = {}
    for order in ("arrival", "prefix"):
        _, cache = played(texts, lengths, order, slots=32, window=512)
        shares[order] = cache.hits / cache.looked
    assert shares["prefix"] >= 1.3 * shares["arrival"] > 0.1


@pytest.mark.parametrize("of_length", [lambda length: length, lambda length: 3_000 // (length + 3)])
def test_which_prompts_take_long_is_learnt_while_they_run(of_length):
    """The drain, from the last request's begin to the end, is half as long, whichever prompts have long answers."""
    drawn = random.Random(3)
    lengths = [max(1, round(60 * drawn.lognormvariate(-0.5, 1.0))) for _ in range(10_000)]
    texts = [
        f"{i} {'x' * round(of_length(each) * drawn.lognormvariate(0, 0.3))}" for i, each in enumerate(lengths)
    ]
    drains = {}
    for order in ("arrival", "longest"):
        engine, _ = played(texts, lengths, order, slots=256, window=10_000, ends_after=500)
        drains[order] = engine.steps - engine.last_begin
    assert drains["longest"] <= drains["arrival"] / 2


@given(st.lists(st.one_of(st.none(), st.text("ab", max_size=4)), max_size=60), st.integers(0, 60))
def test_everybody_has_a_turn_once(events, ends_at):
    for name in ORDERS:
        order: Order[tuple[int, str]] = Order(name)
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
