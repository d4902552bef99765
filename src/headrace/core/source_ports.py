"""The port of a source: what is read split by split, and which rows those are. See ``headrace.testing.source``.

``target_ports`` has what is written, ``model_ports`` what is computed and watched, ``engine_ports`` where that is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, TypeAlias, runtime_checkable

import msgspec

from headrace.core.events import InputMade
from headrace.core.files.input_files import Mark
from headrace.core.work import Split
from headrace.errors import UnknownArgument

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    import pyarrow as pa

    from headrace.core.parquet.chunks import ChunkFile
    from headrace.core.table_changes import Seen


# ---------------------------------------------------------------- keys of rows

# Numbers that tell rows apart by where they stand. A sample takes the same rows whenever it is drawn.

Keys: TypeAlias = "np.ndarray[Any, np.dtype[np.uint64]]"
Numbers: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"

_GOLDEN = 0x9E3779B97F4A7C15


def row_keys(name: str, numbers: Numbers) -> Keys:
    """Return a key for each of the rows with these numbers in what is called ``name``.

    >>> import numpy as np
    >>> row_keys("a.csv", np.array([0, 1])).tolist() == row_keys("a.csv", np.array([0, 1, 2]))[:2].tolist()
    True
    """
    import hashlib

    import numpy as np

    start = int.from_bytes(
        hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=8).digest(), "big"
    )
    return _mixed(numbers.astype(np.uint64), start)


def keyed(name: str, split: Split, numbers: Numbers) -> tuple[str, Numbers]:
    """Return name and numbers for ``row_keys``: rows are counted from the start of their file, if that is known."""
    return (name, numbers + split.first) if split.first >= 0 else (f"{name} {split.start}", numbers)


def file_keys(names: list[str]) -> Keys:
    """Return a key for each file that is a row as a whole."""
    import numpy as np

    found = [row_keys(name, np.zeros(1, np.int64)) for name in names]
    return np.concatenate(found) if found else np.empty(0, np.uint64)


def shares(keys: Keys, seed: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return a number from 0 to below 1 for each key: evenly spread, and others for another seed.

    >>> import numpy as np
    >>> spread = shares(row_keys("a", np.arange(10_000)), 7)
    >>> bool(spread.min() >= 0 and spread.max() < 1), bool(abs((spread < 0.25).mean() - 0.25) < 0.02)
    (True, True)
    """
    import hashlib

    import numpy as np

    start = int.from_bytes(hashlib.blake2b(str(seed).encode(), digest_size=8).digest(), "big")
    upper = _mixed(keys, start) >> np.uint64(11)  # 53 bits, as many as a float holds
    return upper * np.float64(2.0**-53)


def _mixed(values: Keys, start: int) -> Keys:
    """Mix each value with ``start``: SplitMix64 (Steele, Lea and Flood, 2014)."""
    import numpy as np

    mixed = values * np.uint64(_GOLDEN) + np.uint64(start)  # arrays wrap around, as is wanted
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    made: Keys = mixed ^ (mixed >> np.uint64(31))
    return made


# ---------------------------------------------------------------- Where rows stand in the input


class Location(msgspec.Struct, frozen=True):
    """Where one row stands. ``str()`` is what messages say.

    ``file`` is the path or URI, or what else the source is (``"range"``). ``number`` counts ``unit``s there, rows
    from 0 or lines from 1; None where the whole file is the row, or where nobody knows. ``detail`` is then what can
    be told instead. ``beside``: where the rows stand that it is put side by side with.

    >>> str(Location("a.csv", 17)), str(Location("a.txt", 3, "line")), str(Location("cat.jpg"))
    ('a.csv, row 17', 'a.txt, line 3', 'cat.jpg')
    >>> str(Location("a.csv", 17, beside=(Location("b.csv", 3),)))
    'a.csv, row 17, beside b.csv, row 3'
    """

    file: str
    number: int | None = None
    unit: str = "row"
    detail: str = ""
    beside: tuple[Location, ...] = ()

    def __str__(self) -> str:
        return row_range(self, self)


