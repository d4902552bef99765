"""``headrace run-batch`` over many lines, killed in the middle and again: is its memory flat, are all answers there?

``python -m bench.run_batch [lines] [kills]``; a million lines take about half an hour on two cores. The server gives
the same answer to the same request, so that the output of an undisturbed run is known: it is compared line by line.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any

from bench import given


class Server(asyncio.Protocol):
    """As little of HTTP as a client needs that keeps its connections: it says the last word of each prompt."""

    def __init__(self, asked: Any) -> None:
        self._asked = asked
        self._read = b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._read += data
        while (end := self._read.find(b"\r\n\r\n")) >= 0:
            head = self._read[:end].lower()
            size = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
            if len(self._read) < end + 4 + size:
                return
            body = json.loads(self._read[end + 4 : end + 4 + size])
            self._read = self._read[end + 4 + size :]
            self._asked.value += 1
            message = {"role": "assistant", "content": said(body["messages"][-1]["content"])}
            usage = {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            answer = json.dumps({"id": "same", "choices": [choice], "usage": usage}).encode()
            self._transport.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
                % len(answer)
                + answer
            )


def said(prompt: str) -> str:
    return f"it is {prompt.split()[-1]}"


def serve(pipe: Any, asked: Any) -> None:
    async def run() -> None:
        server = await asyncio.get_running_loop().create_server(lambda: Server(asked), "127.0.0.1", 0)
        pipe.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())


def rss(pid: int) -> int:
    """Return the MiB that a process has in memory."""
    try:
        with open(f"/proc/{pid}/status") as file:
            return next(int(line.split()[1]) >> 10 for line in file if line.startswith("VmRSS"))
    except (OSError, StopIteration):
        return 0


def main(lines: int, kills: int) -> None:
    pipe, other = multiprocessing.Pipe()
    asked = multiprocessing.Value("q", 0, lock=False)
    server = multiprocessing.get_context("fork").Process(target=serve, args=(other, asked), daemon=True)
    server.start()
    url = f"http://127.0.0.1:{pipe.recv()}/v1"
    with tempfile.TemporaryDirectory() as folder:
        source, out = os.path.join(folder, "in.jsonl"), os.path.join(folder, "out.jsonl")
        with open(source, "w") as file:
            for i in range(lines):
                body = {
                    "model": "m",
                    "messages": [{"role": "user", "content": f"{'x' * (i % 200)} what is {i}"}],
                }
                line = {"custom_id": f"r{i}", "method": "POST", "url": "/v1/chat/completions", "body": body}
                file.write(json.dumps(line) + "\n")
        command = [sys.executable, "-m", "headrace", "run-batch", "-i", source, "-o", out, "--endpoint", url]
        began, peaks = time.monotonic(), []
        at = [lines * (turn + 1) // (kills + 1) for turn in range(kills)]
        while True:
            job = subprocess.Popen([*command, "--no-progress", "--max-in-flight", "64"])
            memory: list[int] = []
            while job.poll() is None:
                time.sleep(random.uniform(0.4, 0.6))
                memory.append(rss(job.pid))
                if at and asked.value >= at[0]:
                    at.pop(0)
                    job.send_signal(signal.SIGKILL)
            third = max(1, len(memory) // 3)
            peaks.append((max(memory[:third] or [0]), max(memory[-third:] or [0])))
            if job.returncode != -signal.SIGKILL:
                break
        took = time.monotonic() - began
        wrong = 0
        with open(out) as file:
            for i, text in enumerate(file):
                line = json.loads(text)
                message = line["response"]["body"]["choices"][0]["message"]
                wrong += line["custom_id"] != f"r{i}" or message["content"] != said(f"what is {i}")
        print(
            f"{lines:,} lines in {took:,.0f} s, killed {kills} times: exit code {job.returncode}, {i + 1:,} answers, "
            f"{wrong:,} wrong, {asked.value - lines:,} asked twice; MiB in the first and the last third of each "
            f"process: {', '.join(f'{first} and {last}' for first, last in peaks)}"
        )
    server.terminate()


if __name__ == "__main__":
    main(*given.counts(__doc__, lines=1_000_000, kills=2))
