"""A Ray cluster of hosts that are namespaces of networks, and what may happen to them while a job runs there.

The hosts are those of ``annex/fleet/test_hosts.py``; `make hosts` runs these, too. The first has Ray's head, no
cores for work, and the driver; each of the others one core.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from annex.fleet import job
from annex.fleet.hosts import NEEDED, Host, Store, hosts, send
from annex.ray.ray_nodes import MARKS, STORE

if importlib.util.find_spec("ray") is None:
    pytest.skip("Ray is not installed", allow_module_level=True)

pytestmark = [*MARKS, NEEDED, pytest.mark.hosts]
RAY = str(shutil.which("ray", path=os.path.dirname(sys.executable)))
SOON = json.dumps({"health_check_initial_delay_ms": 500, "health_check_period_ms": 1_000})


class Scene(NamedTuple):
    """A head, nodes that have a core each, and the store that they see."""

    head: Host
    nodes: list[Host]
    store: Store
    log: Path

    def begin(self, host: Host, seconds: str = "0.5") -> None:
        """Start Ray on a host, whose workers take so long for a batch."""
        has = [f"--node-ip-address={host.address}", f"--object-store-memory={STORE}", "--block"]
        if host is self.head:
            has += ["--head", "--port=6379", "--num-cpus=0", "--include-dashboard=false"]
            has += [f"--system-config={SOON}"]
        else:
            has += [f"--address={self.head.address}:6379", "--num-cpus=1"]
        host.start([RAY, "start", *has], self.environment(seconds), self.log)
        while host is self.head:
            with contextlib.suppress(OSError):
                return socket.create_connection((host.address, 6379), 1).close()
            time.sleep(0.1)

    def environment(self, seconds: str) -> dict[str, str]:
        given = {
            "RAY_AUTH_MODE": "disabled",
            "TEST_MODEL_SECONDS": seconds,
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        return {**given, **self.store.environment, "RAY_ADDRESS": f"{self.head.address}:6379"}

    def drive(self, host: Host) -> subprocess.Popen[bytes]:
        """Run the job from a host."""
        return host.start([sys.executable, __file__], self.environment(""), self.log)

    def wait_for(self, parts: int) -> None:
        """Wait until so many parts are in the store."""
        end = time.monotonic() + 300
        while self.store.asked("/part-") < parts:
            assert time.monotonic() < end, self.log.read_text()[-4000:]
            time.sleep(0.05)


class Fault(NamedTuple):
    """What happens once parts are in the store; or a node that is slow, or there later."""

    happens: Callable[[Scene], None] = lambda scene: None
    seconds: str = "0.5"
    late: bool = False
    driver: bool = False  # whether the driver is killed, and another host has the job go on


FAULTS = {
    "nothing": Fault(),
    "a node is killed": Fault(lambda scene: scene.nodes[0].kill()),
    "a node is cut off for 10 s": Fault(lambda scene: scene.nodes[0].cut(10)),
    "a node is cut off for 120 s": Fault(lambda scene: scene.nodes[0].cut(120)),
    "the driver is killed": Fault(driver=True),
    "the store is slow": Fault(lambda scene: scene.store.fail(20, 1.0, "late")),
    "the store fails often": Fault(lambda scene: scene.store.fail(20, 0.2, 503)),
    "a node is ten times slower": Fault(seconds="5"),
    "a node comes late": Fault(lambda scene: scene.begin(scene.nodes[0]), late=True),
}


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with hosts(4) as (made, store):
        yield Scene(made[0], made[1:], store, tmp_path / "log")


@pytest.mark.parametrize("name", FAULTS)
def test_ray_hosts(name: str, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    fault, (it, *others) = FAULTS[name], scene.nodes
    scene.begin(scene.head)
    for node in others:
        scene.begin(node)
    if not fault.late:
        scene.begin(it, fault.seconds)
    driver = scene.drive(scene.head)
    scene.wait_for(2)
    if fault.driver:
        send(driver, signal.SIGKILL)
        while (driver := scene.drive(others[0])).wait(400) == 1:  # until the lease of the first has ended
            assert scene.log.read_text().rpartition("Traceback")[2].count("RunLocked") == 1
    fault.happens(scene)
    assert driver.wait(400) == 0, scene.log.read_text()[-6000:]
    for variable, value in scene.store.environment.items():
        monkeypatch.setenv(variable, value)
    job.check("s3://bucket/out")


if __name__ == "__main__":
    import headrace as hr

    os.environ.pop("TEST_MODEL_SECONDS")
    data = job.dataset(fleet=False, engine=hr.Ray(pool_timeout=300, allow_unauthenticated=True))
    print(data.write_parquet("s3://bucket/out"))
