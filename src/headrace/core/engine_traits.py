"""What a run asks of an engine before it is opened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class EngineTraits:
    """Where an engine's workers are. An engine of one's own says it by a class attribute ``traits``.

    With neither of the two, they are processes of this machine.
    """

    in_process: bool = False
    """The one worker is the program's own process: plans are not divided into stages, GPUs need not be there."""

    is_cluster: bool = False
    """Workers are on several machines: the cluster says what there is, places workers, and watches their memory."""


EngineName = Literal["local", "inline", "ray"]
ENGINES: Mapping[str, EngineTraits] = {
    "local": EngineTraits(),
    "inline": EngineTraits(in_process=True),
    "ray": EngineTraits(is_cluster=True),
}
"""The engines by name; ``session/engines.py`` opens them."""
