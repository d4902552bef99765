"""What batch sizes the workers settled at. No stream, no clock."""

from __future__ import annotations

from millrace.core.events import Batches, BatchSized, Event


class Sizes:
    """Told events, asked how many rows at a time each step got in the end."""

    def __init__(self) -> None:
        self._rows: dict[str, dict[int, int]] = {}

    def add(self, event: Event) -> None:
        """Take one more event into account; what a worker says last counts.

        >>> sizes = Sizes()
        >>> for worker, rows in ((0, 64), (1, 32), (0, 128)):
        ...     sizes.add(BatchSized(worker, "predict(Net)", rows, 1e4))
        >>> sizes.settled()
        (Batches(step='predict(Net)', least=32, most=128),)
        """
        if isinstance(event, BatchSized):
            self._rows.setdefault(event.step, {})[event.worker] = event.rows

    def settled(self) -> tuple[Batches, ...]:
        """Return the steps that found a size."""
        return tuple(
            Batches(step, min(rows.values()), max(rows.values())) for step, rows in self._rows.items()
        )
