"""What the driver and its workers tell each other while attempts go on; outcomes are in ``work``."""

from __future__ import annotations

import msgspec

from headrace.core.work import Remainder, Shard, Split


class ShrinkBatches(msgspec.Struct, frozen=True):
    """Memory is short: a worker gives the user's code half as many rows at a time from now on."""


class EndEarly(msgspec.Struct, frozen=True):
    """A worker ends an attempt as soon as it can, so that what is done can be committed.

    If no attempt is named, it ends all of them, and begins no other: the run is interrupted.
    """


class LeaveRest(msgspec.Struct, frozen=True):
    """Workers have nothing to do: an attempt leaves them parts of its shard that it has not begun.

    It keeps one of ``shares`` equal parts of what is left, and leaves each of the others: as many as what is left has
    ``worth`` seconds of work.
    """

    worth: float
    shares: int = 2


class RestLeft(msgspec.Struct, frozen=True):
    """An attempt leaves ``rest`` of its shard to others, up to what it left before. It goes on up to there."""

    shard: int
    attempt: int
    rest: Remainder


class MoreShards(msgspec.Struct, frozen=True):
    """Further shards of a run that does not know all of them; without any, no more will come.

    Their numbers do not count: each has a name.
    """

    shards: tuple[Shard, ...]


class RunInterrupted(msgspec.Struct, frozen=True):
    """Whoever started the run wants it to end: commit what is done, and stop."""


class BlocksFreed(msgspec.Struct, frozen=True):
    """These blocks are no longer read by anyone."""

    numbers: tuple[int, ...]


class AttemptWaiting(msgspec.Struct, frozen=True):
    """The attempt has consumed the ``taken`` blocks that it was fed, and waits for the next one."""

    shard: int
    attempt: int
    taken: int


class AttemptFinishing(msgspec.Struct, frozen=True):
    """All rows of an attempt went through the steps; its part is encoded and synced while the next attempt runs."""

    shard: int
    attempt: int


class CallStarted(msgspec.Struct, frozen=True):
    """A worker starts a call of the user's code over these rows of a shard; ``call`` counts the worker's calls.

    ``rows`` has (split, first, last) for each range of consecutive rows; ``count`` is the number of rows in the call.
    """

    worker: int
    call: int
    shard: int
    step: str
    rows: tuple[tuple[Split, int, int], ...]
    count: int


class CallEnded(msgspec.Struct, frozen=True):
    """A call has ended, with a result or an error."""

    worker: int
    call: int
