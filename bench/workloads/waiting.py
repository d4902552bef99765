"""Models that wait, as for a device that is not there: two cores are enough for many nodes."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from bench.steps import Array, Parity
from bench.workloads.thumbnails import Brightness


class Rides(Parity):
    per_second: ClassVar[float] = 200_000

    def __call__(self, batch: Mapping[str, Array]) -> Array:
        time.sleep(len(batch["passenger_count"]) / self.per_second)
        return super().__call__(batch)


class Images(Brightness):
    per_second: ClassVar[float] = 100

    def __call__(self, pictures: Sequence[Any]) -> dict[str, Array]:
        time.sleep(len(pictures) / self.per_second)
        return super().__call__(pictures)
