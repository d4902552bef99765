"""Ray's ``ray.util.state``: actors and the one node. Calls that are over are not kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.compat.ray.offered import missing
from headrace.compat.ray.session import nodes, session

__all__ = ["list_actors", "list_nodes"]


def list_actors(filters: Sequence[tuple[str, str, Any]] = (), **_: Any) -> list[dict[str, Any]]:
    """Describe the actors that live; ``filters`` such as ``("state", "=", "ALIVE")``."""
    core = session()._core
    names = {id(actor._life): name for name, actor in core._names.items()}
    made = [
        {"name": names.get(id(life), ""), "state": "ALIVE", "class_name": life._construction.label}
        for life in list(core.dispatcher._actors)
        if life.alive
    ]
    return [
        each
        for each in made
        if all((each.get(key) == value) == (sign == "=") for key, sign, value in filters)
    ]


def list_nodes(**_: Any) -> list[dict[str, Any]]:
    """Describe the one machine."""
    return [
        {"node_id": node["NodeID"], "state": "ALIVE", "node_ip": node["NodeManagerAddress"]}
        for node in nodes()
    ]


def __getattr__(name: str) -> Any:
    raise missing("ray.util.state", name, __all__, "calls that are over are not kept")
