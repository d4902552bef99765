"""What does not fit into memory, in words: batches of so many rows, workers. No stream, no clock."""

from __future__ import annotations

from millrace.core.events import BatchShrunk, Ceiling, Event, WorkerRetired

_QUIET = 0.5  # seconds: halvings come in a row, and the last one is what matters


class Ceilings:
    """Told events, asked what each step settled at: the least that any worker came down to."""

    def __init__(self) -> None:
        self._too_many: dict[str, int] = {}
        self._rows: dict[str, int] = {}
        self._since: dict[str, float] = {}  # steps whose news was not told yet

    def add(self, event: Event, now: float = 0.0) -> None:
        """Take one more event into account."""
        if isinstance(event, BatchShrunk) and event.now < self._rows.get(event.step, event.before):
            self._too_many.setdefault(event.step, event.before)
            self._rows[event.step] = event.now
            self._since[event.step] = now

    def settled(self) -> tuple[Ceiling, ...]:
        """Return the steps that had too many rows at a time."""
        return tuple(Ceiling(step, rows) for step, rows in self._rows.items())

    def news(self, now: float) -> list[str]:
        """Return a line for each step that got too many rows, and that nothing was heard of for a moment since.

        >>> ceilings = Ceilings()
        >>> for before in (1000, 500):
        ...     ceilings.add(BatchShrunk(0, "predict(Net)", before, before // 2), now=0.0)
        >>> ceilings.news(0.1), ceilings.news(0.6), ceilings.news(0.7)
        ([], ['memory did not suffice for 1,000 rows in predict(Net): it gets 250 at a time now'], [])
        """
        due = [step for step, since in self._since.items() if now - since >= _QUIET]
        for step in due:
            del self._since[step]
        return [
            f"memory did not suffice for {self._too_many[step]:,} rows in {step}: it gets "
            f"{self._rows[step]:,} at a time now"
            for step in due
        ]


def retirement(event: WorkerRetired) -> str:
    """Say which worker had to go, and why.

    >>> retirement(WorkerRetired(0, 3, 9 << 20, 9 << 20, True, False, "it took 9 MiB"))
    'worker 3 is ended for memory and replaced: it took 9 MiB'
    """
    follows = "and replaced" if event.replaced else "and its pool has one less"
    return f"worker {event.worker} is ended for memory {follows}: {event.reason}"
