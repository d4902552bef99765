"""Ray's ``ray.util``, and its ``state``: actors and the one node. Calls that are over are not kept."""

from __future__ import annotations

import copyreg
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from headrace.compat.ray.calls import get, wait
from headrace.compat.ray.offered import missing, parts_of
from headrace.compat.ray.placement import (
    get_current_placement_group,
    get_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from headrace.compat.ray.pools import ActorPool
from headrace.compat.ray.session import nodes, session

__all__ = [
    "ActorPool", "as_completed", "deregister_serializer", "get_current_placement_group", "get_node_ip_address",
    "get_placement_group", "inspect_serializability", "list_named_actors", "log_once", "map_unordered",
    "placement_group", "placement_group_table", "register_serializer", "remove_placement_group",
]  # fmt: skip
globals().update(parts_of(__name__) | globals())  # placement_group is a function, and a module


def as_completed(refs: Sequence[Any], *, chunk_size: int = 10, yield_obj_refs: bool = False) -> Iterator[Any]:
    """Yield the results of calls as they come."""
    left = list(refs)
    while left:
        done, left = wait(left, num_returns=1)
        yield from done if yield_obj_refs else get(done)


def map_unordered(
    fn: Any, items: Iterable[Any], *, backpressure_size: int = 100, chunk_size: int = 10
) -> Iterator[Any]:
    """Yield what a remote function returns for each item, as it comes; so many are under way at most."""
    left: list[Any] = []
    for item in items:
        left.append(fn.remote(item))
        if len(left) >= backpressure_size:
            done, left = wait(left, num_returns=1)
            yield from get(done)
    yield from as_completed(left)


_logged: set[str] = set()


def log_once(key: str) -> bool:
    """Say whether this is the first time that somebody asks for ``key`` in this process."""
    first = key not in _logged
    _logged.add(key)
    return first


def get_node_ip_address() -> str:
    """Return the address of the one machine."""
    return "127.0.0.1"


def list_named_actors(all_namespaces: bool = False) -> list[Any]:
    """Return the names of the actors that live."""
    names = sorted(name for name, actor in session()._core._names.items() if actor._life.alive)
    return [{"namespace": "", "name": name} for name in names] if all_namespaces else list(names)


def register_serializer(
    cls: type, *, serializer: Callable[..., Any], deserializer: Callable[..., Any]
) -> None:
    """Have objects of a class written by ``serializer``, and made again by ``deserializer``, in this process."""
    copyreg.pickle(cls, lambda value: (deserializer, (serializer(value),)))


def deregister_serializer(cls: type) -> None:
    """Forget what ``register_serializer`` was told."""
    copyreg.dispatch_table.pop(cls, None)


def inspect_serializability(base_obj: Any, name: str | None = None, **_: Any) -> tuple[bool, set[str]]:
    """Say whether a thing can travel to a worker, and why not.

    >>> inspect_serializability(len)
    (True, set())
    """
    import cloudpickle

    try:
        cloudpickle.dumps(base_obj)
    except Exception as error:
        return False, {f"{name or base_obj!r}: {type(error).__name__}: {error}"}
    return True, set()


def list_actors(filters: Sequence[tuple[str, str, Any]] = (), **_: Any) -> list[dict[str, Any]]:
    """Describe the actors that live; ``filters`` such as ``("state", "=", "ALIVE")``."""
    core = session()._core
    names = {id(actor._life): name for name, actor in core._names.items()}
    made = [
        {"name": names.get(id(life), ""), "state": "ALIVE", "class_name": life.construction.label}
        for life in list(core.dispatcher.actors)
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
    raise missing("ray.util", name, __all__)
