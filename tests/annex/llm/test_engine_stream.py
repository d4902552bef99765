"""The stream into an engine that computes many requests at once: full, in order, and never stuck."""

from __future__ import annotations

import asyncio
import random
from collections import deque

import pytest

from headrace.annex.llm.engine_client import EngineStream, EngineThread, window_after
from headrace.testing import SimulatedLLMEngine

PROMPTS, SLOTS = 10_000, 256


def lengths(count: int, mean: float = 60.0, sigma: float = 1.0) -> list[int]:
    drawn = random.Random(7)
    return [
        max(1, round(mean * drawn.lognormvariate(0, sigma) / 2.718281828 ** (sigma**2 / 2)))
        for _ in range(count)
    ]


async def in_order(
    stream: EngineStream, engine: SimulatedLLMEngine, work: list[int], window: int
) -> list[int]:
    """Ask for all, at most ``window`` ahead of the first that is not answered; the engine's clock is its steps."""
    answers: list[int] = []
    asked: deque[asyncio.Task[int]] = deque()
    left = iter(work)

    async def feed() -> None:
        for length in left:
            asked.append(asyncio.ensure_future(stream.ask(lambda length=length: length)))
            while len(asked) >= window:
                answers.append(await asked.popleft())
        while asked:
            answers.append(await asked.popleft())

    feeding = asyncio.ensure_future(feed())
    while not feeding.done():
        for _ in range(4):
            await asyncio.sleep(0)
        if not stream.idle:
            stream.deliver(*stream.turn(engine))
    await feeding
    return answers


def test_all_slots_are_busy_until_the_last_request_begins():
    work = lengths(PROMPTS)
    engine, stream = SimulatedLLMEngine(SLOTS), EngineStream()
    assert asyncio.run(in_order(stream, engine, work, 32 * SLOTS)) == work
    busy, steps = engine.busy_until_last_begin()
    assert busy / (steps * SLOTS) >= 0.97
    assert engine.most_inside <= 2 * SLOTS
    assert engine.worked == sum(work)

    barriers = SimulatedLLMEngine(SLOTS)
    batches = [deque(work[at : at + 64]) for at in range(0, PROMPTS, 64)]
    running: list[set[int]] = []
    number = 0
    while batches or running:
        while batches and len(running) < 8:
            running.append(set())
            for length in batches.pop(0):
                number += 1
                barriers.add(number, length)
                running[-1].add(number)
        ended = {number for number, _ in barriers.step()}
        for batch in running:
            batch -= ended
        running = [batch for batch in running if batch]
    assert barriers.worked / (barriers.steps * SLOTS) < 0.6  # what a barrier costs, with the same lengths


def test_an_engine_that_takes_fewer_is_given_fewer():
    """Where memory is short, an engine works on fewer than it has slots for, and the window follows."""
    engine, stream = SimulatedLLMEngine(SLOTS, memory=64), EngineStream()
    asyncio.run(in_order(stream, engine, lengths(1_500, mean=20), 4_000))
    assert engine.most_running == 64
    assert stream.slots.limit <= 64 + 64 // 4 + 8
    few, stream = SimulatedLLMEngine(SLOTS), EngineStream(most=10)
    asyncio.run(in_order(stream, few, lengths(200, mean=20), 4_000))
    assert few.most_inside == 10


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ((32, 32, 0, 32), 64),  # all are worked on: more may come
        ((32, 12, 0, 20), 32),  # not even these were asked for
        ((512, 256, 256, 512), 320),  # too many wait
        ((320, 256, 50, 316), 320),
        ((320, 100, 220, 320), 125),  # it works on fewer than it did
        ((16_384, 8_192, 0, 16_384), 8_192),
        ((1, 0, 0, 1), 2),  # it has not begun
    ],
)
def test_the_window_follows_the_load(state, expected):
    limit, running, waiting, asked = state
    assert window_after(limit, running=running, waiting=waiting, asked=asked) == expected


def test_what_fails_is_of_one_request_and_an_engine_that_stops_is_of_all():
    async def refused_and_given_up() -> None:
        engine, stream = SimulatedLLMEngine(4), EngineStream()
        asks = [asyncio.ensure_future(stream.ask(lambda length=length: length)) for length in (3, -1, 50, 2)]
        unmade = asyncio.ensure_future(stream.ask(lambda: 1 // 0))
        await asyncio.sleep(0)
        for _ in range(3):
            stream.deliver(*stream.turn(engine))
            await asyncio.sleep(0)
        with pytest.raises(ValueError, match="-1"):
            asks[1].result()
        with pytest.raises(ZeroDivisionError):
            await unmade
        asks[2].cancel()
        await asyncio.gather(asks[2], return_exceptions=True)
        assert [asks[0].result(), asks[3].result()] == [3, 2]
        stream.deliver(*stream.turn(engine))
        assert (engine.aborted, stream.idle, stream.slots.taken) == ([3], True, 0)

    async def stopped() -> None:
        engine = SimulatedLLMEngine(4, stops_after=5)
        stream = EngineStream()
        thread = EngineThread(stream, lambda: engine)
        await thread.open()
        asks = [stream.ask(lambda length=length: length) for length in [2] + [100] * 50]
        outcomes = await asyncio.gather(*asks, return_exceptions=True)
        assert outcomes[0] == 2
        assert [str(each) for each in outcomes[1:]] == ["the engine stops"] * 50
        with pytest.raises(RuntimeError, match="the engine stops"):
            await stream.ask(lambda: 1)
        await thread.close()
        assert engine.closed

    async def never_began() -> None:
        thread = EngineThread(EngineStream(), lambda: SimulatedLLMEngine(1 // 0))
        with pytest.raises(ZeroDivisionError):
            await thread.open()
        await thread.close()

    for each in (refused_and_given_up, stopped, never_began):
        asyncio.run(each())
