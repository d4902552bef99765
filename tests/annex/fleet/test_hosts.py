"""A fleet on hosts of its own. Each fault is a row of one table; `make hosts` runs all of them."""

from __future__ import annotations

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
from annex.fleet.hosts import NEEDED, Host, Store, hosts, send

pytestmark = [NEEDED, pytest.mark.hosts]
PLACE = "s3://bucket/out"


class Scene(NamedTuple):
    """Hosts, the store that they see, and the programs that they run."""

    hosts: list[Host]
    store: Store
    log: Path
    running: dict[str, subprocess.Popen[bytes]]

    def start(self, host: Host, fault: Fault) -> None:
        """Have a host be a machine of the fleet."""
        program = f"import sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r}); "
        program += f"from annex.fleet import job; job.main({PLACE!r}, {{'engine': {fault.engine!r}}})"
        given = {"TEST_MODEL_SECONDS": "1", **self.store.environment, **fault.given}
        self.running[host.name] = host.start([sys.executable, "-c", program], given, self.log)

    def wait_for(self, claims: int) -> None:
        """Wait until hosts have claimed so many slices; one of them may have ended."""
        while self.store.asked("/claim-") < claims:
            ended = [each.poll() is not None for each in self.running.values()]
            assert sum(ended) < 2, self.log.read_text()
            time.sleep(0.05)


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
    "the store is slow": Fault(lambda scene: scene.store.fail(20, 1.0, "late")),
    "the store fails often": Fault(lambda scene: scene.store.fail(20, 0.2, 503)),
    "the store answers nobody": Fault(lambda scene: scene.store.fail(10, 1.0, "drop")),
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
        lambda scene: send(scene.running[scene.hosts[0].name], signal.SIGTERM),
        engine="local",
        ends=(1,),
        says="ended by SIGTERM",
    ),
}


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with hosts(4) as (made, store):
        yield Scene(made, store, tmp_path / "log", {})


@pytest.mark.parametrize("name", FAULTS)
def test_hosts(name: str, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    fault, (it, *others) = FAULTS[name], scene.hosts
    begin = {"before": [it, None, *others], "with": [it, *others, None], "after": [*others, it, None]}
    for number, host in enumerate(begin[fault.begins]):
        if host is None:
            scene.wait_for(number)
            fault.happens(scene)
            continue
        if host is it and fault.begins == "after":
            scene.wait_for(number)
        scene.start(host, fault if host is it else Fault())
    code, *codes = [scene.running[host.name].wait(300) for host in (it, *others)]
    assert not any(codes) and code in fault.ends, (code, codes, scene.log.read_text())
    assert not code or fault.says in scene.log.read_text()
    for variable, value in scene.store.environment.items():
        monkeypatch.setenv(variable, value)
    job.check(PLACE)
