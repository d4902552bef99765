"""What format files are in, by their names, and the dataset that reads them."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headrace.core.files.formats import FORMATS, data_format
from headrace.errors import ArgumentError, NothingMatched, nearest
from headrace.sources.file_source import given_paths

if TYPE_CHECKING:
    from headrace.dataset.dataset import Dataset

_ENOUGH = 2_000  # names of a folder that are looked at


def dataset_of(
    paths: Sequence[str], format: str | None, options: Mapping[str, Any], *, asked: str = "--format "
) -> Dataset:
    """Return the dataset of files, folders and patterns; ``options`` are those of the reader.

    ``asked``: what a name of a format stands behind where the user gives one.
    """
    import headrace

    kind = format or format_of(paths, asked=asked)
    found = FORMATS.get(kind)
    if found is None:
        names = FORMATS.names()
        raise ArgumentError(f"{asked}{kind}: it is one of {', '.join(names)}.{nearest(kind, names)}")
    read = getattr(headrace, found.reader)
    given = list(paths) if len(paths) > 1 else paths[0]
    dataset: Dataset = read(given, **{**found.options, **options})
    return dataset


def format_of(paths: Sequence[str], *, asked: str = "--format ") -> str:
    """Return the format by the names of files; raises ``ArgumentError`` if they have none that is known, or several.

    >>> format_of(["a.csv.gz", "more/*.csv"])
    'csv'
    """
    found: Counter[str] = Counter()
    unknown: list[str] = []
    for path in paths:
        for name in _names_at(path):
            by_name = data_format(name)
            if by_name is None:
                unknown.append(name)
            else:
                found[by_name.name] += 1
    if len(found) == 1:
        return next(iter(found))
    if not found:
        such = f" ({', '.join(map(repr, unknown[:3]))})" if unknown else ""
        if not unknown:
            return "parquet"  # there is nothing: the reader has the better message
        raise ArgumentError(
            f"The names of the input files do not show their format{such}. Give it: {asked}"
            f"{'|'.join(FORMATS.names())}.{FORMATS.unusable()}"
        )
    counts = ", ".join(f"{count} {kind}" for kind, count in found.most_common())
    raise ArgumentError(
        f"The input holds files of several formats ({counts}). Say which are meant: "
        f"{asked}{found.most_common(1)[0][0]}."
    )


def _names_at(path: str) -> Iterator[str]:
    """Yield names of files at a path: of a folder, enough to know what is in it."""
    (given,) = given_paths(path)
    if data_format(given.path) is not None and not os.path.isdir(given.path):
        yield given.path
        return
    with contextlib.suppress(NothingMatched):  # the reader has the better message
        yield from map(os.path.basename, itertools.islice(given.names(), _ENOUGH))
