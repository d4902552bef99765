"""A fleet on hosts of its own: network namespaces with a bridge between them, and a store behind it.

Each host has its own name, processes, ``/tmp`` and ``/dev/shm``, and sees the others by the network alone. It needs
root and ``ip``; `make hosts` runs it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from annex.fleet import job
from stores.conftest import client_of, environment_of

pytestmark = [
    pytest.mark.hosts,
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ip") is None, reason="needs root and ip"),
]
APART = "--uts --mount --pid --fork --mount-proc --kill-child"
NET, SERVER = "10.77.0", "10.77.0.254"


def ip(words: str) -> None:
    subprocess.run(["ip", *words.split()], check=True, capture_output=True)


class Host:
    """One machine; ``cut`` takes its link away."""

    def __init__(self, number: int) -> None:
        self.name = f"hr{number}"
        ip(f"netns add {self.name}")
        ip(f"link add {self.name} type veth peer name eth0 netns {self.name}")
        ip(f"link set {self.name} master hrbridge up")
        ip(f"-n {self.name} addr add {NET}.{number + 1}/24 dev eth0")
        for link in ("lo", "eth0"):
            ip(f"-n {self.name} link set {link} up")

    def start(self, place: str, environment: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
        """Be a machine of the fleet."""
        program = f"import sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r}); "
        program += f"from annex.fleet import job; job.main({place!r}, {{}})"
        first = f"hostname {self.name} && mount -t tmpfs tmpfs /dev/shm && mkdir -p $TMPDIR && "
        first += 'mount -t tmpfs tmpfs $TMPDIR && exec "$@"'
        python = [sys.executable, "-c", program]
        with log.open("ab") as output:
            return subprocess.Popen(
                [*f"ip netns exec {self.name} unshare {APART} sh -c".split(), first, "sh", *python],
                env={**os.environ, **environment, "TMPDIR": f"/tmp/{self.name}"},
                stdout=output,
                stderr=output,
            )  # fmt: skip

    def link(self, *, up: bool) -> None:
        ip(f"link set {self.name} {'up' if up else 'down'}")

    def close(self) -> None:
        subprocess.run(["ip", "netns", "del", self.name], check=False)


@pytest.fixture
def hosts() -> Iterator[list[Host]]:
    ip("link add hrbridge type bridge")
    made: list[Host] = []
    try:
        ip(f"addr add {SERVER}/24 dev hrbridge")
        ip("link set hrbridge up")
        made += [Host(number) for number in range(4)]
        yield made
    finally:
        for host in made:
            host.close()
        ip("link del hrbridge")


@pytest.fixture
def store(hosts: list[Host]) -> Iterator[dict[str, str]]:
    """An S3 server on this host; the environment that says where others find it."""
    port = 7480
    command = [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", "0.0.0.0", "-p", str(port)]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, **quiet) as server:  # type: ignore[call-overload]
        for _ in range(600):
            try:
                client_of(port)
                break
            except OSError:
                time.sleep(0.1)
        yield environment_of(f"http://{SERVER}:{port}")
        server.kill()


@pytest.mark.parametrize("fault", ["none", "killed", "cut for 10 s", "cut for 60 s"])
def test_four_hosts(
    fault: str, hosts: list[Host], store: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, place = tmp_path / "log", "s3://bucket/out"
    running = [host.start(place, {**store, "TEST_MODEL_SECONDS": "1.5"}, log) for host in hosts]
    time.sleep(5.0)
    if fault == "killed":
        running[0].send_signal(signal.SIGKILL)
    elif fault != "none":
        hosts[0].link(up=False)
        time.sleep(float(fault.split()[2]))
        hosts[0].link(up=True)
    codes = [each.wait(300) for each in running]
    assert codes[1:] == [0, 0, 0], log.read_text()
    if codes[0] and fault != "killed":  # it was away for too long, and says so
        assert "headrace.errors.OutputWriteFailed" in log.read_text()
    for name, value in store.items():
        monkeypatch.setenv(name, value)
    job.check(place)
