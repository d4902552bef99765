"""What sources of several datasets have in common, whether one behind the other or side by side."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from headrace.core.files.input_files import Mark
from headrace.core.ports import Source


def note_marks(sources: Sequence[Source], marks: Sequence[Mark]) -> None:
    """Give several sources the marks of their files, which are numbered on from one to the next."""
    at = 0
    for source in sources:
        count = len(source.files())
        source.note_marks(marks[at : at + count])
        at += count


def names_side_by_side(columns: Iterable[Iterable[str]]) -> Iterator[list[str]]:
    """Yield what the columns of each dataset are called beside those of the datasets before it.

    >>> list(names_side_by_side([["id", "x"], ["id"], ["id_1", "y"]]))
    [['id', 'x'], ['id_1'], ['id_1_1', 'y']]
    """
    taken: set[str] = set()
    for names in columns:
        called = []
        for name in names:
            new, number = name, 0
            while new in taken:
                number += 1
                new = f"{name}_{number}"
            taken.add(new)
            called.append(new)
        yield called
