"""The cluster: how this process connects to one, what it has, whether it checks who connects, and what it says."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import psutil
import ray
import ray.exceptions

from headrace.core.engine_ports import Capacity
from headrace.core.human import size
from headrace.engines.deaths import Death
from headrace.engines.local import machine
from headrace.errors import EngineError, HeadraceError, ResourcesUnavailable, UnsafeCluster

_ASK_WITHIN = 60.0  # seconds
_REFRESH_EVERY = 2.0


def connect(address: str = "", *, allow_unauthenticated: bool = False) -> None:
    """Connect this process to a cluster, unless it is connected: to ``address``, to ``RAY_ADDRESS``, to one that
    runs on this machine, or to one that is started here, and that ends with this process.

    Raises ``EngineError`` if there is nobody at the address, or if this process is connected to another cluster;
    ``UnsafeCluster`` for a cluster on other machines without authentication.
    """
    if address and ray.is_initialized():
        _check_same_cluster(address)
    address = address or os.environ.get("RAY_ADDRESS", "")
    if not ray.is_initialized():
        try:
            _init(address)
        except (ConnectionError, ray.exceptions.RayError, RuntimeError, ValueError) as error:
            raise EngineError(
                f"There is no connection to the Ray cluster{f' at {address}' if address else ''}: {error}"
            ) from error
    if not allow_unauthenticated:
        check_authentication(remote_nodes(address))


def _check_same_cluster(address: str) -> None:
    """Raise ``EngineError`` if this process is connected to another cluster: it can be connected to one."""
    here = _connected_to()
    if here and not _same_host(here, address.removeprefix("ray://")):
        raise EngineError(
            f"engine={address!r}, and this process is connected to the Ray cluster at {here}, another one. Leave "
            "the address out (engine='ray') to work there; or call ray.shutdown() before, or do without ray.init()."
        )


def _connected_to() -> str:
    """Return the address of the cluster that this process is connected to; "" if Ray does not say."""
    from ray.util.client import ray as client

    with contextlib.suppress(Exception):
        if client.is_connected():  # Ray has no public name for this
            return str(client.get_context().client_worker._conn_str)
        return str(ray.get_runtime_context().gcs_address)
    return ""


def _same_host(one: str, other: str) -> bool:
    hosts = {_resolved(address.rpartition(":")[0]) for address in (one, other)}
    return len(hosts) == 1 or hosts <= _ours()


def _init(address: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # tips about later versions of Ray
        if address:
            ray.init(address=address)
            return
        try:
            ray.init(address="auto")  # one that was started on this machine
        except ConnectionError:
            ray.init(address="local", num_cpus=machine.capacity().cpus, include_dashboard=False)


def capacity() -> Capacity:
    """Return what all machines of the cluster have together; ``memory`` is that of their object stores."""
    resources = ray.cluster_resources()
    store = int(resources.get("object_store_memory", 0))
    return Capacity(int(resources.get("CPU", 0)), store, int(resources.get("GPU", 0)))


def offered() -> str:
    """Say what the cluster has, and how much of it is free."""
    machines = sum(node["Alive"] for node in ray.nodes())
    free = amounts_in_words(_counted(ray.available_resources()))
    return (
        f"{machines} node{'' if machines == 1 else 's'} with {amounts_in_words(_counted(ray.cluster_resources()))}"
        f" ({f'{free} free' if free else 'nothing free'})"
    )


def _counted(resources: dict[str, Any]) -> dict[str, float]:
    return {name: amount for name, amount in sorted(resources.items()) if not name.startswith("node:")}


class DrainingNodes:
    """The nodes that are about to go, because the cluster shrinks or a spot machine is taken back."""

    def __init__(self) -> None:
        self._refreshed = 0.0
        self._found: frozenset[str] = frozenset()

    def __contains__(self, node: str) -> bool:
        return node in self._found

    def refresh(self) -> None:
        """Ask the cluster, now and then."""
        now = time.monotonic()
        if now - self._refreshed < _REFRESH_EVERY:
            return
        self._refreshed = now
        # Ray has no public name for this; where it is not found, nodes go without notice.
        with contextlib.suppress(Exception):
            client = ray._private.worker.global_worker.gcs_client
            self._found = frozenset(client.get_draining_nodes(timeout=_REFRESH_EVERY))


# ---------------------------------------------------------------- authentication


def check_authentication(others: Sequence[str]) -> None:
    """Raise ``UnsafeCluster`` for a cluster on ``others``, machines that are not this one, without authentication."""
    if not others:
        return
    mode = ray.remote(num_cpus=0)(_mode_there)
    try:
        found = ray.get(mode.remote(), timeout=_ASK_WITHIN)
    except ray.exceptions.GetTimeoutError:
        found = os.environ.get("RAY_AUTH_MODE", "")
    if found.lower() in ("", "disabled"):
        raise UnsafeCluster(
            f"The Ray cluster has machines elsewhere ({', '.join(others[:3])}{', …' if len(others) > 3 else ''}) and "
            "does not ask who connects: whoever reaches its ports can run any code there, and read this run's data. "
            "Start it with RAY_AUTH_MODE=token, and give the token here by RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH. "
            "Where the network keeps others out, engine=hr.Ray(allow_unauthenticated=True) or "
            "HEADRACE_ALLOW_UNAUTHENTICATED=1 with engine='ray' uses it anyway."
        )


def _mode_there() -> str:
    return os.environ.get("RAY_AUTH_MODE", "")


def remote_nodes(address: str) -> list[str]:
    """Return the machines of the cluster, and of the address by which we came, that are not this one."""
    nodes = [str(node["NodeManagerAddress"]) for node in ray.nodes() if node["Alive"]]
    if address.startswith("ray://"):
        nodes.append(_resolved(address.removeprefix("ray://").rpartition(":")[0]))
    ours = _ours()
    return [node for node in dict.fromkeys(nodes) if node not in ours]


def _ours() -> set[str]:
    found = {each.address for addresses in psutil.net_if_addrs().values() for each in addresses}
    return {"127.0.0.1", "::1", "localhost", *found}


def _resolved(host: str) -> str:
    try:
        return socket.gethostbyname(host)
    except OSError:
        return host


# ---------------------------------------------------------------- errors and amounts as text


def cause_of_death(error: BaseException) -> tuple[str, bool]:
    """Say how an actor ended, and whether that was because its machine is gone."""
    text = str(error)
    preempted = bool(getattr(error, "preempted", False) or getattr(error, "_preempted", False))
    if preempted or re.search(r"node (was|is|has|died)|node has died|its node", text, re.IGNORECASE):
        return "the machine that it was on is gone", True
    found = re.search(r"exit detail: (.*?)(?:\. Some common causes|$)", text, re.DOTALL)
    pid = re.search(r"pid: (\d+)", text)
    who = f"worker process {pid.group(1)} ended" if pid else "a worker process ended"
    return f"{who}: {' '.join(found.group(1).split())}" if found else f"{who}: {first_line(error)}", False


def was_killed(error: BaseException) -> bool:
    """Say whether an actor ended because we killed it; or, as far as Ray knows, has not ended yet."""
    return bool(re.search(r"ray\.kill|unavailable", str(error), re.IGNORECASE))


def first_line(error: BaseException) -> str:
    """Return what an error says, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines)[:500] or type(error).__name__


