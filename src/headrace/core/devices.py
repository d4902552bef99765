"""Who has which GPU, or which part of one. Plans count with it, engines hand out by it, so both agree."""

from __future__ import annotations

from collections.abc import Iterable

_DUST = 1e-9  # thirds do not add up to one

Seat = tuple[int, ...]


class Devices:
    """How much of each of ``count`` devices nobody has yet.

    A seat is what one worker has: whole devices, and for what is left of its share a part of one more. Parts are
    put where the least is left, so that devices stay whole for those who want whole ones.

    >>> devices = Devices(3)
    >>> devices.take(0.5, 2), devices.take(2, 1)
    ([(0,), (0,)], [(1, 2)])
    >>> devices.take(0.5, 1) is None
    True
    """

    def __init__(self, count: int) -> None:
        self._free = [1.0] * count

    def take(self, share: float, workers: int) -> list[Seat] | None:
        """Return a seat with ``share`` devices for each of some workers, and count it as taken; None if they
        do not all fit. The first seats lie on different devices, as far as there are such."""
        before = list(self._free)
        whole = int(share + _DUST)
        part = share - whole if share - whole > _DUST else 0.0
        seats = self._wholes(whole, workers) if whole else [()] * workers
        parts = self._parts(part, len(seats)) if part else [()] * len(seats)
        if len(parts) < workers:
            self._free = before
            return None
        return _spread(seat + rest for seat, rest in zip(seats, parts, strict=True))

    def give(self, seats: Iterable[Seat], share: float) -> None:
        """Take seats back."""
        for seat in seats:
            left = share
            for device in seat:
                self._free[device] += min(1.0, left)
                left -= 1.0

    def _wholes(self, each: int, workers: int) -> list[Seat]:
        idle = [device for device, free in enumerate(self._free) if free > 1 - _DUST]
        seats = [tuple(idle[i * each : (i + 1) * each]) for i in range(min(workers, len(idle) // each))]
        for seat in seats:
            for device in seat:
                self._free[device] = 0.0
        return seats

    def _parts(self, share: float, workers: int) -> list[Seat]:
        seats: list[Seat] = []
        for device in sorted(range(len(self._free)), key=lambda device: self._free[device]):
            here = min(workers - len(seats), int((self._free[device] + _DUST) / share))
            self._free[device] -= here * share
            seats += [(device,)] * here
        return seats


def _spread(seats: Iterable[Seat]) -> list[Seat]:
    """Order seats by how many others on the same devices come before them."""
    ranked: list[tuple[int, Seat]] = []
    seen: dict[Seat, int] = {}
    for seat in seats:
        ranked.append((seen.get(seat, 0), seat))
        seen[seat] = seen.get(seat, 0) + 1
    return [seat for _, seat in sorted(ranked)]
