"""An output as it is now, wherever it lies: for those who only look."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from headrace.core.files import safe_files
from headrace.core.files.paths import absolute
from headrace.core.stores.addresses import is_address, parse_output
from headrace.core.stores.options import Options, checked_for_output
from headrace.core.stores.writing import StoreWriter
from headrace.core.uploading.local import LocalFolder
from headrace.core.work import REJECTED
from headrace.errors import NothingMatched
from headrace.output.folder import HOME
from headrace.output.lock import holder
from headrace.output.stores.copies import Listing, copy_home, listing_of, naming
from headrace.output.stores.lease import LOCK, SILENCE, is_here, parsed


class Looked(NamedTuple):
    """An output to look at: the folder, or a copy of its small files; what it is called; who writes it."""

    root: Path
    name: str
    writer: str | None
    store: StoreWriter | None = None
    there: Listing = {}  # noqa: RUF012 - never changed

    @property
    def place(self) -> Path | str:
        """The output, for others: a path, or an address."""
        return self.root if self.store is None else self.name

    def visible(self) -> list[str]:
        """Return the names of files that readers see, and of those that hold rejected rows."""
        hidden = ("_", ".")
        aside = [name.removeprefix(f"{REJECTED}/") for name in self.there]
        kept = [not any(part.startswith(hidden) for part in name.split("/")) for name in aside]
        return [name for name, visible in zip(self.there, kept, strict=True) if visible]

    def size_of(self, name: str) -> int:
        """Return the bytes that a file has; -1 if there is none."""
        if self.store is not None:
            return self.there.get(name, -1)
        try:
            return safe_files.size(self.root / name)
        except OSError:
            return -1

    @contextlib.contextmanager
    def opened(self, name: str) -> Iterator[Path]:
        """Return where a file can be read, meanwhile; there is nothing if the output has none of that name."""
        if self.store is None:
            yield self.root / name
            return
        path = self.root.parent / f"{os.urandom(8).hex()}-{name.rpartition('/')[2]}"
        try:
            with safe_files.new_file(path) as file:
                found = self.store.fetch(name, file)
            if not found:
                path.unlink()
            yield path
        finally:
            with contextlib.suppress(FileNotFoundError):
                path.unlink()


@contextlib.contextmanager
def looked_at(path: str | os.PathLike[str], options: Options | None = None) -> Iterator[Looked]:
    """Return an output for looking at it; of one in a store, plan, journal, record and marks are copied.

    Raises ``NothingMatched`` for a place in a store where no run has written.
    """
    text = os.fspath(path)
    if not is_address(text):
        root = Path(absolute(text, "The output path"))
        yield Looked(root, str(root), holder(root))
        return
    store = StoreWriter(parse_output(text), checked_for_output(None) if options is None else options)
    there = listing_of(store)
    if not any(name.startswith(f"{HOME}/") for name in there):
        raise NothingMatched(f"There is no output of Headrace in {store.address}: no run has written there.")
    local = LocalFolder()
    try:
        with naming(local.root, str(store.address)):
            copy_home(store, local.root, there)
            yield Looked(local.root, str(store.address), writer_of(store), store, there)
    finally:
        local.close()


def writer_of(store: StoreWriter) -> str | None:
    """Return who writes an output in a store now: its lease is held, and was renewed not long ago."""
    found = store.get(LOCK)
    lease = parsed(found[0]) if found is not None else {}
    if found is None or not lease.get("held"):
        return None
    here = is_here(lease)
    alive = time.time() - found[1].written.timestamp() < SILENCE if here is None else here
    return str(lease.get("who")) if alive else None
