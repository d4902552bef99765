"""What processes take: their own pages, not those that they share."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys

import pytest

from headrace.engines.local.machine import family_memory, private_memory

MIB = 1 << 20

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc")

TAKES = """
import mmap, os, sys
kind = sys.argv[1]
if kind == "private":
    held = bytearray(b"x" * (64 << 20))
elif kind == "shared":
    fd = os.memfd_create("weights"); os.ftruncate(fd, 64 << 20)
    held = mmap.mmap(fd, 64 << 20, flags=mmap.MAP_SHARED)
    held.write(b"x" * (64 << 20))
    held = mmap.mmap(fd, 64 << 20, flags=mmap.MAP_PRIVATE)
    sum(held[:: mmap.PAGESIZE])
elif kind == "forked":
    held = bytearray(b"x" * (64 << 20))
    if not os.fork():
        more = bytearray(b"y" * (32 << 20))
        print("ready", flush=True)
        sys.stdin.read()
        os._exit(0)
if kind != "forked":
    print("ready", flush=True)
sys.stdin.read()
"""


def taken(kind: str) -> tuple[int, int]:
    """Start a process that takes memory in some way; return what it has, and what it has with its children."""
    with subprocess.Popen(
        [sys.executable, "-c", TAKES, kind], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        return private_memory(process.pid), family_memory(process.pid)


def test_private_pages_count_and_shared_ones_do_not() -> None:
    bare, _ = taken("nothing")
    private, with_children = taken("private")
    shared, _ = taken("shared")
    assert 63 * MIB < private - bare < 72 * MIB
    assert abs(with_children - private) < MIB
    assert shared - bare < 8 * MIB


def test_what_a_worker_forked_counts_once() -> None:
    bare, _ = taken("nothing")
    _, both = taken("forked")
    assert 90 * MIB < both - bare < 112 * MIB, "64 MiB that both see, and 32 of the child"


def test_who_is_gone_takes_nothing() -> None:
    assert private_memory(1 << 30) == family_memory(1 << 30) == 0
    assert private_memory(os.getpid()) > mmap.PAGESIZE
