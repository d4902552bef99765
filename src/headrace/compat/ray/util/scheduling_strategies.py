"""Ray's ``ray.util.scheduling_strategies``: where a call runs. There is one machine, so each of them means it."""

from __future__ import annotations

from typing import Any

HERE = f"{0:056x}"  # ``get_node_id()`` of the one machine


class _Strategy:
    """Keeps what it was made with, by name."""

    names: tuple[str, ...] = ()

    def __init__(self, *args: Any, **given: Any) -> None:
        self.__dict__.update(dict(zip(self.names, args, strict=False)) | given)


class NodeAffinitySchedulingStrategy(_Strategy):
    """On one node: ``node_id``, and ``soft`` if another will do."""

    names = ("node_id", "soft")


class PlacementGroupSchedulingStrategy(_Strategy):
    """In a bundle of a placement group."""

    names = ("placement_group", "placement_group_bundle_index", "placement_group_capture_child_tasks")


class NodeLabelSchedulingStrategy(_Strategy):
    """On a node with labels; ``soft`` ones are only wished for."""

    names = ("hard", "soft")
