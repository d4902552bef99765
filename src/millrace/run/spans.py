"""How long workers were at what they answered, as seen from the driver."""

from __future__ import annotations


class Spans:
    """Measures calls: from being asked, or from the worker's answer before if that was later, to the answer."""

    def __init__(self) -> None:
        self._free: dict[tuple[int, int], float] = {}

    def seconds(self, stage: int, worker: int, asked: float, answered: float) -> float:
        """Return how long a worker of a stage was at a call; calls are told in the order of their answers.

        >>> spans = Spans()
        >>> spans.seconds(0, 7, asked=1.0, answered=3.0), spans.seconds(0, 7, asked=1.0, answered=3.5)
        (2.0, 0.5)
        """
        began = max(asked, self._free.get((stage, worker), asked))
        self._free[stage, worker] = max(answered, began)
        return max(0.0, answered - began)
