"""Backpressure: the bytes of all blocks that exist or are being made, against a budget."""

from __future__ import annotations

from headrace.driver.upstream.queues import AttemptQueue

INITIAL_BYTES = 8 << 20  # of a block, before any was seen
MAX_BLOCKS = 256  # at a time: each uses a file descriptor here and in its reader


class BlockBudget:
    """Counts blocks, and the calls that will give one, against ``limit`` bytes.

    ``held`` is what blocks use now, ``peak`` the most that they used so far. With ``needed_only`` there is no room.
    """

    def __init__(self, limit: int, stages: int) -> None:
        self._limit = limit
        # By number: size, and the attempt it is made for.
        self._blocks: dict[int, tuple[int, AttemptQueue]] = {}
        self._calls = [0] * stages  # that are not answered
        self._typical = [INITIAL_BYTES] * stages  # bytes of a block
        self.held = 0
        self.peak = 0
        self.needed_only = False

    def has_room(self, stage: int) -> bool:
        """Say whether one more block of a stage is within the budget."""
        if self.needed_only:
            return False
        expected = sum(calls * size for calls, size in zip(self._calls, self._typical, strict=True))
        fits = self.held + expected + self._typical[stage] <= self._limit
        return fits and len(self._blocks) + sum(self._calls) < MAX_BLOCKS

    def called(self, stage: int) -> None:
        """Count a call that is made."""
        self._calls[stage] += 1

    def answered(self, stage: int, calls: int = 1) -> None:
        """Count calls that are answered, or whose answers do not matter any more."""
        self._calls[stage] -= calls

    def add(self, number: int, size: int, stage: int, attempt: AttemptQueue) -> None:
        """Count a block that a stage has made."""
        self._blocks[number] = size, attempt
        self.held += size
        self.peak = max(self.peak, self.held)
        attempt.held += size
        self._typical[stage] = max(size, (3 * self._typical[stage] + size) // 4)

    def remove(self, number: int) -> None:
        """Stop counting a block that does not exist any more."""
        if number in self._blocks:
            size, attempt = self._blocks.pop(number)
            self.held -= size
            attempt.held -= size