def row_range(first: Location, last: Location) -> str:
    """Say from where to where some rows stand.

    >>> row_range(Location("a.csv", 3), Location("a.csv", 9))
    'a.csv, rows 3 to 9'
    >>> row_range(Location("a.csv", 3), Location("b.csv", 1))
    'the rows from a.csv, row 3 to b.csv, row 1'
    """
    if len(first.beside) != len(last.beside):
        return f"the rows from {first} to {last}"
    return ", beside ".join(map(_range, (first, *first.beside), (last, *last.beside)))


def _range(first: Location, last: Location) -> str:
    if first == last:
        detail = first.detail if first.number is None else f"{first.unit} {first.number}"
        return f"{first.file}, {detail}" if detail else first.file
    numbered = first.number is not None and last.number is not None
    if numbered and (first.file, first.unit) == (last.file, last.unit):
        return f"{first.file}, {first.unit}s {first.number} to {last.number}"
    return f"the rows from {_range(first, first)} to {_range(last, last)}"


Bad = Callable[[int, int, Exception], None]


@dataclass(frozen=True, slots=True)
class Preparation:
    """What a source gets that makes its rows before a run: see ``Source.prepared``.

    ``folder``: where it lays them, in one for each state of its input; what is there of others may go. ``options``
    are those of the run (``RunOptions``). It may use ``memory`` bytes and ``cores``. ``say`` shows what it is at.
    ``lasting``: the folder outlives this process; else the rows are recognised by their content.
    """

    folder: Path
    options: Any
    memory: int
    cores: int
    say: Callable[[str], None]
    lasting: bool = True


class PlainFile(NamedTuple):
    """A Parquet file that has rows of a source as ``Source.plain_files`` says.

    ``values``: of columns that are not in the file, as a text that is cast to the column's type; None is null.
    """

    path: str
    rows: int
    values: Mapping[str, str | None]


