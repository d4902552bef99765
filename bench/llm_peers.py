"""The same prompts to the same server by Headrace, by Daft's ``prompt``, and on Ray Data.

``python -m bench.llm_peers [prompts] [rounds]``, with HEADRACE_BENCH_RAY and HEADRACE_BENCH_DAFT naming a Python that
has ``ray[data]`` and ``aiohttp``, or ``daft`` and ``openai``; one that is not named is left out. The server takes 64
requests at a time. Answers take a second on average, log-normally, and eight at most: who comes first to the server
gets the same seconds, whoever it is. What counts is the time from the first request to the last answer: how a job
starts is not a matter of language models.

Ray Data's own processor for HTTP sends the requests of a batch one after the other, as its ``qps`` says; so the
actor here is what one writes by hand: the requests of a batch of 64 at once, two batches under way.
"""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys

IN_FLIGHT = 64
LONGEST = 8.0
PEERS = {"headrace": sys.executable, "daft": "HEADRACE_BENCH_DAFT", "ray": "HEADRACE_BENCH_RAY"}


def headrace(url: str, prompts: int) -> int:
    """Ask by ``Dataset.prompt``."""
    import headrace as hr

    rows = hr.from_items([{"text": f"What is {i}?"} for i in range(prompts)])
    asked = rows.prompt("{text}", hr.llm.Endpoint(url, "m", max_in_flight=IN_FLIGHT))
    return int(asked.with_options(progress=False).to_arrow().num_rows)


def daft(url: str, prompts: int) -> int:
    """Ask by Daft's ``prompt``."""
    import daft
    from daft.functions import prompt

    daft.set_provider("openai", api_key="none", base_url=url)
    rows = daft.from_pydict({"text": [f"What is {i}?" for i in range(prompts)]})
    asked = prompt(daft.col("text"), provider="openai", model="m", use_chat_completions=True)
    return len(rows.with_column("answer", asked).to_pydict()["answer"])


def ray(url: str, prompts: int) -> int:
    """Ask by an actor with an event loop, as many at a time as the server takes."""
    import asyncio

    import aiohttp
    import ray

    ray.init(num_cpus=2, logging_level="ERROR", include_dashboard=False)
    ray.data.DataContext.get_current().enable_progress_bars = False

    class Asker:
        async def __call__(self, batch):  # type: ignore[no-untyped-def]
            async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

                async def ask(text: str) -> str:
                    body = {"model": "m", "messages": [{"role": "user", "content": text}]}
                    async with session.post(f"{url}/chat/completions", json=body) as answer:
                        return str((await answer.json())["choices"][0]["message"]["content"])

                answers = await asyncio.gather(*(ask(str(text)) for text in batch["text"]))
            yield {"text": batch["text"], "answer": answers}

    rows = ray.data.from_items([{"text": f"What is {i}?"} for i in range(prompts)])
    asked = rows.map_batches(Asker, batch_size=IN_FLIGHT, concurrency=1, num_cpus=1, max_concurrency=2)
    return len(asked.take_all())


def seconds_of_answers(prompts: int) -> list[float]:
    """Return how long each request takes, by the order in which they come to the server."""
    drawn = random.Random(11)
    mean = 2.718281828**0.5
    return [min(drawn.lognormvariate(0, 1) / mean, LONGEST) for _ in range(prompts)]


def measured(name: str, python: str, prompts: int) -> tuple[float, str]:
    """Return how many seconds the requests of one of them took, and how they went."""
    from bench.llm import Server

    seconds = iter(seconds_of_answers(prompts))
    server = Server(latency=lambda random: next(seconds, 1.0), slots=IN_FLIGHT)
    try:
        command = [python, __file__, name, server.url, str(prompts)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
        worked, times, outcomes, most = server.look()
        if done.returncode or sum(outcomes.values()) < prompts:
            return 0.0, f"failed: {(done.stderr or done.stdout).strip().splitlines()[-1:]}"
        whole = max(end for _, end in worked) - times[0]
        busy = sum(end - begin for begin, end in worked) / (IN_FLIGHT * whole)
        return (
            whole,
            f"{sum(outcomes.values()):,} requests, at most {most} at once, {busy:.1%} of the slots busy",
        )
    finally:
        server.close()


def main(prompts: int, rounds: int) -> None:
    """Print what each takes, by turns."""
    took: dict[str, list[float]] = {}
    for _ in range(rounds):
        for name, place in PEERS.items():
            python = place if name == "headrace" else os.environ.get(place, "")
            if python:
                seconds, words = measured(name, python, prompts)
                took.setdefault(name, []).append(seconds)
                print(f"{name}: {seconds:.1f} s, {words}", flush=True)
    for name, each in took.items():
        middle = statistics.median(each)
        print(
            f"{name}: {middle:.1f} s in the middle, {prompts / max(middle, 1e-9):.1f} prompts/s", flush=True
        )


if __name__ == "__main__":
    if len(sys.argv) == 4 and sys.argv[1] in PEERS:
        sys.path.remove(os.path.dirname(os.path.abspath(__file__)))  # else names of ours hide others
        print(globals()[sys.argv[1]](sys.argv[2], int(sys.argv[3])), "answers")
    else:
        from bench import given

        main(*given.counts(__doc__, prompts=640, rounds=3))
