"""Requests per second of one core: ``Dataset.prompt`` beside a bare aiohttp loop. ``python -m bench.llm_speed``

The server answers at once, in a process of its own. Both ask it the same prompts with 64 requests under way; the loop
keeps the answers in memory, and ``prompt`` writes them. What counts is the time of the processor that the process
of the client needs, so that other work on the machine matters little. They take turns, and the ratio is that of each
pair.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import headrace as hr

IN_FLIGHT = 64
ANSWER = {
    "id": "1",
    "object": "chat.completion",
    "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10},
}


class Answering(asyncio.Protocol):
    """Says the same to each request, as soon as it is there."""

    def __init__(self) -> None:
        body = json.dumps(ANSWER).encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        self._said, self._read = head.encode() + body, b""
        self._transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._read += data
        while True:
            head, found, rest = self._read.partition(b"\r\n\r\n")
            if not found:
                return
            length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
            if len(rest) < length:
                return
            self._read = rest[length:]
            self._transport.write(self._said)


def serve(pipe: Any) -> None:
    async def forever() -> None:
        server = await asyncio.get_running_loop().create_server(Answering, "127.0.0.1", 0)
        pipe.send(server.sockets[0].getsockname()[1])
        await asyncio.get_running_loop().run_in_executor(None, pipe.recv)

    asyncio.run(forever())


@contextlib.contextmanager
def served() -> Iterator[str]:
    """Yield the address of a server in a process of its own."""
    pipe, other = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(other,))
    process.start()
    try:
        yield f"http://127.0.0.1:{pipe.recv()}/v1"
    finally:
        pipe.send("end")
        process.join()


async def bare(url: str, texts: list[str]) -> list[str]:
    """Ask by hand."""
    import aiohttp

    answers = [""] * len(texts)
    left = iter(range(len(texts)))

    async def ask(session: aiohttp.ClientSession) -> None:
        for i in left:
            body = {"model": "m", "messages": [{"role": "user", "content": texts[i]}]}
            async with session.post(f"{url}/chat/completions", json=body) as answer:
                answers[i] = (await answer.json())["choices"][0]["message"]["content"]

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await asyncio.gather(*(ask(session) for _ in range(IN_FLIGHT)))
    return answers


def prompted(url: str, texts: list[str]) -> list[str]:
    """Ask by ``prompt``, and write what it says."""
    rows = hr.from_items([{"text": text} for text in texts])
    asked = rows.prompt("{text}", hr.llm.Endpoint(url, "m", max_in_flight=IN_FLIGHT))
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "out")
        asked.with_options(engine="inline", progress=False, report=False).write_parquet(out)
        return [str(each) for each in hr.read_parquet(out).to_arrow()["answer"].to_pylist()]


def main(prompts: int = 10_000, rounds: int = 5) -> None:
    texts = [f"What is {i}?" for i in range(prompts)]
    rates: dict[str, list[float]] = {"bare": [], "prompt": []}
    with served() as url:
        prompted(url, texts[:100])
        for _ in range(rounds):
            for name in rates:
                began = time.process_time()
                answers = asyncio.run(bare(url, texts)) if name == "bare" else prompted(url, texts)
                rates[name].append(prompts / (time.process_time() - began))
                assert answers == ["yes"] * prompts
    ratio = statistics.median(p / b for p, b in zip(rates["prompt"], rates["bare"], strict=True))
    for name, found in rates.items():
        print(f"{name:8} {statistics.median(found):8,.0f} requests for each second of the processor")
    print(f"prompt has {ratio:.2f} of the rate of the bare loop (pairs, median of {rounds})")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