@runtime_checkable
class Source(Protocol):
    """Something that is read split by split, on any worker, in any order, more than once.

    The same inputs give the same splits in the same order. An instance travels to the workers by pickle after
    ``splits`` was called, so what it learnt there (files, schema) travels with it; open handles do not.

    Subclass it: what has a default here need not be written. Those of ``files``, ``files_of``, ``pinned`` and
    ``check_unchanged`` are for a source that reads no files and never changes.
    """

    decodes: bool = False
    """Reading is work for a CPU, as decoding images is: workers that hold a GPU leave it to others."""

    shares_memory: bool = False
    """Batches are views of memory that somebody else may change: what is handed to users is copied."""

    files_apart: bool = False
    """Each file is a shard, as what is made of its rows belongs to it alone."""

    one_state: bool = False
    """What it lists as files are states of one thing, such as the answer of a query: only the last can be read."""

    has_chunks: bool = False
    """It reads Parquet files, of which column chunks may be copied as they are stored, see ``chunk_file``."""

    apart: bool = False
    """It has several datasets, and each of them steps of its own: rows are read as their dataset has them."""

    worker_imports: ClassVar[tuple[str, ...]] = ()
    """Modules that reading takes: workers import them while the driver plans."""

    unprepared: bool = False
    """Its rows have to be made before they can be planned and read, as the result of a query has, see ``prepared``.
    Until then, ``splits`` is one split of unknown rows, and ``files`` are those that they are made from."""

    paths: Sequence[str] = ()
    """What it was told to read, if that is by paths or addresses: as a notebook shows it, without secrets."""

    def describe(self) -> dict[str, Any]:
        """Return the shape that identifies this source: plain JSON values, secrets left out."""
        ...

    def schema(self) -> pa.Schema:
        """Return the schema of what ``read`` gives when all columns are asked for."""
        ...

    def known_schema(self) -> pa.Schema | None:
        """Return ``schema()`` if no row has to be made for it, else None. Default: it is known."""
        return self.schema()

    def code(self) -> dict[str, str]:
        """Return fingerprints of the user's code that makes its rows, as ``plan.identity.code_of`` has them.

        Each place begins with ``input``. Default: none does.
        """
        return {}

    def prepared(self, preparation: Preparation) -> Source:
        """Return the source of the rows, which are made now, or were made by an earlier driver; described as this is.

        Called in the driver where it is ``unprepared``, before its splits are asked for. Default: this source.
        """
        return self

    def few(self, rows: int) -> Source:
        """Return a source of about ``rows`` of its rows, which are made sooner. Default: this source."""
        return self

    def first_rows(self, rows: int, options: Any) -> Source | None:
        """Return a source that begins with its first ``rows`` rows, for which no more are made; None: all have to be.

        Default: this one, unless it is ``unprepared``.
        """
        return None if self.unprepared else self

    def preparations(self) -> Sequence[InputMade]:
        """Return what was done so that it could be read: what ``prepared`` did, for observers. Default: nothing."""
        return ()

    def explained(self) -> Sequence[str]:
        """Return lines for ``explain`` on how its rows come about. Default: none."""
        return ()

    def as_planned(self, described: Mapping[str, Any]) -> Source:
        """Return this source in the state in which a run was planned that goes on, by what ``describe`` said then.

        For what has versions, if none was asked for. Default: this source.
        """
        return self

    def position(self) -> dict[str, Any]:
        """Return which version of a table, or state of a database, this reads: plain JSON values.

        Those that ``describe`` has, too, are no part of the shape of an output that further runs add to. Default:
        none, as each file tells whether it is another one.
        """
        return {}

    def for_further_runs(self, *, keyed: bool) -> Source:
        """Return this source as the runs of one output read it, each what is new: described without its position.

        ``keyed``: rows whose keys were seen are left out. Raises ``ArgumentError`` where that cannot be exact.
        Default: this source.
        """
        return self

    def since(self, seen: Seen) -> Source:
        """Return this source with the files that were taken in, in their order, and what is new since behind them.

        Asked of one with a ``position`` only. Raises ``InputChanged`` where rows that were read are others since.
        """
        return self

    def in_chunks(self, count: int, length: int | None = None) -> Source:
        """Return the same rows in so many chunks, or of ``length`` rows each; itself where they are not in memory."""
        return self

    def splits(self) -> Sequence[Split]:
        """List the splits in input order. Called once, in the driver, before any ``read``."""
        ...

    def files(self) -> list[tuple[str, int, int]]:
        """Return ``(path, size, mtime_ns)`` for each file, in the numbering that splits use. Default: no files."""
        return []

    def files_of(self, split: Split) -> range:
        """Return the numbers of the files that a split reads. Default: none."""
        return range(0)

    def pinned(self, paths: Sequence[str]) -> Source:
        """Return this source with exactly these files, in this order and numbering; for going on with a run.

        Default: this source.
        """
        return self

    def only_extensions(self, extensions: tuple[str, ...]) -> None:
        """Read only files whose names end in one of these, in small letters and with the dot.

        Raises ``UnknownArgument`` where no files are read. Default: that.
        """
        raise UnknownArgument("file_extensions= is for what reads files.")

    def likely_rows(self) -> int:
        """Return about how many rows there are, by the beginning of the input; 0 where that does not tell.

        Called after ``splits``, where these do not tell. Default: 0.
        """
        return 0

    def splits_in_batches(self, rows: int) -> Sequence[Split]:
        """List the splits as ``splits`` does, cut where batches of ``rows`` rows end, as far as that is possible.

        Called instead of ``splits`` where a step has a numeric batch size. Default: ``splits()``.
        """
        return self.splits()

    def splits_from(self, file: int) -> Sequence[Split] | None:
        """List the splits of the files from number ``file`` on; none of them reads a file before.

        So that a run which goes on can take in new files. Default: None, it leaves them out.
        """
        return None

    def splits_alone(self, file: int) -> Sequence[Split] | None:
        """List the splits of file number ``file`` which read no other, though those of ``splits`` may.

        So that a run which goes on can read a file that was written again. Default: None, what ``splits`` says.
        """
        return None

    def forms(self) -> Mapping[str, str]:
        """Return, by name, the form of each column that may hold nulls, see ``core/arrow/forms.py``.

        For columns of which functions would see another dtype with nulls than without. Default: that depends on
        the batch.
        """
        return {}

    def read(
        self, split: Split, columns: Sequence[str] | None, batch_rows: int, bad: Bad | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Read one split in row order, in batches of at most ``batch_rows`` rows, only ``columns`` if given.

        Each batch has rows: a split without any gives no batch.

        Raises ``InputChanged`` when the file is not the one that was planned with, ``UnreadableFile`` when it
        is damaged (with its name and the offset or row group), a ``SourceError`` for rows that make no sense.

        With ``bad``, rows that make no sense are told instead, and left out: ``bad(row, count, error)`` means the
        rows ``row`` to ``row + count - 1`` of the split; more than one where they are lost together. A bad row
        keeps its number, for ``locate`` too. It is told between the batch with the rows before it and the batch
        with those after it: no batch lies around it. ``error`` names file and row and says what is wrong. Read
        again with the same columns and ``batch_rows``, the same rows are bad; with fewer columns perhaps fewer.
        What is wrong with a file as a whole is raised all the same, ``InputChanged`` included.
        """
        ...

    def check_unchanged(self, split: Split) -> None:
        """Raise ``InputChanged`` if what ``read`` read of this split may have changed since it was called.

        Called after rows were read, in the same process, and before anything made of them is committed. Default:
        nothing changes.
        """
        return None

    def chunk_file(self, split: Split) -> tuple[ChunkFile, frozenset[str]]:
        """Return the Parquet file that a split lies in, and the columns that ``read`` gives as they are there.

        ``split.first`` is then the row of the file where the split begins. Raises ``NotUnderstood``, with the reason,
        where column chunks cannot be copied. Default: that.
        """
        from headrace.core.parquet.compact import NotUnderstood

        raise NotUnderstood("it is not read from Parquet files")

    def plain_files(self) -> Sequence[PlainFile]:
        """Return the Parquet files of this machine that have just its rows, one file behind the other.

        All have the same columns: those of ``schema``, of those very types, but for some of which each says the one
        value in all its rows. So whatever reads Parquet gets what ``read`` gives. Default: there are none.
        """
        return ()

    def note_marks(self, marks: Sequence[Mark]) -> None:
        """Keep the marks of the files, one of each, by which ``read`` tells changed files from others of their size
        and time. Called in the driver, before workers get the source. Default: they are not needed.
        """
        return

    def locate(self, split: Split, row: int) -> Location:
        """Return where row number ``row`` of ``split`` stands. May be slow."""
        ...

    def row_keys(self, split: Split, numbers: Numbers) -> Keys:
        """Return numbers that tell these rows of ``split`` apart from all others, by where they stand alone.

        A row has the same key however the input is cut and whatever other files there are, as far as the source
        knows. Default: by the first file of the split, and the row's number there; or the split's place there, if
        nobody knows that.
        """
        paths = [self.files()[number][0] for number in self.files_of(split)[:1]]
        return row_keys(*keyed(paths[0] if paths else "", split, numbers))

    @property
    def datasets(self) -> Sequence[Source]:
        """The sources whose rows these are, one behind the other. Default: this one.

        Where they are ``apart``, ``read`` gives rows as their dataset has them; ``row_keys`` is about all as one.
        """
        return (self,)

    def dataset_of(self, split: Split) -> int:
        """Return the number of the dataset that a split is of; 0 for all where none has steps of its own."""
        return 0

    def own_keys(self, split: Split, numbers: Numbers, first: int, stop: int) -> Keys:
        """Return ``row_keys`` as a source of the datasets from number ``first`` to before ``stop`` alone has them."""
        return self.row_keys(split, numbers)

    def close(self) -> None:
        """Let go of files that ``read`` kept open. May be called more than once. Default: none."""
        return None


# ---------------------------------------------------------------- several sources as one


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
