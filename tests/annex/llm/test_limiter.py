"""One limiter for all who use a key: rates, pauses, and how much is under way."""

from __future__ import annotations

import asyncio
import itertools
import os
import stat
import subprocess
import sys
import time

import pytest

from headrace.annex.llm import limiter as limiters
from headrace.annex.llm.limiter import (
    BURST_SECONDS,
    LATE_SECONDS,
    UTILISATION,
    Limiter,
    SharedState,
    pause_of,
    retry_after,
    state_path,
)
from headrace.core.process import lock, unlock, when_free
from headrace.testing import FakeClock

BURST_TURNS = 30
"""At first, turns that were due before come at once."""


class Clock(FakeClock):
    """It begins in our days."""

    def __call__(self) -> float:
        return 1_700_000_000.0 + super().__call__()


def limiter(path, clock, **options) -> Limiter:
    return Limiter(SharedState(None if path is None else str(path)), clock=clock, **{"most": 10, **options})


FOUR = """
import sys
from headrace.annex.llm.limiter import Limiter, SharedState

path, most = sys.argv[1], int(sys.argv[2])
one = Limiter(SharedState(path), most=10, requests_per_minute=1200, tokens_per_minute=60_000, clock=lambda: 1.7e9)
print("ready", flush=True)
sys.stdin.readline()
taken = 0
while taken < most:
    try:
        print(one.reserve(51 + taken % 9) - 1.7e9)
        taken += 1
    except BlockingIOError:  # another looks
        pass
"""


def test_four_processes_keep_rates_exactly(tmp_path):
    """No two get the same turn, none is lost, and no minute has more than its requests and its tokens."""
    command = [sys.executable, "-c", FOUR, str(tmp_path / "state"), "900"]
    four = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(4)
    ]
    for each in four:
        assert each.stdout.readline() == "ready\n"
    for each in four:
        each.stdin.write("go\n")
        each.stdin.flush()
    turns = [[float(line) for line in each.communicate()[0].split()] for each in four]
    tokens = [(at, 51 + i % 9) for own in turns for i, at in enumerate(own)]
    assert len(tokens) == 3600 and all(own == sorted(own) for own in turns)
    tokens.sort()
    at = [moment for moment, _ in tokens]
    assert all(later > earlier for earlier, later in itertools.pairwise(at[BURST_TURNS:]))
    most = 60.0 - BURST_SECONDS - LATE_SECONDS  # what is sent late may fall into the minute of what follows
    for i in range(0, 3600, 7):
        minute = [count for moment, count in tokens[i:] if moment < tokens[i][0] + most]
        assert len(minute) <= 1200 and sum(minute) <= 60_000
    rate = 60_000 / 60 * UTILISATION
    assert at[-1] == pytest.approx(sum(count for _, count in tokens[:-1]) / rate - BURST_SECONDS, abs=0.1)


def test_tokens_that_small_requests_leave_are_not_saved_up(tmp_path):
    """Turns are given before they come: a rate that another one holds back must not catch up later."""
    one = limiter(tmp_path / "state", Clock(), requests_per_minute=600, tokens_per_minute=6_000)
    turns = [(one.reserve(tokens), tokens) for tokens in [0] * 300 + [100] * 60 + [0] * 300 + [100] * 60]
    most = 60.0 - BURST_SECONDS - LATE_SECONDS
    for i, (begin, _) in enumerate(turns):
        minute = [tokens for at, tokens in turns[i:] if at < begin + most]
        assert len(minute) <= 600 and sum(minute) <= 6_000


def test_what_was_not_used_is_not_saved_up(tmp_path):
    clock = Clock()
    one = limiter(tmp_path / "state", clock, requests_per_minute=60)
    one.reserve(0)
    clock.advance(600)
    at = [one.reserve(0) - clock() for _ in range(3)]
    assert at == pytest.approx(
        [0.0, 1 / UTILISATION - BURST_SECONDS, 2 / UTILISATION - BURST_SECONDS], abs=1e-3
    )


def test_tokens_count_and_are_corrected(tmp_path):
    clock = Clock()
    one = limiter(tmp_path / "state", clock, tokens_per_minute=6_000)  # 100 a second
    one.reserve(1_000)
    one.used(1_000, 100)
    assert one.reserve(1) - clock() == pytest.approx(1 / UTILISATION - BURST_SECONDS, abs=1e-3)


def test_a_pause_is_for_all_and_does_not_outlive_a_clock_that_was_set(tmp_path):
    clock = Clock()
    one, other = (limiter(tmp_path / "state", clock) for _ in range(2))
    one.block(30)
    assert other.reserve(0) - clock() == pytest.approx(30)
    assert other.blocked_until() - clock() == pytest.approx(30)
    clock.advance(-100_000)
    assert other.reserve(0) == clock()


