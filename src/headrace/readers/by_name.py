"""What format files are in, by their names, and the dataset that reads them."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.core.files.formats import FORMATS, data_format
from headrace.core.stores.addresses import is_address
from headrace.errors import ArgumentError, NothingMatched, nearest

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
    if is_address(path):
        yield from _names_in_store(path)
        return
    plain = path.removeprefix("local://").removeprefix("file://")
    root = Path(os.path.expanduser(plain))
    if not root.is_dir():
        if data_format(plain) is not None or not any(mark in plain for mark in "*?["):
            if root.exists() or data_format(plain) is not None:
                yield plain
            return
        root = Path(*_before_pattern(root.parts))
    seen = 0
    for _, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "_")) or "=" in name)
        for name in sorted(files):
            if not name.startswith((".", "_")):
                yield name
                seen += 1
        if seen >= _ENOUGH:
            return


def _names_in_store(address: str) -> Iterator[str]:
    if data_format(address) is not None:
        yield address
        return
    from headrace.sources import objects

    with contextlib.suppress(NothingMatched):  # the reader has the better message
        yield from (file.path for file in objects.expand(address, None, ())[:_ENOUGH])


def _before_pattern(parts: Sequence[str]) -> Sequence[str]:
    at = next(i for i, part in enumerate(parts) if any(mark in part for mark in "*?["))
    return parts[:at] or (".",)
