"""The thread of an engine that computes many requests at once: what fails, what is given up, and how it ends."""

from __future__ import annotations

import asyncio

import pytest

from headrace.annex.llm.engine_client import EngineThread
from headrace.testing import SimulatedLLMEngine


def test_what_fails_is_of_one_request_and_what_is_given_up_is_forgotten():
    async def carry_out() -> None:
        engine = SimulatedLLMEngine(2)
        thread = EngineThread(lambda: engine)
        assert await thread.open() is engine
        given_up = asyncio.ensure_future(thread.ask(10**12))
        asks = [asyncio.ensure_future(thread.ask(length)) for length in (3, -1, 2)]
        outcomes = await asyncio.gather(*asks, return_exceptions=True)
        assert [str(each) for each in outcomes] == ["3", "a request of -1 tokens", "2"]
        given_up.cancel()
        await asyncio.gather(given_up, return_exceptions=True)
        assert await thread.ask(1) == 1 and engine.aborted == [1]
        await thread.close()
        assert engine.closed

    asyncio.run(carry_out())


def test_an_engine_that_stops_is_of_all_and_so_is_one_that_never_began():
    async def stopped() -> None:
        engine = SimulatedLLMEngine(4, stops_after=5)
        thread = EngineThread(lambda: engine)
        await thread.open()
        asks = [thread.ask(length) for length in [2] + [100] * 50]
        outcomes = await asyncio.gather(*asks, return_exceptions=True)
        assert outcomes[0] == 2
        assert [str(each) for each in outcomes[1:]] == ["the engine stops"] * 50
        with pytest.raises(RuntimeError, match="the engine stops"):
            await thread.ask(1)
        await thread.close()
        assert engine.closed

    async def never_began() -> None:
        thread = EngineThread(lambda: SimulatedLLMEngine(1 // 0))
        with pytest.raises(ZeroDivisionError):
            await thread.open()
        await thread.close()

    for each in (stopped, never_began):
        asyncio.run(each())
