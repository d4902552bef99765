"""A million prompts, by requests and by batches, killed ten times: each is answered once and counted as billed.

``HEADRACE_SOAK_PROMPTS`` says how many instead; `make soak` runs this with the others.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import psutil
import pyarrow.compute as pc
import pytest

import headrace as hr
from headrace.annex.report.follow import Follower
from headrace.testing import FakeLLMServer

PROMPTS = int(os.environ.get("HEADRACE_SOAK_PROMPTS", "1000000"))
KILLS = 10
IN_FLIGHT = 64
USED = 10
"""Tokens that the server bills for a prompt."""

JOB = """
import sys, headrace as hr
from headrace.annex.llm import ahead, batch_services
url, out, many, via = sys.argv[1:]
ahead.FIRST_LOOK = batch_services.SETTLED = 0.2
batch_services.OpenAIBatches.most_lines = int(many) // 20
model = hr.llm.Endpoint(url, "m", max_in_flight=64).with_options(sampling={"temperature": 0})
rows = hr.range(int(many)).with_options(engine="inline", progress=False, report=False)
rows.prompt("{id}", model, via=via).write_parquet(out)
"""


class Server:
    """What the server's process tells: how often each prompt was answered. It kills ``job`` at ``kill_at``."""

    def __init__(self) -> None:
        shared = multiprocessing.get_context("fork")
        self.answered = shared.Value("q", 0, lock=False)
        self.port = shared.Value("q", 0, lock=False)
        self.job = shared.Value("q", 0, lock=False)
        self.each = shared.Array("B", PROMPTS, lock=False)
        self.kill_at = deque(PROMPTS * (i + 1) // (2 * KILLS) for i in range(KILLS))

    def answer(self, prompt: str) -> str:
        """Count a prompt."""
        self.each[int(prompt)] += 1
        self.answered.value += 1
        return f"It is {prompt}."

    def kill(self) -> None:
        """Kill the job, with all that it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.job.value, signal.SIGKILL)


class Chats(asyncio.Protocol):
    """Answers chats at once: a server of few words, so that a million of them are soon done."""

    server: Server

    def connection_made(self, transport: Any) -> None:
        self.transport, self.read = transport, b""

    def data_received(self, data: bytes) -> None:
        self.read += data
        head, found, body = self.read.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)
        if not found or length is None or len(body) < int(length[1]):
            return
        self.read = b""
        (prompt,) = re.findall(rb'"content":"(\d+)"', body)
        said = self.server.answer(prompt.decode())
        answer = (
            f'{{"choices": [{{"message": {{"role": "assistant", "content": "{said}"}}, "finish_reason": "stop"}}], '
            '"usage": {"prompt_tokens": 7, "completion_tokens": 3}}'
        )
        if self.server.kill_at and self.server.answered.value >= self.server.kill_at[0]:
            self.server.kill_at.popleft()
            self.server.kill()
        self.transport.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(answer)}\r\n\r\n{answer}".encode())


def serve_chats(server: Server) -> None:
    async def forever() -> None:
        made = type("Made", (Chats,), {"server": server})
        listening = await asyncio.get_running_loop().create_server(made, "127.0.0.1", 0)
        server.port.value = listening.sockets[0].getsockname()[1]
        await listening.serve_forever()

    asyncio.run(forever())


def serve_batches(server: Server) -> None:
    def answer(prompt: str) -> dict[str, Any]:
        message = {"role": "assistant", "content": server.answer(prompt)}
        usage = {"prompt_tokens": 7, "completion_tokens": 3}
        return {"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage}

    with FakeLLMServer(answer) as fake:
        calls = {"upload": 3, "create": 4, "look": 4, "download": 3}  # two may come together
        fake.batches.faults = {name: deque(["", server.kill] * count) for name, count in calls.items()}
        server.port.value = int(fake.url.split(":")[2].split("/")[0])
        signal.pause()


@contextlib.contextmanager
def served(via: str) -> Iterator[Server]:
    server = Server()
    target = serve_batches if via == "batch" else serve_chats
    process = multiprocessing.get_context("fork").Process(target=target, args=(server,), daemon=True)
    process.start()
    try:
        while not server.port.value:
            time.sleep(0.01)
        yield server
    finally:
        process.kill()
        process.join()


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("via", ["requests", "batch"])
def test_each_prompt_is_answered_once(tmp_path, via):
    out, kills = tmp_path / "out", 0
    sizes: list[tuple[int, int]] = []  # of the last process, by how much it has in the output
    with served(via) as server:
        url = f"http://127.0.0.1:{server.port.value}/v1"
        while True:
            command = [sys.executable, "-c", JOB, url, str(out), str(PROMPTS), via]
            job = subprocess.Popen(command, start_new_session=True)
            server.job.value, began, sizes = job.pid, time.monotonic(), []
            while job.poll() is None:
                with (
                    contextlib.suppress(psutil.NoSuchProcess),
                    contextlib.suppress(subprocess.TimeoutExpired),
                ):
                    sizes.append((server.answered.value, psutil.Process(job.pid).memory_info().rss))
                    job.wait(timeout=0.5)
            print(
                f"{via}: ended by {job.returncode} after {time.monotonic() - began:,.1f} s, {server.answered.value:,}"
            )
            if job.returncode == 0:
                break
            assert job.returncode == -signal.SIGKILL
            kills += 1
        each, answered = array.array("B", server.each), server.answered.value
    table = hr.read_parquet(out).to_arrow()
    ids = table["id"].to_numpy()
    assert len(ids) == PROMPTS and (ids == range(PROMPTS)).all()
    expected = pc.binary_join_element_wise("It is ", pc.cast(table["id"], "string"), ".", "")
    assert pc.all(pc.equal(table["answer"], expected)).as_py()
    told = Follower(out).poll().data()["language_model"]
    paid, twice = told["paid"], answered - PROMPTS
    peaks = [size for _, size in sizes]
    half, end = max(peaks[: len(peaks) // 2]), max(peaks[len(peaks) // 2 :])
    print(
        f"{via}: {PROMPTS:,} prompts, {kills} kills, {answered:,} answers, {twice} twice; told: {paid}; "
        f"memory up to {half >> 20} MiB in the first half of the last process, {end >> 20} in the second"
    )
    assert kills >= KILLS and min(each) == 1
    # What a killed process had under way is asked again, and counted apart: nobody can know whether it was answered.
    assert 0 <= twice <= (kills * IN_FLIGHT if via == "requests" else 0)
    assert paid["answers"] <= answered <= paid["answers"] + paid["unanswered"]
    assert paid["unanswered"] <= (kills * IN_FLIGHT if via == "requests" else 0)
    assert paid["prompt_tokens"] + paid["completion_tokens"] == USED * paid["answers"]
    assert end - half < 64 << 20
