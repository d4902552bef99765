"""Damaged bytes for every parser of ours: an error of ours or a result, soon, and no gigabyte.

``HEADRACE_FUZZ_CASES`` says how many cases the soak has in all, ``HEADRACE_FUZZ_SEED`` with which to begin.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from . import parsers

CASES = int(os.environ.get("HEADRACE_FUZZ_CASES", "1000000"))
SEED = int(os.environ.get("HEADRACE_FUZZ_SEED", "0"))
FEW = 1000


def played(known: dict[str, parsers.Parser], cases: int, scratch: Path) -> int:
    share = sum(parser.share for parser in known.values())
    wrong: list[str] = []
    total = 0
    print()
    for name, parser in known.items():
        tally = parsers.play(name, parser, 1 + int(cases * parser.share / share), SEED, scratch)
        print(f"{name:>14}: {tally}", flush=True)
        wrong += tally.wrong
        total += tally.cases
    assert not wrong, "\n".join(wrong[:20])
    return total


def test_damaged_bytes(tmp_path: Path) -> None:
    known = parsers.parsers(tmp_path)
    check_whole(known)
    assert played(known, FEW, tmp_path) > FEW


def check_whole(known: dict[str, parsers.Parser]) -> None:
    for parser in known.values():
        for data in parser.whole:
            parser.parse(data)


@pytest.fixture
def in_memory(tmp_path: Path) -> Iterator[Path]:
    """Return a folder whose files are written in microseconds, where the system has such."""
    if not os.path.isdir("/dev/shm"):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


@pytest.mark.soak
def test_soak(in_memory: Path, tmp_path: Path) -> None:
    known = parsers.parsers(in_memory)
    check_whole(known)
    print(played(known, CASES, tmp_path), "cases")
