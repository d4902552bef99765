"""What a batch service is asked, and what it says; OpenAI's and Anthropic's are in files of their own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import IO, Any, Literal, Protocol

from headrace.annex.llm.batch_lines import BatchLine
from headrace.annex.llm.batches.journal import Part
from headrace.annex.llm.refusals import Again, Malformed, json_of

CLOCKS_DIFFER = 86_400.0
"""Seconds: a batch is looked for among those made since it was begun, by a clock that may differ from ours."""
PAGE = 100


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch as its service says it is. ``why``: what it failed with; ``wrong``: which lines, by their places.

    ``full``: it was not taken as others wait already. ``results`` are where its answers and errors are.
    """

    id: str
    state: Literal["open", "ended", "failed", "cancelled"]
    done: int = 0
    results: tuple[str, ...] = ()
    why: str = ""
    wrong: Mapping[int, str] = field(default_factory=dict)
    full: bool = False


@dataclass(frozen=True, slots=True)
class LineOutcome:
    """What became of one line: an answer; a reason for which there is none; or neither, and it may be asked again."""

    name: str
    data: Mapping[str, Any] | None = None
    code: str = ""
    message: str = ""
    again: bool = False


class BatchService(Protocol):
    """Where batches are worked on. Methods ask the server once, and raise ``Again`` where that may help."""

    most_lines: int
    most_bytes: int
    uploads: bool

    def write(self, file: IO[bytes], part: Part, lines: Iterable[BatchLine]) -> None:
        """Write what is sent for some lines."""
        ...

    async def upload(self, part: Part, path: str) -> str:
        """Send the file, and return its name there; only where ``uploads``."""
        ...

    async def find_file(self, part: Part) -> str | None:
        """Return the name of a file that was sent for a part."""
        ...

    async def create(self, part: Part, path: str) -> Batch:
        """Have the work begin."""
        ...

    async def find(self, part: Part, size: int, known: set[str]) -> Batch | None:
        """Return the batch of a part, if there is one; ``known`` are those of other parts."""
        ...

    async def look(self, batch: str) -> Batch:
        """Return how a batch is."""
        ...

    async def download(self, batch: Batch, file: IO[bytes]) -> None:
        """Write what became of its lines, in any order."""
        ...

    def outcome(self, line: bytes) -> LineOutcome:
        """Read a line of that."""
        ...

    async def forget(self, part: Part) -> None:
        """Remove what was sent; its answers are here."""
        ...


def name_of(part: Part, number: int) -> str:
    """Return the ``custom_id`` of a line there, which says whose it is.

    >>> name_of(Part(3, "/v1/messages", "open", "headrace-ab12-3"), 17)
    'headrace-ab12-3-17'
    """
    return f"{part.tag}-{number}"


def number_of(part: Part, name: str) -> int | None:
    """Return the number of the line that was sent by this name; None for another's."""
    tag, _, number = name.rpartition("-")
    return int(number) if tag == part.tag and number.isascii() and number.isdigit() else None


class Unsure(Again):
    """A batch is at work that may be the one that is looked for: it can be seen once it has ended."""

    def __init__(self, batch: str) -> None:
        super().__init__(Malformed, f"the batch {batch} may be ours, and has not ended")


def table(read: bytes) -> dict[str, Any]:
    """Return the object that a server says; raises ``Again`` for something else."""
    data = json_of(read)
    if not isinstance(data, dict):
        raise Again(Malformed, f"200, and no JSON object ({len(read):,} bytes)")
    return data


def text(data: Mapping[str, Any], name: str) -> str:
    """Return a text of it that has to be there; raises ``Again`` where it is not."""
    value = data.get(name)
    if not isinstance(value, str) or not value:
        raise Again(Malformed, f"200, and no {name!r} in the answer")
    return value


def object_of(line: bytes) -> dict[str, Any]:
    """Return the object of a line; an empty one, of nobody's request, for what is none."""
    found = json_of(line)
    return found if isinstance(found, dict) else {}
