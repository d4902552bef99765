"""One limiter for all who use a key: rates, pauses, and how much is under way."""

from __future__ import annotations

import asyncio
import itertools
import os
import stat

import pytest

from headrace.annex.llm import limiter as limiters
from headrace.annex.llm.limiter import BURST_SECONDS, UTILISATION, Limiter, SharedState, state_path
from headrace.core.waiting import lock, unlock, when_free
from headrace.testing import FakeClock


class Clock(FakeClock):
    """It begins in our days."""

    def __call__(self) -> float:
        return 1_700_000_000.0 + super().__call__()


def limiter(path, clock, **options) -> Limiter:
    return Limiter(SharedState(None if path is None else str(path)), clock=clock, **{"most": 10, **options})


def test_two_workers_keep_a_rate_together(tmp_path):
    clock = Clock()
    pair = [limiter(tmp_path / "state", clock, requests_per_minute=600) for _ in range(2)]
    begin = clock()
    times = sorted(pair[i % 2].reserve(0) - begin for i in range(101))
    rate = 10 * UTILISATION
    assert times[-1] == pytest.approx(100 / rate - BURST_SECONDS, abs=0.01)
    later = [b - a for a, b in itertools.pairwise(times[6:])]
    assert later == pytest.approx([1 / rate] * len(later), abs=1e-3)


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
