"""Where rows stand in the input."""

from __future__ import annotations

import msgspec


class Location(msgspec.Struct, frozen=True):
    """Where one row stands. ``str()`` is what messages say.

    ``file`` is the path or URI, or what else the source is (``"range"``). ``number`` counts ``unit``s there, rows
    from 0 or lines from 1; None where the whole file is the row, or where nobody knows. ``detail`` is then what can
    be told instead.

    >>> str(Location("a.csv", 17)), str(Location("a.txt", 3, "line")), str(Location("cat.jpg"))
    ('a.csv, row 17', 'a.txt, line 3', 'cat.jpg')
    """

    file: str
    number: int | None = None
    unit: str = "row"
    detail: str = ""

    def __str__(self) -> str:
        if self.number is None:
            return f"{self.file}, {self.detail}" if self.detail else self.file
        return f"{self.file}, {self.unit} {self.number}"


def row_range(first: Location, last: Location) -> str:
    """Say from where to where some rows stand.

    >>> row_range(Location("a.csv", 3), Location("a.csv", 9))
    'a.csv, rows 3 to 9'
    >>> row_range(Location("a.csv", 3), Location("b.csv", 1))
    'the rows from a.csv, row 3 to b.csv, row 1'
    """
    if first == last:
        return str(first)
    numbered = first.number is not None and last.number is not None
    if numbered and (first.file, first.unit) == (last.file, last.unit):
        return f"{first.file}, {first.unit}s {first.number} to {last.number}"
    return f"the rows from {first} to {last}"
