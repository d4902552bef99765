"""Ray nodes on this machine that are like other machines."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

STORE = 100 << 20
ELSEWHERE = {"resources": {"elsewhere": 1}}
MARKS = [
    pytest.mark.ray,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A cluster whose head has no cores."""
    import ray
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        soon = {"health_check_initial_delay_ms": 500, "health_check_period_ms": 500}
        has = {"num_cpus": 0, "object_store_memory": STORE, "_system_config": soon}
        made = Cluster(initialize_head=True, head_node_args=has)
        ray.init(address=made.address, log_to_driver=False)
        yield made.address
        ray.shutdown()
        made.shutdown()


@pytest.fixture
def hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The temporary folder of this process, where it stages; nodes elsewhere have something else there."""
    folder = tmp_path / "hidden"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


@contextlib.contextmanager
def node_elsewhere(
    address: str, hidden: Path | None, cpus: int = 1, env: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A node with the resource "elsewhere" that has a disk of its own in the place of the folder ``hidden``."""
    command = shutil.which("ray", path=os.path.dirname(sys.executable))
    namespaces = subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode == 0
    if command is None or not namespaces:
        pytest.skip("needs root, unshare, and Ray's command line")
    resources = f"--resources={json.dumps({'elsewhere': cpus})}"
    has = [f"--num-cpus={cpus}", resources, f"--object-store-memory={STORE}"]
    start = [command, "start", f"--address={address}", *has, "--block"]
    mount = f"mount -t tmpfs none {hidden}" if hidden is not None else "true"
    text = f"{mount} && exec {' '.join(map(repr, start))}"
    node = subprocess.Popen(
        ["unshare", "-m", "sh", "-c", text],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={**os.environ, **(env or {})},
    )
    try:
        yield node
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(node.pid, signal.SIGTERM)
        node.wait()
