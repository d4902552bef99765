"""``python -m bench.fleet``: what many machines without a cluster gain, and what they ask a store for besides work.

Machines are processes here, and models wait instead of computing, so two cores are enough. The store is a small
server of this program, which counts requests: those that share the work (notes, leases, waiting), those of parts and
journals, and those by which each machine begins its run, describes it, and reads the result of all.
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from xml.sax.saxutils import escape

import headrace as hr
from bench import given
from headrace.sources.range import RangeSource

BAR, SLOW_BAR, SHARE_BAR, START_BAR = 3.4, 1.25, 0.03, 2.0
ROWS = 10  # of a shard
_LISTED = 1_000
_SHARING = re.compile(r"_headrace/fleet/notes/|_headrace/lock$|out/_headrace/$")
_PARTS = re.compile(r"part-|/journal/")


FIRST_ROW = """
import os, resource, sys, time
import headrace as hr

def first(batch):
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(time.time() - float(sys.argv[2]), used.ru_utime + used.ru_stime, flush=True)
    os._exit(0)

rows = hr.range(1_000).map_batches(first, version="1").with_options(fleet=True, engine="inline", progress=False)
rows.write_parquet(sys.argv[1])
"""


def starts(times: int) -> tuple[float, float]:
    """Return how long a machine takes from its start to its first row, and seconds of CPU of that; the least each.

    The first machine plans, the others join.
    """
    with tempfile.TemporaryDirectory(prefix="fleet-") as folder:
        found = []
        for _ in range(times):
            asked = [sys.executable, "-c", FIRST_ROW, f"{folder}/out", str(time.time())]
            found.append(subprocess.run(asked, stdout=subprocess.PIPE, text=True, check=True).stdout.split())
    return min(float(each[0]) for each in found), min(float(each[1]) for each in found)


def machine(place: str, shards: int, seconds: float, began: Any) -> None:
    """Be one machine."""

    def waits(batch: dict[str, Any]) -> dict[str, Any]:
        if not began.value:
            began.value = time.time()
        if seconds:
            time.sleep(seconds)
        return {"id": batch["id"]}

    source = RangeSource(shards * ROWS, rows_per_split=ROWS)
    data = hr.Dataset.from_source(source).map_batches(waits, batch_size=ROWS, version="1")
    quiet = data.with_options(engine="inline", shard_rows=ROWS, progress=False, report=False, fleet=True)
    rows = quiet.with_options(durability="process").write_parquet(place).rows
    assert rows == shards * ROWS, rows


def together(place: str, shards: int, seconds: list[float]) -> tuple[float, float]:
    """Have machines, which take so many seconds for a shard, make an output; return when they began and it was done.

    Both in seconds from the first row of the machines on average: what it takes to start Python is no part of this.
    """
    fork = multiprocessing.get_context("fork")
    begins = [fork.Value("d", 0.0) for _ in seconds]
    lives = [
        fork.Process(target=machine, args=(place, shards, each, began))
        for each, began in zip(seconds, begins, strict=True)
    ]
    for each in lives:
        each.start()
    for each in lives:
        each.join()
    assert not any(each.exitcode for each in lives), [each.exitcode for each in lives]
    first = [began.value for began in begins if began.value]
    return sum(first) / len(first), time.time()


def faster(shards: int, seconds: list[float]) -> float:
    """Return how many times as fast these machines are as one that takes the first number of seconds for a shard."""
    with tempfile.TemporaryDirectory(prefix="fleet-") as folder:
        began, _ = together(f"{folder}/out", shards, seconds)
        return shards * seconds[0] / ((Path(folder) / "out" / "_SUCCESS").stat().st_mtime - began)


# ---------------------------------------------------------------- the store


class Handler(BaseHTTPRequestHandler):
    """As much of S3 as an output needs."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    objects: ClassVar[dict[str, tuple[bytes, str]]] = {}
    uses: ClassVar[Counter[str]] = Counter()
    counts: ClassVar[Counter[str]] = Counter()
    lock = threading.Lock()

    def handle_one(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        address = urllib.parse.urlsplit(self.path)
        key = urllib.parse.unquote(address.path).removeprefix("/bucket").lstrip("/")
        asked = dict(urllib.parse.parse_qsl(address.query, keep_blank_values=True))
        with self.lock:
            name = asked.get("prefix", key)
            use = "sharing" if _SHARING.search(name) else "parts" if _PARTS.search(name) else "runs"
            self.uses[use] += 1
            self.counts[f"{self.command} {_kind(name)}"] += 1
            status, data, headers = self.answer(key, asked, body)
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = handle_one

    def answer(self, key: str, asked: dict[str, str], body: bytes) -> tuple[int, bytes, dict[str, str]]:
        if self.command == "PUT":
            return self.put(key, body)
        if "list-type" in asked:
            return 200, self.listed(asked), {"content-type": "application/xml"}
        if self.command == "POST":
            keys = re.findall(r"<Key>(.*?)</Key>", body.decode())
            for name in keys:
                self.objects.pop(name, None)
            gone = "".join(f"<Deleted><Key>{name}</Key></Deleted>" for name in keys)
            return 200, f"<DeleteResult>{gone}</DeleteResult>".encode(), {"content-type": "application/xml"}
        if self.command == "DELETE":
            self.objects.pop(key, None)
            return 204, b"", {}
        if key not in self.objects:
            return 404, b"", {}
        data, tag = self.objects[key]
        return 200, data, {"etag": tag, "last-modified": formatdate(usegmt=True)}

    def put(self, key: str, body: bytes) -> tuple[int, bytes, dict[str, str]]:
        there = self.objects.get(key)
        wants, source = self.headers.get("if-match"), self.headers.get("x-amz-copy-source")
        if (self.headers.get("if-none-match") and there) or (wants and (there is None or there[1] != wants)):
            return 412, b"", {}
        if source:
            body = self.objects[urllib.parse.unquote(source).lstrip("/").removeprefix("bucket/")][0]
        tag = f'"{hashlib.md5(body + os.urandom(8)).hexdigest()}"'
        self.objects[key] = body, tag
        done = f"<CopyObjectResult><ETag>{escape(tag)}</ETag></CopyObjectResult>" if source else ""
        return 200, done.encode(), {"etag": tag}

    def listed(self, asked: dict[str, str]) -> bytes:
        prefix, after = (
            asked.get("prefix", ""),
            asked.get("continuation-token", "") or asked.get("start-after", ""),
        )
        names = sorted(name for name in self.objects if name.startswith(prefix) and name > after)
        shown = names[: int(asked.get("max-keys", _LISTED))]
        more = len(names) > len(shown)
        contents = "".join(
            f"<Contents><Key>{escape(name)}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
            f"<ETag>{escape(self.objects[name][1])}</ETag><Size>{len(self.objects[name][0])}</Size></Contents>"
            for name in shown
        )
        token = f"<NextContinuationToken>{escape(shown[-1])}</NextContinuationToken>" if more else ""
        return (
            f'<?xml version="1.0"?><ListBucketResult><IsTruncated>{str(more).lower()}</IsTruncated>'
            f"<KeyCount>{len(shown)}</KeyCount>{token}{contents}</ListBucketResult>"
        ).encode()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


def _kind(key: str) -> str:
    key = re.sub(r"/[a-z0-9]{8}(?=/|$)", "/*", key.partition("/")[2])
    key = re.sub(r"(claim|ended)-.*", r"\1", key)
    return re.sub(r"\d{3,}.*", "…", key)


def _serve(ready: Any, asked: Any, told: Any) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    ready.put(server.server_address[1])
    asked.get()
    told.put((dict(Handler.uses), dict(Handler.counts)))


@contextmanager
def counting() -> Iterator[Callable[[], tuple[dict[str, int], dict[str, int]]]]:
    """Have a store listen; the environment says where. Yields what returns all requests by uses, and by kinds."""
    fork = multiprocessing.get_context("fork")
    queues = fork.Queue(), fork.Queue(), fork.Queue()
    server = fork.Process(target=_serve, args=queues, daemon=True)
    server.start()
    url = f"http://127.0.0.1:{queues[0].get()}"
    http.client.HTTPConnection(url.removeprefix("http://")).connect()
    known = {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench", "AWS_REGION": "us-east-1"}
    os.environ.update(known, AWS_ENDPOINT_URL=url)

    def told() -> tuple[dict[str, int], dict[str, int]]:
        queues[1].put(None)
        found: tuple[dict[str, int], dict[str, int]] = queues[2].get()
        return found

    try:
        yield told
    finally:
        server.terminate()


def main() -> int:
    options = parser().parse_args()
    start, cpu = starts(9)
    print(
        f"from the start of a machine to its first row: {start:.2f} s (bar: {START_BAR}), {cpu:.2f} s of CPU"
    )
    speed = faster(options.shards, [options.seconds] * 4)
    slow = faster(options.shards, [*[options.seconds] * 3, 10 * options.seconds])
    print(f"four machines: {speed:.2f} times as fast as one (bar: {BAR})")
    print(f"one of them ten times slower: {3.1 / slow:.2f} times the ideal (bar: {SLOW_BAR})")
    with counting() as told:
        together("s3://bucket/out", options.machines * options.each, [0.0] * options.machines)
        uses, counts = told()
    share, runs = (uses[name] / sum(uses.values()) for name in ("sharing", "runs"))
    print(
        f"{options.machines} machines, {options.each} shards each: of {sum(uses.values()):,} requests {share:.1%} "
        f"share the work (bar: {SHARE_BAR:.0%}), and {runs:.1%} begin and end the runs of machines"
    )
    if options.kinds:
        for kind, number in Counter(counts).most_common():
            print(f"  {number:8,} {kind}")
    return int(start > START_BAR or speed < BAR or 3.1 / slow > SLOW_BAR or share > SHARE_BAR)


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(prog="python -m bench.fleet", description=__doc__)
    result.add_argument("--shards", type=given.count, default=320, help="for the speed of four machines")
    result.add_argument("--seconds", type=given.amount, default=1.0, help="that a shard takes")
    result.add_argument("--machines", type=given.count, default=64, help="that share what the store is asked")
    result.add_argument("--each", type=given.count, default=100, help="shards for each of these")
    result.add_argument("--kinds", action="store_true", help="list the requests by their kinds")
    return result


if __name__ == "__main__":
    raise SystemExit(main())
