"""Which GPUs each worker of an engine may see. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from headrace.core.engine_ports import Devices
from headrace.errors import ResourcesUnavailable

Visible = tuple[str, ...] | None  # the names of devices; None: whatever the driver sees


class Gpus:
    """An engine's devices, by the names that CUDA knows, and which of them pools have reserved."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._devices = Devices(len(names))

    def reserve(self, share: float | None, least: int, most: int) -> Seats:
        """Reserve ``share`` devices for each worker of a pool: for ``most`` of them, or as many as there is room for.

        ``ResourcesUnavailable`` if there is none for ``least``.
        """
        if not share:
            return Seats(None if share is None else ())
        for workers in range(max(least, most), least - 1, -1):
            seats = self._devices.take(share, workers)
            if seats is not None:
                visible = [tuple(self._names[device] for device in seat) for seat in seats]
                return Seats((), visible, partial(self._devices.give, seats, share))
        raise ResourcesUnavailable(
            f"{least} × {share:g} GPUs are not free: there are {len(self._names)}, and other workers have some."
        )


class Seats:
    """What the workers of one pool may see: each a seat of its own, or all the same."""

    def __init__(
        self, same: Visible, seats: Sequence[Visible] | None = None, release: Callable[[], None] | None = None
    ) -> None:
        self._same = same
        self._free = None if seats is None else list(seats)
        self._count = None if seats is None else len(seats)
        self._release = release

    def room(self, workers: int) -> int:
        """Return how many of ``workers`` workers there can be."""
        return workers if self._count is None else min(workers, self._count)

    def acquire(self) -> Visible:
        """Return what a new worker may see: what was released last, if anything was."""
        return self._same if self._free is None else self._free.pop(0)

    def release(self, visible: Visible) -> None:
        """A worker is gone: another may have its seat."""
        if self._free is not None:
            self._free.insert(0, visible)

    def close(self) -> None:
        """Release all of it for other pools."""
        if self._release is not None:
            self._release()
            self._release = None
