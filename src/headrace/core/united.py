"""What sources of several datasets have in common, and tell besides where each dataset has steps of its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from headrace.core.files.input_files import Mark
from headrace.core.ports import Bad, Source
from headrace.core.row_keys import Keys, Numbers
from headrace.core.work import Split

if TYPE_CHECKING:
    import pyarrow as pa


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


class UnitedSource(Source, Protocol):
    """A source of several datasets, one behind the other. The methods of ``Source`` are about all as one."""

    def dataset_of(self, split: Split) -> int:
        """Return the number of the dataset that a split is of; 0 for all where none has steps of its own."""
        ...

    def read_own(
        self, split: Split, columns: Sequence[str] | None, batch_rows: int, bad: Bad | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Read a split as its dataset has it: its columns and types, marked with its forms."""
        ...

    def own_keys(self, split: Split, numbers: Numbers, first: int, stop: int) -> Keys:
        """Return ``row_keys`` as a union of the datasets from number ``first`` to before ``stop`` alone has them."""
        ...
