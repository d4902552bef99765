"""Numbers that tell rows apart by where they stand, so that a sample takes the same rows whenever it is drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from headrace.core.work import Split

if TYPE_CHECKING:
    import numpy as np

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
