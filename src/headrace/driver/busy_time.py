"""How long workers were busy with their calls, as seen from the driver."""

from __future__ import annotations


class BusyTime:
    """Measures calls: from the call, or from the worker's answer before if that was later, to the answer."""

    def __init__(self) -> None:
        self._free: dict[tuple[int, int], float] = {}

    def seconds(self, stage: int, worker: int, called: float, answered: float) -> float:
        """Return how long a worker of a stage was at a call; calls are passed in the order of their answers.

        >>> busy = BusyTime()
        >>> busy.seconds(0, 7, called=1.0, answered=3.0), busy.seconds(0, 7, called=1.0, answered=3.5)
        (2.0, 0.5)
        """
        began = max(called, self._free.get((stage, worker), called))
        self._free[stage, worker] = max(answered, began)
        return max(0.0, answered - began)
