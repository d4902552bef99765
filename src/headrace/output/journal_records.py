"""The records of a journal: what each says. ``tests/museum/format.md`` lists them."""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.core.work import CommitRecord, Shard
from headrace.plan.physical import InputVersion

FORMAT = 1
"""The version of an output's format, see docs/reference/output-format.md. A higher one is refused."""


class Opened(msgspec.Struct, frozen=True, tag="opened", array_like=True):
    """The first record: which run this journal belongs to, and the version that writes from here on.

    Another version that goes on with the run adds one of its own.
    """

    run: str
    headrace: str = ""
    format: int = FORMAT


class Revision(msgspec.Struct, frozen=True, tag="revision", array_like=True):
    """From here on shards are made by other code; ``code`` maps each function to its fingerprint."""

    number: int
    code: dict[str, str]


class Settled(msgspec.Struct, frozen=True, tag="settled", array_like=True):
    """The output schema, as Arrow IPC bytes. The last one counts."""

    schema: bytes


class Lowered(msgspec.Struct, frozen=True, tag="lowered", array_like=True):
    """Memory did not suffice for more than ``rows`` rows at a time in ``step``."""

    step: str
    rows: int


class Revoked(msgspec.Struct, frozen=True, tag="revoked", array_like=True):
    """A committed shard whose files are gone: it counts no more and is run again."""

    shard: int


class Divided(msgspec.Struct, frozen=True, tag="divided", array_like=True):
    """A shard is done in these parts: the first has its number, the others new ones.

    It did not fit into memory; or, ``early``, its first part was closed before its end, as the whole took long.
    """

    parts: tuple[Shard, ...]
    early: bool = False


class Grown(msgspec.Struct, frozen=True, tag="grown", array_like=True):
    """Input files that are new since the plan become further shards, after the others. The run is not finished.

    ``number``: they begin the output's run of this number; 0: they join the last one, which had not finished.
    ``hidden``: its parts stay out of sight until all are there, as ``_SUCCESS`` speaks of those before it.
    """

    files: tuple[tuple[str, int, int], ...]
    shards: tuple[Shard, ...]
    number: int = 0
    hidden: bool = False
    at: float = 0.0


class Renewed(Grown, frozen=True, tag="renewed", array_like=True):
    """As ``Grown``, and the rows of some shards are made again: by the first of ``shards``, one for each.

    What is replaced stays in force until ``Swapping``; not at all where the new parts are not ``hidden``.
    ``again``: of how many input files they are.
    """

    replaces: tuple[int, ...] = ()
    again: int = 0


class Reached(msgspec.Struct, frozen=True, tag="reached", array_like=True):
    """What is new up to this version of the input was taken in by the records before."""

    input: InputVersion


class Swapping(msgspec.Struct, frozen=True, tag="swapping", array_like=True):
    """All parts are there; from here on this run takes the place of ``old``.

    ``seconds`` and ``summary`` are what its driver was about to finish with, should another have to do it.
    """

    old: str
    seconds: float
    summary: dict[str, Any]


class Withheld(msgspec.Struct, frozen=True, tag="withheld", array_like=True):
    """All parts are there, and the run is not revealed, as what ``summary`` says is not as it was required.

    The last one counts, until a shard is revoked or more input is taken in. ``seconds`` and ``summary`` are what the
    run is finished with if somebody publishes it all the same.
    """

    seconds: float
    summary: dict[str, Any]


class Finished(msgspec.Struct, frozen=True, tag="finished", array_like=True):
    """Everything is published; ``seconds`` is the wall time of the driver that finished it, ``at`` when that was."""

    seconds: float
    at: float = 0.0


_Note = Opened | Revision | Settled | Lowered | Revoked | Divided | Grown | Renewed | Reached
Record = _Note | CommitRecord | Swapping | Withheld | Finished
