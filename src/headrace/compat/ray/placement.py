"""Ray's placement groups and strategies, all on one machine. Calls are admitted by what they need themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.compat.ray.offered import Kept
from headrace.compat.ray.session import cluster_resources, session
from headrace.errors import ArgumentError, ResourcesUnavailable

_groups: dict[str, PlacementGroup] = {}


class PlacementGroup:
    """Bundles of resources; see ``placement_group``."""

    def __init__(self, bundles: Sequence[Mapping[str, float]], strategy: str, name: str) -> None:
        self.bundle_specs = [dict(bundle) for bundle in bundles]
        self.bundle_count = len(self.bundle_specs)
        self.strategy, self.name = strategy, name
        self.removed, self.id = False, f"{id(self):036x}"

    def ready(self) -> Any:
        """Return a reference that is there at once; ``ResourcesUnavailable`` if the machine has too little."""
        self._check()
        return session().put(True)

    def wait(self, timeout_seconds: float = 30) -> bool:
        """Say whether the machine has what the bundles need."""
        try:
            self._check()
        except ResourcesUnavailable:
            return False
        return True

    def _check(self) -> None:
        there = cluster_resources()
        for kind in {kind for bundle in self.bundle_specs for kind in bundle}:
            asked = sum(bundle.get(kind, 0) for bundle in self.bundle_specs)
            if asked > there.get(kind, 0):
                raise ResourcesUnavailable(
                    f"A placement group asks for {asked:g} {kind}, and there are {there.get(kind, 0):g}."
                )


def placement_group(
    bundles: Sequence[Mapping[str, float]],
    strategy: str = "PACK",
    name: str = "",
    lifetime: str | None = None,
    **others: Any,
) -> PlacementGroup:
    """Return a group of bundles such as ``{"CPU": 1}``. Nothing is reserved: calls wait for what they need.

    >>> from headrace.compat import ray
    >>> placement_group([{"CPU": 1}]).wait(1)
    True
    >>> ray.shutdown()
    """
    if not bundles or any(not bundle for bundle in bundles):
        raise ArgumentError("placement_group takes a list of bundles such as [{'CPU': 1}].")
    made = PlacementGroup(bundles, strategy, name)
    if name:
        _groups[name] = made
    return made


def remove_placement_group(placement_group: PlacementGroup) -> None:
    """Forget a group."""
    placement_group.removed = True
    _groups.pop(placement_group.name, None)


def get_placement_group(placement_group_name: str) -> PlacementGroup:
    """Return the group with a name."""
    if placement_group_name not in _groups:
        raise ArgumentError(f"There is no placement group {placement_group_name!r}.")
    return _groups[placement_group_name]


def placement_group_table(placement_group: PlacementGroup | None = None) -> dict[str, Any]:
    """Describe a group, or all that have names."""
    if placement_group is None:
        return {name: placement_group_table(group) for name, group in _groups.items()}
    return {
        "name": placement_group.name,
        "strategy": placement_group.strategy,
        "state": "REMOVED" if placement_group.removed else "CREATED",
        "bundles": dict(enumerate(placement_group.bundle_specs)),
    }


def get_current_placement_group() -> None:
    """No call runs inside of a group."""


# Ray's ``ray.util.scheduling_strategies``: where a call runs. There is one machine, so each of them means it.


NodeAffinitySchedulingStrategy = PlacementGroupSchedulingStrategy = NodeLabelSchedulingStrategy = Kept
