"""What earlier drivers left of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from headrace.core.work import Faults, Ledger

if TYPE_CHECKING:
    from headrace.output.journal_state import JournalState


class Resumed(msgspec.Struct, frozen=True):
    """What earlier drivers of a run left, from its journal; the defaults: nothing.

    ``done`` has a 1 for each committed shard; ``passed``: how many rows each ``limit`` has let through;
    ``shard_too_big``: a shard did not fit into memory.
    """

    done: bytes | bytearray = b""
    schema: bytes | None = None
    revision: int = 0
    passed: Sequence[int] = ()
    ledger: Ledger = msgspec.field(default_factory=Ledger)
    faults: Faults = msgspec.field(default_factory=Faults)
    shard_too_big: bool = False

    @classmethod
    def of(cls, state: JournalState, schema: bytes | None) -> Resumed:
        """Return what a journal says of a run with this output schema."""
        return cls(
            state.done,
            schema,
            state.revision,
            state.passed,
            state.ledger,
            state.faults,
            shard_too_big=state.shard_too_big,
        )
