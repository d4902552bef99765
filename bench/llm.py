"""How full a language model's endpoint is kept, and how well its limits are kept. `python bench/llm.py
[slots|faults]`

slots    10,000 prompts with log-normal latencies over a server of 256 slots: which share of them is busy, beside
         batches of 64 with 8 under way at a time, each of which ends before the next begins
faults   a server with 10 % of 429, 2 % of broken connections, 1 % of malformed answers, and a limit of requests
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import tempfile
import time
from typing import Any

import headrace as hr
from headrace.testing import FakeLLMServer

PROMPTS, SLOTS, MEAN, SIGMA = 10_000, 256, 3.0, 1.0


def latency(random: Any) -> float:
    """Log-normal, with a mean of ``MEAN`` seconds."""
    return random.lognormvariate(0.0, SIGMA) * MEAN / 2.718281828 ** (SIGMA**2 / 2)


def serve(pipe: Any, options: dict[str, Any]) -> None:
    """Serve in a process of its own, so that server and client do not share an interpreter."""
    with FakeLLMServer(lambda prompt: "yes", **options) as server:
        pipe.send(server.url)
        while pipe.recv() != "end":
            pipe.send((server.worked[:], server.times[:], dict(server.outcomes), server.most_at_once))


class Server:
    """A fake server in a process; ``look`` returns what it has seen."""

    def __init__(self, **options: Any) -> None:
        self._pipe, other = multiprocessing.Pipe()
        self._process = multiprocessing.get_context("fork").Process(target=serve, args=(other, options))
        self._process.start()
        self.url = self._pipe.recv()

    def look(self) -> Any:
        self._pipe.send("look")
        return self._pipe.recv()

    def close(self) -> None:
        self._pipe.send("end")
        self._process.join()


def run(server: Server, prompts: int, **options: Any) -> Any:
    rows = hr.from_items([{"i": i} for i in range(prompts)])
    asked = rows.prompt("{i}", hr.llm.Endpoint(server.url, "fake", **options))
    with tempfile.TemporaryDirectory() as folder:
        data = asked.with_options(progress=False, on_error="reject")
        return data.write_parquet(os.path.join(folder, "out"))


async def barriers(url: str, prompts: int) -> None:
    """Ask in batches of 64, of which 8 are under way at a time: the usual way."""
    import aiohttp

    async def ask(session: aiohttp.ClientSession, i: int) -> None:
        body = {"model": "fake", "messages": [{"role": "user", "content": str(i)}]}
        async with session.post(f"{url}/chat/completions", json=body) as answer:
            await answer.read()

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        places = asyncio.Semaphore(8)

        async def batch(start: int) -> None:
            async with places:
                await asyncio.gather(*(ask(session, i) for i in range(start, min(start + 64, prompts))))

        await asyncio.gather(*(batch(start) for start in range(0, prompts, 64)))


def slots() -> None:
    """Print the share of busy slots for both ways."""
    for name in ("headrace", "barriers"):
        server = Server(latency=latency, slots=SLOTS)
        if name == "headrace":
            run(server, PROMPTS, max_in_flight=SLOTS)
        else:
            asyncio.run(barriers(server.url, PROMPTS))
        ended = time.monotonic()
        worked, times, outcomes, most = server.look()
        wall, last = ended - times[0], times[-1]
        busy = sum(end - begin for begin, end in worked)
        before = sum(max(0.0, min(end, last) - begin) for begin, end in worked)
        share = before / (SLOTS * (last - times[0]))
        print(
            f"{name}: {sum(outcomes.values()):,} requests, at most {most} at once, {wall:.1f} s, "
            f"{busy / (SLOTS * wall):.1%} of {SLOTS} slots busy over all; "
            f"the last request began after {last - times[0]:.1f} s: {share:.1%} until then"
        )
        server.close()


def faults() -> None:
    """Print the rate that is reached, and what became of the rows."""
    rate, prompts = 6_000, 4_000
    server = Server(latency=0.05, too_many=0.1, resets=0.02, malformed=0.01, requests_per_minute=rate)
    result = run(server, prompts, requests_per_minute=rate, max_in_flight=64)
    _, times, outcomes, _ = server.look()
    reached = (len(times) - 1) / (times[-1] - times[0]) * 60
    print(
        f"faults: {result.rows:,} rows answered, {result.rejected:,} rejected, {len(times):,} requests ({outcomes}); "
        f"{reached:,.0f} requests a minute of {rate:,}: {reached / rate:.1%}"
    )
    server.close()


if __name__ == "__main__":
    every = {"slots": slots, "faults": faults}
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names", nargs="*", metavar="name", help=f"of {', '.join(every)}; all, if none is named"
    )
    names = parser.parse_args().names
    if unknown := [name for name in names if name not in every]:
        parser.error(f"there is no {unknown[0]!r}, only {', '.join(every)}")
    for name in names or every:
        every[name]()