def never_ready(pool: str, deaths: Sequence[Death]) -> str:
    """Say that workers of a pool ended, one after another, before any of them could work."""
    last = deaths[-1]
    return (
        f"{len(deaths)} workers of {pool} in a row ended before they could work, the last one while "
        f"{last.preparing}: {last.last_words}. Something there takes the process down: try it in a Python process of "
        "its own to see what; or memory ran out."
    )


def not_shared(path: str, place: str) -> HeadraceError:
    """Say that a machine does not see the output."""
    return ResourcesUnavailable(
        f"The workers on {place} do not see the output folder: {path}, which this process has just written, is "
        "not there. On several machines the input and the output have to lie where all of them find them by the "
        "same path: in a network folder that each has mounted, or in an object store. For a table of a database, "
        "output= names the folder. Nothing was written there."
    )


def asked_for(options: Mapping[str, Any]) -> str:
    """Say what a worker needs."""
    names = {"num_cpus": "CPU", "num_gpus": "GPU"}
    amounts = {named: options.get(name, name == "num_cpus") for name, named in names.items()}
    amounts |= {"memory": options.get("memory", 0), **options.get("resources", {})}
    labels = {f"label {name}": value for name, value in options.get("label_selector", {}).items()}
    return amounts_in_words(amounts) + "".join(f", {name}: {value}" for name, value in labels.items())


def amounts_in_words(amounts: Mapping[str, float]) -> str:
    """Say how much of each there is; nothing of what there is none of."""
    return ", ".join(
        f"{name}: {size(amount, digits=2)}" if "memory" in name else f"{name}: {amount:g}"
        for name, amount in amounts.items()
        if amount
    )
