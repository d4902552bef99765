"""What control groups say of memory, told from trees of files that look like theirs."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from headrace.engines.deaths import Death, never_ready
from headrace.engines.local.machine import memory_limit, oom_kills


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


V2 = {
    "proc/self/cgroup": "0::/user.slice/job\n",
    "sys/fs/cgroup/user.slice/memory.max": "4000\n",
    "sys/fs/cgroup/user.slice/job/memory.max": "max\n",
    "sys/fs/cgroup/user.slice/job/memory.events": "low 0\noom 3\noom_kill 2\noom_group_kill 9\n",
}
CONTAINER = {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "3000\n"}
V1 = {
    "proc/self/cgroup": "5:devices:/\n4:cpu,memory:/a:b/c\n0::/\n",
    "sys/fs/cgroup/memory/a:b/c/memory.limit_in_bytes": "9223372036854771712\n",
    "sys/fs/cgroup/memory/a:b/memory.limit_in_bytes": "2000\n",
    "sys/fs/cgroup/memory/a:b/c/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n",
}
V1_CONTAINER = {
    "proc/self/cgroup": "4:memory:/docker/1234\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": "1000\n",
}


@pytest.mark.parametrize(
    ("files", "limit"),
    [(V2, 4000), (CONTAINER, 3000), (V1, 2000), (V1_CONTAINER, 1000), ({}, None)],
)
def test_the_tightest_group_counts(tmp_path: Path, files: dict[str, str], limit: int | None) -> None:
    assert memory_limit(tree(tmp_path, files)) == limit


@pytest.mark.parametrize(
    ("files", "kills"), [(V2, 2), (V1, 5), (CONTAINER, None), ({"proc/vmstat": "pgfault 3\noom_kill 7\n"}, 7)]
)
def test_what_the_kernel_ended_is_counted(tmp_path: Path, files: dict[str, str], kills: int | None) -> None:
    assert oom_kills(tree(tmp_path, files)) == kills


@pytest.mark.parametrize(
    ("out_of_memory", "says"),
    [
        (True, "SIGKILL (by the kernel, because memory ran out)"),
        (False, "SIGKILL (from outside)"),
        (None, "SIGKILL (by the kernel, if memory ran out)"),
    ],
)
def test_a_death_says_whether_memory_ran_out(out_of_memory: bool | None, says: str) -> None:
    assert says in str(Death(1, -signal.SIGKILL, "", "", out_of_memory))


def test_workers_that_never_became_ready_for_want_of_memory_say_so() -> None:
    deaths = [Death(1, -signal.SIGKILL, "loading m", "", True)] * 3
    assert "The kernel ended them because memory ran out." in never_ready("stage 1", deaths)