def test_workers_share_what_may_be_under_way_and_those_who_are_gone_leave_theirs(tmp_path):
    clock = Clock()
    three = [limiter(tmp_path / "state", clock, most=10) for _ in range(3)]
    for each in three:
        each.share()
    assert sorted(each.share() for each in three) == [3, 3, 4]
    clock.advance(limiters.SILENT_SECONDS + 1)
    assert three[0].share() == 10
    assert three[1].share() == 5
    three[1].close()
    assert three[0].share() == 10


def test_overload_takes_away_once_for_requests_that_were_under_way_together(tmp_path):
    clock = Clock()
    one = limiter(tmp_path / "state", clock, most=100)
    sent = clock()
    clock.advance(1)
    assert one.landed(sent, overloaded=True) == 70
    assert one.landed(sent, overloaded=True) == 70
    clock.advance(1)
    assert one.landed(clock() - 0.5, overloaded=True) == 49
    for _ in range(49):
        one.landed(clock(), overloaded=False)
    assert one.share() == 49 or one.share() == 50
    for _ in range(20_000):
        one.landed(clock(), overloaded=False)
    assert one.share() == 100
    for _ in range(60):
        clock.advance(1)
        one.landed(clock() - 0.5, overloaded=True)
    assert one.share() == 1


def test_the_loop_goes_on_while_another_worker_looks(tmp_path):
    path = tmp_path / "state"
    one = limiter(path, Clock())
    one.share()
    fd = os.open(path, os.O_RDWR)  # as a worker has it that was stopped in the middle
    lock(fd)

    async def waits() -> float:
        loop = asyncio.get_running_loop()
        loop.call_later(0.01, unlock, fd)  # never called, if the loop stood still
        return await when_free(one.reserve, 0)

    assert asyncio.run(asyncio.wait_for(waits(), 30)) == Clock()()
    lock(fd)
    one.close()
    os.close(fd)


def test_a_torn_file_is_a_new_one(tmp_path):
    path = tmp_path / "state"
    path.write_bytes(b"hrlimit1 and then something else")
    assert limiter(path, Clock()).reserve(0) == Clock()()


def test_the_file_is_private_and_does_not_tell_the_key(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    path = state_path("http://x", "sk-very-secret")
    SharedState(path).close()
    assert path.startswith(str(tmp_path)) and "secret" not in path
    assert stat.S_IMODE(os.stat(os.path.dirname(path)).st_mode) == 0o700
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert path != state_path("http://x", "sk-other") != state_path("http://y", "sk-other")


def test_a_folder_that_others_may_write_to_is_not_used(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "headrace-limits").mkdir()
    (tmp_path / "headrace-limits").chmod(0o777)
    (tmp_path / f"headrace-limits-{os.getuid()}").symlink_to(tmp_path)
    assert state_path("http://x", None) is None


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "7"}, 7.0),
        ({"retry-after-ms": "1500", "Retry-After": "7"}, 1.5),
        ({"Retry-After": "-3"}, 0.0),
        ({"Retry-After": "nan"}, None),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": "5, 7"}, None),
        ({"Retry-After": "9" * 400}, 366 * 86_400.0),
        ({"Date": "Fri, 27 Nov 2026 04:00:00 GMT", "Retry-After": "Fri, 27 Nov 2026 04:00:07 GMT"}, 7.0),
        ({"Date": "Fri, 27 Nov 2026 04:00:00 GMT", "Retry-After": "Mon, 01 Jan 0001 00:00:00 GMT"}, 0.0),
    ],
)
def test_how_long_a_server_wants_to_be_left_alone(headers, seconds):
    assert retry_after(headers) == seconds


def test_pauses_of_all_kinds_of_headers():
    at = time.time() + 20
    moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))
    for kind, reset, expected in (
        ("x-ratelimit-{}-tokens", "1m30s", 60.0),  # no longer: what is left is known then
        ("x-ratelimit-{}-requests", "120ms", 0.12),
        ("anthropic-ratelimit-input-tokens-{}", moment, 20),
        ("X-RateLimit-{}", str(int(at * 1000)), 20),
        ("X-RateLimit-{}", str(int(at)), 20),
        ("ratelimit-{}", "7", 7.0),
        ("ratelimit-{}", "yesterday", None),
        ("ratelimit-{}", "9" * 400, 60.0),
    ):
        headers = {kind.format("remaining"): "0", kind.format("reset"): reset}
        found = pause_of(headers)
        assert found == (expected if expected is None else pytest.approx(expected, abs=2)), headers
        assert pause_of({**headers, kind.format("remaining"): "1"}) is None
