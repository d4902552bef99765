"""Who has a call that a worker was sent before it can begin it: whoever takes its ticket.

The tickets lie in a pipe that the driver and the worker read. A worker begins such a call only with its ticket; the
driver has those back whose tickets are left. The kernel gives each to one of them only, also if the worker is
stopped, busy or dead, so nobody has to be asked.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence

_TICKET = struct.Struct("<q")


class Tickets:
    """The driver's end. ``fd`` is what the worker reads."""

    def __init__(self) -> None:
        self.fd, self._write_end = os.pipe()
        os.set_blocking(self.fd, False)

    def add(self, numbers: Sequence[int]) -> None:
        """Put in the tickets of calls that are about to be sent, in their order."""
        os.write(self._write_end, struct.pack(f"<{len(numbers)}q", *numbers))

    def take(self) -> list[int]:
        """Take all that are left: the worker will not begin these calls."""
        try:
            data = os.read(self.fd, 4096)
        except BlockingIOError:
            return []
        return [number for (number,) in _TICKET.iter_unpack(data)]

    def close(self) -> None:
        """Close both ends."""
        os.close(self.fd)
        os.close(self._write_end)


class TicketReader:
    """The worker's end."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._taken = -1

    def take(self, number: int) -> bool:
        """Take the ticket of a call, if it is there. Calls are asked for in the order in which they were sent."""
        if self._taken < number:
            try:
                data = os.read(self._fd, _TICKET.size)
            except BlockingIOError:
                return False
            if not data:
                return False
            (self._taken,) = _TICKET.unpack(data)
        return self._taken == number
