"""Opening Lance tables, by the library ``pylance``; its errors in our words."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from headrace.core.install import install_hint
from headrace.core.stores.addresses import is_address
from headrace.core.stores.failures import reason
from headrace.core.stores.options import Options
from headrace.core.tables.delta import storage
from headrace.errors import HeadraceError, MissingLibrary, NothingMatched, SourceError, StoreFailed

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
        if is_address(place):
            raise StoreFailed(f"Cannot {doing} the Lance table {place}: {reason(error)}") from None
        raise SourceError(f"Cannot {doing} the Lance table {place}: {said(error)}.") from None


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
