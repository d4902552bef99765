"""Hosts on this machine: network namespaces with a bridge between them, and a store behind it.

Each host has its own name, processes, ``/dev/shm`` and ``$TMPDIR``, and sees the others by the network alone. It
needs root and ``ip``.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from stores.conftest import client_of, environment_of, serving
from stores.proxy import Asked, Proxy

NEEDED = pytest.mark.skipif(
    os.geteuid() != 0 or not all(map(shutil.which, ("ip", "unshare", "nsenter"))), reason="needs root and ip"
)
WORKER = int(re.sub(r"\D", "", os.environ.get("PYTEST_XDIST_WORKER", "")) or 0)
BRIDGE, NET = f"hr{WORKER}bridge", f"10.77.{WORKER}"
BOOT = "hostname {0} && mkdir -p $TMPDIR && mount -t tmpfs tmpfs /dev/shm && mount -t tmpfs tmpfs $TMPDIR && "
BOOT += "exec sleep infinity"


def ip(words: str) -> None:
    subprocess.run(["ip", *words.split()], check=True, capture_output=True)


class Host:
    """One machine, on which programs are started."""

    def __init__(self, number: int) -> None:
        self.name, self.address = f"hr{WORKER}n{number}", f"{NET}.{number + 1}"
        ip(f"netns add {self.name}")
        ip(f"link add {self.name} type veth peer name eth0 netns {self.name}")
        ip(f"link set {self.name} master {BRIDGE} up")
        ip(f"-n {self.name} addr add {self.address}/24 dev eth0")
        for link in ("lo", "eth0"):
            ip(f"-n {self.name} link set {link} up")
        apart = (
            f"ip netns exec {self.name} unshare --uts --mount --pid --fork --mount-proc --kill-child sh -c"
        )
        self._given = {**os.environ, "TMPDIR": f"/tmp/{BRIDGE}"}
        self._up = subprocess.Popen([*apart.split(), BOOT.format(self.name)], env=self._given)
        while self._first() is None or Path(f"/proc/{self._first()}/comm").read_text() != "sleep\n":
            time.sleep(0.01)

    def _first(self) -> str | None:
        """Return the first process of the host, in which all others end."""
        pid = self._up.pid
        return Path(f"/proc/{pid}/task/{pid}/children").read_text().strip() or None

    def start(
        self, command: Sequence[str], environment: dict[str, str], log: Path
    ) -> subprocess.Popen[bytes]:
        """Start a program; its process here is the parent of the one there."""
        enter = f"nsenter --target {self._first()} --uts --mount --pid --net --"
        given = {**self._given, **environment}
        with log.open("ab") as output:
            return subprocess.Popen([*enter.split(), *command], env=given, stdout=output, stderr=output)

    def kill(self) -> None:
        """Have the host die, with all that runs on it."""
        self._up.kill()
        self._up.wait(20)

    def cut(self, seconds: float) -> None:
        """Take the link away for a while."""
        ip(f"link set {self.name} down")
        time.sleep(seconds)
        ip(f"link set {self.name} up")

    def close(self) -> None:
        self.kill()
        ip(f"link del {self.name}")  # the namespace may outlive its name for a moment
        ip(f"netns del {self.name}")


def send(program: subprocess.Popen[bytes], number: int) -> None:
    """Send a signal to a program on a host, whose parent is what entered the host."""
    pid = program.pid
    os.kill(int(Path(f"/proc/{pid}/task/{pid}/children").read_text()), number)


class Store:
    """The store that hosts see, through a proxy."""

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy
        self.environment = environment_of(proxy.url)

    def asked(self, what: str) -> int:
        """Return how many objects with this in their names were asked for or put."""
        return len({each.path for each in self.proxy.asked if what in each.path})

    def fail(self, seconds: float, share: float, fault: int | str) -> None:
        """Have the store spoil a share of its answers for a while."""
        dice = random.Random(0)

        def of(asked: Asked) -> int | str | None:
            return fault if dice.random() < share else None

        self.proxy.fault = of
        time.sleep(seconds)
        self.proxy.fault = lambda asked: None


@contextlib.contextmanager
def hosts(number: int) -> Iterator[tuple[list[Host], Store]]:
    """Have so many hosts, and a store with the bucket "bucket"."""
    for left in (f"link del {BRIDGE}", *(f"netns del hr{WORKER}n{each}" for each in range(number))):
        with contextlib.suppress(subprocess.CalledProcessError):  # of a test that was killed
            ip(left)
    ip(f"link add {BRIDGE} type bridge")
    made: list[Host] = []
    try:
        ip(f"addr add {NET}.254/24 dev {BRIDGE}")
        ip(f"link set {BRIDGE} up")
        made += [Host(each) for each in range(number)]
        with serving() as port:
            client_of(port)
            proxy = Proxy(port, f"{NET}.254")
            yield made, Store(proxy)
            proxy.close()
    finally:
        for host in made:
            host.close()
        ip(f"link del {BRIDGE}")
