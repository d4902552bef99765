"""How full a language model's endpoint is kept, and how well its limits are kept. `python bench/llm.py
[slots|faults]`

slots    6,000 prompts with log-normal latencies over 256 slots: which share of them is busy, from the first request
         to the last answer, beside a bare aiohttp loop, and with those first that will probably take longest
faults   a server with 10 % of 429, 2 % of broken connections, 1 % of malformed answers, and a limit of requests
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import random
import tempfile
import time
from typing import Any

import headrace as hr
from headrace.testing import FakeLLMServer

PROMPTS, SLOTS, MEAN, SIGMA = 6_000, 256, 2.0, 1.0


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


def prompts(seed: int) -> list[str]:
    """Return prompts that end with the seconds that they take: log-normal, and about as their lengths say."""
    drawn = random.Random(seed)
    guessed = [latency(drawn) for _ in range(PROMPTS)]
    return [f"{'x' * int(100 * each)} {each * drawn.lognormvariate(0.0, 0.25):.4f}" for each in guessed]


def told(pipe: Any) -> None:
    """Serve in a process of its own, as slowly as each prompt says, and note when requests were worked on."""
    from aiohttp import web

    worked: list[tuple[float, float]] = []
    message = {"message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}

    async def answer(request: web.Request) -> web.Response:
        asked = (await request.json())["messages"][0]["content"]
        began = time.monotonic()
        await asyncio.sleep(float(asked.rpartition(" ")[2]))
        worked.append((began, time.monotonic()))
        return web.json_response(
            {"choices": [message], "usage": {"prompt_tokens": 9, "completion_tokens": 1}}
        )

    async def forever() -> None:
        app = web.Application(client_max_size=1 << 26)
        app.router.add_post("/v1/chat/completions", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, backlog=1024).start()
        pipe.send(f"http://127.0.0.1:{runner.addresses[0][1]}/v1")
        await asyncio.to_thread(pipe.recv)
        pipe.send(worked)

    asyncio.run(forever())


async def bare(url: str, texts: list[str]) -> None:
    """Ask by hand: a request goes out as another is answered."""
    import aiohttp

    left = iter(texts)

    async def ask(session: aiohttp.ClientSession) -> None:
        for text in left:
            body = {"model": "fake", "messages": [{"role": "user", "content": text}]}
            async with session.post(f"{url}/chat/completions", json=body) as answer:
                await answer.json()

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await asyncio.gather(*(ask(session) for _ in range(SLOTS)))


def slots() -> None:
    """Print the share of busy slots from the first request to the last answer, and how long the slots run empty."""
    for seed in range(3):
        shares: dict[str, tuple[float, float]] = {}
        for name in ("bare", "arrival", "longest"):
            pipe, other = multiprocessing.Pipe()
            process = multiprocessing.get_context("fork").Process(target=told, args=(other,))
            process.start()
            url, texts = pipe.recv(), prompts(seed)
            if name == "bare":
                asyncio.run(bare(url, texts))
            else:
                model = hr.llm.Endpoint(url, "fake", max_in_flight=SLOTS).with_options(order=name)
                rows = hr.from_items([{"text": text} for text in texts]).prompt("{text}", model)
                with tempfile.TemporaryDirectory() as folder:
                    rows.with_options(progress=False).write_parquet(os.path.join(folder, "out"))
            pipe.send("end")
            worked = pipe.recv()
            process.join()
            first, ended = min(begin for begin, _ in worked), max(end for _, end in worked)
            busy = sum(end - begin for begin, end in worked) / (SLOTS * (ended - first))
            shares[name] = busy, ended - max(begin for begin, _ in worked)
            print(
                f"{name}: {busy:.2%} of {SLOTS} slots busy, empty within {shares[name][1]:.1f} s", flush=True
            )
        (share, drain), (ours, _), (_, guessed) = shares.values()
        print(
            f"busy by arrival: {ours / share:.4f} of the bare loop; longest first: {guessed / drain:.3f} of its end"
        )


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
