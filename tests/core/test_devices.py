"""Shares of devices: nobody gets more than there is, and what was given back can be had again."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.engine_ports import Devices, Seat

SHARES = st.sampled_from([0.1, 0.25, 0.3, 1 / 3, 0.5, 0.6, 1, 1.5, 2, 3])


@pytest.mark.parametrize(
    ("count", "share", "workers", "seats"),
    [
        (2, 1, 2, [(0,), (1,)]),
        (2, 1, 3, None),
        (1, 0.5, 2, [(0,), (0,)]),
        (2, 0.5, 4, [(0,), (1,), (0,), (1,)]),
        (1, 1 / 3, 3, [(0,), (0,), (0,)]),
        (1, 0.1, 10, [(0,)] * 10),
        (4, 2, 2, [(0, 1), (2, 3)]),
        (3, 1.5, 2, [(0, 2), (1, 2)]),
        (2, 0.6, 3, None),
        (0, 0.5, 1, None),
    ],
)
def test_what_each_worker_has(count: int, share: float, workers: int, seats: list[Seat] | None) -> None:
    assert Devices(count).take(share, workers) == seats


def used(taken: list[tuple[float, list[Seat]]]) -> Counter[int]:
    """Return how much of each device is taken."""
    sums: Counter[int] = Counter()
    for share, seats in taken:
        for seat in seats:
            assert len(set(seat)) == len(seat)
            for nth, device in enumerate(seat):
                sums[device] += min(1.0, share - nth)  # type: ignore[assignment]
    return sums


@given(st.integers(0, 8), st.lists(st.tuples(SHARES, st.integers(1, 6), st.booleans()), max_size=12))
def test_no_device_is_given_out_twice(count: int, asked: list[tuple[float, int, bool]]) -> None:
    devices = Devices(count)
    taken: list[tuple[float, list[Seat]]] = []
    for share, workers, back in asked:
        seats = devices.take(share, workers)
        if seats is not None:
            assert len(seats) == workers
            taken.append((share, seats))
        assert all(device < count and total <= 1 + 1e-6 for device, total in used(taken).items())
        if back and taken:
            share, seats = taken.pop(0)
            devices.give(seats, share)
    for share, seats in taken:
        devices.give(seats, share)
    assert devices.take(1, count) == [(device,) for device in range(count)]
