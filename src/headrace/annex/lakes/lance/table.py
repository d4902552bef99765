"""Lance tables, by the library ``pylance``: how they are opened, and what each version did to the fragments."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from headrace.annex.lakes.delta.table import storage
from headrace.annex.lakes.places import within
from headrace.core.files.storage import storage_at
from headrace.core.install import install_hint
from headrace.core.stores.options import Options
from headrace.core.table_changes import Change, Kind
from headrace.errors import HeadraceError, MissingLibrary, NothingMatched, SourceError

_SHOWN = 5
_WRITES = 14  # files of older ones lose which structs are null


def library() -> Any:
    """Return ``lance``."""
    try:
        import lance
    except ImportError as error:
        raise MissingLibrary(f"Lance tables need pylance: {install_hint('lance')}.") from error
    return lance


def check_writer() -> None:
    """Raise ``MissingLibrary`` for a ``lance`` that is too old to write all rows as they are."""
    version = str(library().__version__)
    if int(version.partition(".")[0]) < _WRITES:
        raise MissingLibrary(
            f"write_lance needs pylance {_WRITES} or newer, and {version} is installed: {install_hint('lance')}."
        )


def said(error: Exception) -> str:
    """Return what the library says, without the place in its own source.

    >>> said(ValueError("Not found: a/_versions, /home/runner/work/lance/rust/io.rs:653:26"))
    'Not found: a/_versions'
    """
    return " ".join(str(error).partition(", /")[0].split())[:300].rstrip(".")


@contextlib.contextmanager
def told(place: str, doing: str) -> Iterator[None]:
    """Raise our own errors for those of the library: what was done with which table."""
    try:
        yield
    except HeadraceError:
        raise
    except (ValueError, OSError, RuntimeError) as error:
        raise storage_at(place).failed(f"{doing} the Lance table {place}", error, said(error)) from None


def opened(place: str, options: Options, version: int | str | None) -> Any:
    """Return a table as it is now, or was in a version; raises ``NothingMatched`` if there is none."""
    lance = library()
    given = storage(place, options) or None
    with told(place, "open"):
        try:
            return lance.dataset(place, version=version, storage_options=given)
        except (ValueError, OSError) as error:
            if "not found" not in str(error).lower():
                raise
            try:
                versions = [
                    each["version"] for each in lance.dataset(place, storage_options=given).versions()
                ]
            except (ValueError, OSError):
                raise NothingMatched(f"There is no Lance table at {place}.") from None
            raise SourceError(
                f"The Lance table {place} has no version {version!r}; its last ones are "
                f"{', '.join(map(str, versions[-_SHOWN:]))}. Older ones may have been cleaned up."
            ) from None


_COLUMNS_ONLY = ("Merge", "Project")  # rows keep their values, and columns come or go


class _Fragment(NamedTuple):
    path: str
    deleted: Any  # by what its deletions are recognised
    files: tuple[str, ...]


class State(NamedTuple):
    """The fragments of one version, by their numbers."""

    version: int
    fragments: Mapping[int, _Fragment]

    @classmethod
    def of(cls, place: str, table: Any) -> State:
        """Look at an opened version."""
        found = {}
        for each in table.get_fragments():
            about = each.metadata
            files = tuple(file.path for file in about.files)
            deleted = None if about.deletion_file is None else str(about.deletion_file.asdict())
            found[each.fragment_id] = _Fragment(within(place, f"data/{files[0]}"), deleted, files)
        return cls(int(table.version), found)

    def digest(self) -> str:
        """Return what no other table has in the same version: names of files are made up at random."""
        names = "\n".join(each.files[0] for _, each in sorted(self.fragments.items()))
        return hashlib.sha256(names.encode()).hexdigest()[:32]


def changes_of(table: Any, before: State, after: State) -> list[Change]:
    """Return what a version did to the fragments of the one before."""
    was, now = before.fragments, after.fragments
    operation = operation_of(table, after.version)
    name = f"version {after.version}" + (f" ({operation})" if operation else "")
    touched = [number for number in was.keys() & now.keys() if was[number] != now[number]]
    if operation in _COLUMNS_ONLY and all(was[each].deleted == now[each].deleted for each in touched):
        moved = [(was[each].path, now[each].path) for each in touched if was[each].path != now[each].path]
        return [Change(name, before.version, "rewrite", [new], {old}) for old, new in moved]
    added = [each.path for number, each in now.items() if number not in was]
    removed = {each.path for number, each in was.items() if number not in now}
    kind: Kind = "change" if removed or touched else "append"
    if operation == "Rewrite" and not touched:
        kind = "rewrite"
    added += [now[number].path for number in touched]
    removed |= {was[number].path for number in touched}
    return [Change(name, before.version, kind, added, removed)]


def operation_of(table: Any, version: int) -> str:
    """Return what a version did, in the words of the library; "" if it does not say."""
    try:
        found = table.read_transaction(version)
    except (
        TypeError
    ) as error:  # the library cannot say what it did to indices, which only this operation does
        if "RewrittenIndex" in str(error):
            return "Rewrite"
        raise
    return "" if found is None else type(found.operation).__name__
