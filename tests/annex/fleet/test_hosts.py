"""A fleet on hosts of its own: network namespaces with a bridge between them, and a store behind it.

Each host has its own name, processes, ``/tmp`` and ``/dev/shm``, and sees the others by the network alone. It needs
root and ``ip``. Each fault is a row of one table; `make hosts` runs all of them.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Literal, NamedTuple

import pytest

from annex.fleet import job
from stores.conftest import client_of, environment_of, serving
from stores.proxy import Asked, Proxy

pytestmark = pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ip") is None, reason="needs root and ip")
APART = "--uts --mount --pid --fork --mount-proc --kill-child"
WORKER = int(re.sub(r"\D", "", os.environ.get("PYTEST_XDIST_WORKER", "")) or 0)
BRIDGE, NET = f"hr{WORKER}bridge", f"10.77.{WORKER}"


def ip(words: str) -> None:
    subprocess.run(["ip", *words.split()], check=True, capture_output=True)


class Host:
    """One machine, and the program that it runs."""

    running: subprocess.Popen[bytes] | None = None

    def __init__(self, number: int) -> None:
        self.name = f"hr{WORKER}n{number}"
        ip(f"netns add {self.name}")
        ip(f"link add {self.name} type veth peer name eth0 netns {self.name}")
        ip(f"link set {self.name} master {BRIDGE} up")
        ip(f"-n {self.name} addr add {NET}.{number + 1}/24 dev eth0")
        for link in ("lo", "eth0"):
            ip(f"-n {self.name} link set {link} up")

    def start(self, place: str, engine: str, environment: dict[str, str], log: Path) -> None:
        """Be a machine of the fleet."""
        program = f"import sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r}); "
        program += f"from annex.fleet import job; job.main({place!r}, {{'engine': {engine!r}}})"
        first = f"hostname {self.name} && mount -t tmpfs tmpfs /dev/shm && mkdir -p $TMPDIR && "
        first += 'mount -t tmpfs tmpfs $TMPDIR && exec "$@"'
        python = [sys.executable, "-c", program]
        with log.open("ab") as output:
            self.running = subprocess.Popen(
                [*f"ip netns exec {self.name} unshare {APART} sh -c".split(), first, "sh", *python],
                env={**os.environ, **environment, "TMPDIR": f"/tmp/{self.name}"},
                stdout=output,
                stderr=output,
            )  # fmt: skip

    def kill(self) -> None:
        assert self.running is not None
        self.running.kill()

    def send_away(self) -> None:
        """Send SIGTERM to the program, whose parent is what made the host."""
        assert self.running is not None
        pid = self.running.pid
        os.kill(int(Path(f"/proc/{pid}/task/{pid}/children").read_text()), signal.SIGTERM)

    def cut(self, seconds: float) -> None:
        """Take the link away for a while."""
        ip(f"link set {self.name} down")
        time.sleep(seconds)
        ip(f"link set {self.name} up")

    def end(self) -> int:
        """Return the code of the program once it has ended."""
        assert self.running is not None
        return self.running.wait(300)

    def close(self) -> None:
        if self.running is not None:
            self.running.kill()
            self.running.wait(20)
        ip(f"link del {self.name}")  # the namespace may outlive its name for a moment
        ip(f"netns del {self.name}")


class Scene(NamedTuple):
    """Hosts, the store that they see, and the output that they write."""

    hosts: list[Host]
    proxy: Proxy
    place: str
    log: Path

    def start(self, host: Host, fault: Fault) -> None:
        given = {"TEST_MODEL_SECONDS": "1", **environment_of(self.proxy.url), **fault.given}
        host.start(self.place, fault.engine, given, self.log)

    def wait_for(self, claims: int) -> None:
        """Wait until hosts have claimed so many slices; one of them may have ended."""
        while len({each.path for each in self.proxy.asked if "/claim-" in each.path}) < claims:
            running = [host.running for host in self.hosts if host.running is not None]
            assert sum(each.poll() is not None for each in running) < 2, self.log.read_text()
            time.sleep(0.05)

    def fail(self, seconds: float, share: float, fault: int | str) -> None:
        """Have the store spoil a share of its answers for a while."""
        dice = random.Random(0)

        def of(asked: Asked) -> int | str | None:
            return fault if dice.random() < share else None

        self.proxy.fault = of
        time.sleep(seconds)
        self.proxy.fault = lambda asked: None


class Fault(NamedTuple):
    """What happens to one of the hosts, or to the store, once hosts are at work.

    ``given``: to the program on that host, which begins before the others, with them or after them. ``ends``: the
    exit codes that it may have; ``says``: what it tells then.
    """

    happens: Callable[[Scene], None] = lambda scene: None
    begins: Literal["before", "with", "after"] = "with"
    given: Mapping[str, str] = MappingProxyType({})
    engine: str = "inline"
    ends: tuple[int, ...] = (0,)
    says: str = ""


FAULTS = {
    "nothing": Fault(),
    "it is killed": Fault(lambda scene: scene.hosts[0].kill(), ends=(-9,)),
    "it works alone, is killed, and others go on": Fault(
        lambda scene: scene.hosts[0].kill(), begins="before", ends=(-9,)
    ),
    "it is cut off for 10 s": Fault(lambda scene: scene.hosts[0].cut(10)),
    "it is cut off for 120 s": Fault(
        lambda scene: scene.hosts[0].cut(120), ends=(0, 1), says="OutputWriteFailed"
    ),
    "the store is slow": Fault(lambda scene: scene.fail(20, 1.0, "late")),
    "the store fails often": Fault(lambda scene: scene.fail(20, 0.2, 503)),
    "the store answers nobody": Fault(lambda scene: scene.fail(10, 1.0, "drop")),
    "it is ten times slower": Fault(given={"TEST_MODEL_SECONDS": "10"}),
    "its clock is late": Fault(given={"TEST_CLOCK": "-3600"}),
    "its clock is early": Fault(given={"TEST_CLOCK": "3600"}),
    "it has other code": Fault(
        begins="after",
        given={"TEST_CODE": "other"},
        ends=(1,),
        says="The code of map_batches(work) is not the same here",
    ),
    "it comes late": Fault(begins="after"),
    "it is sent away": Fault(
        lambda scene: scene.hosts[0].send_away(), engine="local", ends=(1,), says="ended by SIGTERM"
    ),
}
QUICK = ("it has other code",)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    for left in (f"link del {BRIDGE}", *(f"netns del hr{WORKER}n{number}" for number in range(4))):
        with contextlib.suppress(subprocess.CalledProcessError):  # of a test that was killed
            ip(left)
    ip(f"link add {BRIDGE} type bridge")
    made: list[Host] = []
    try:
        ip(f"addr add {NET}.254/24 dev {BRIDGE}")
        ip(f"link set {BRIDGE} up")
        made += [Host(number) for number in range(4)]
        with serving() as port:
            client_of(port)
            proxy = Proxy(port, f"{NET}.254")
            yield Scene(made, proxy, "s3://bucket/out", tmp_path / "log")
            proxy.close()
    finally:
        for host in made:
            host.close()
        ip(f"link del {BRIDGE}")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.hosts] * (name not in QUICK)) for name in FAULTS]
)
def test_hosts(name: str, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    fault, (it, *others) = FAULTS[name], scene.hosts[: 2 if name in QUICK else 4]
    begin = {"before": [it, None, *others], "with": [it, *others, None], "after": [*others, it, None]}
    for number, host in enumerate(begin[fault.begins]):
        if host is None:
            scene.wait_for(number)
            fault.happens(scene)
            continue
        if host is it and fault.begins == "after":
            scene.wait_for(number)
        scene.start(host, fault if host is it else Fault())
    code, *codes = [host.end() for host in (it, *others)]
    assert not any(codes) and code in fault.ends, (code, codes, scene.log.read_text())
    assert not code or fault.says in scene.log.read_text()
    for variable, value in environment_of(scene.proxy.url).items():
        monkeypatch.setenv(variable, value)
    job.check(scene.place)
