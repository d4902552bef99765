"""How busy workers were: one rule for the summary, status, charts and advice. No stream, no clock."""

from __future__ import annotations

from millrace.core.events import Event, RunDescribed, StageUse, Worked, WorkerReady


def busy_share(seconds: float, wait: float, capacity: float) -> float:
    """Return the share of the time that workers had, in which they were at work and did not wait.

    >>> busy_share(8.0, 2.0, 12.0)
    0.5
    """
    return min(1.0, max(0.0, seconds - wait) / capacity) if capacity > 0 else 0.0


def began(event: Worked, now: float, ready: float) -> float:
    """Return when a call that has ended now began: before ``ready`` its worker was not up."""
    return min(now, max(now - event.seconds, ready))


class Busy:
    """Told events, asked how busy each stage was."""

    def __init__(self) -> None:
        self._stages: tuple[tuple[str, int], ...] = ()
        self._seconds: dict[int, float] = {}
        self._wait: dict[int, float] = {}
        self._ready: dict[int, float] = {}

    def add(self, event: Event, now: float) -> None:
        """Take one more event into account."""
        if isinstance(event, RunDescribed):
            self._stages = tuple((stage.name, stage.workers) for stage in event.stages)
        elif isinstance(event, WorkerReady):
            self._ready[event.worker] = now
        elif isinstance(event, Worked):
            seconds = now - began(event, now, self._ready.get(event.worker, 0.0))
            self._seconds[event.stage] = self._seconds.get(event.stage, 0.0) + seconds
            self._wait[event.stage] = self._wait.get(event.stage, 0.0) + event.timings.wait

    def uses(self, seconds: float) -> tuple[StageUse, ...]:
        """Return the use of each stage of a run that took so many seconds, if there are several."""
        if len(self._stages) < 2:
            return ()
        return tuple(
            StageUse(
                name,
                workers,
                busy_share(self._seconds.get(i, 0.0), self._wait.get(i, 0.0), seconds * max(1, workers)),
            )
            for i, (name, workers) in enumerate(self._stages)
        )
