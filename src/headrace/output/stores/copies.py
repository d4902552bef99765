"""The small files of an output in a store, copied to a folder of this machine."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from headrace.core.files import safe_files
from headrace.core.metric_states import STATES
from headrace.core.stores.writing import StoreWriter, Version
from headrace.errors import HeadraceError
from headrace.output.folder import HOME, SUCCESS
from headrace.output.names import read_pointer
from headrace.output.stores.lease import Lease
from headrace.output.stores.numbered import NumberedObjects, copy_of

POINTERS = ("current", "next")
_SMALL = re.compile(rf"(?!(?:events|openlineage)-\d)[A-Za-z0-9_-][A-Za-z0-9_.-]*|{STATES}/[0-9a-f]{{64}}")
_ALWAYS = ("plan", "manifest", "events.jsonl")  # asked for whatever a listing says: it may be old
_AT_ONCE = 16

Listing = dict[str, int]


@dataclass(slots=True)
class Copied:
    """What was copied: the version of each object, and the objects of each run's journal."""

    versions: dict[str, Version] = field(default_factory=dict)
    journals: dict[str, NumberedObjects] = field(default_factory=dict)


@contextlib.contextmanager
def naming(root: Path, name: str) -> Iterator[None]:
    """Let errors name what ``root`` is a copy of."""
    try:
        yield
    except HeadraceError as error:
        if str(root) in str(error):
            error.args = (str(error).replace(str(root), name),)
        raise


def listing_of(store: StoreWriter) -> Listing:
    """Return the names and sizes of all objects of an output."""
    return dict(store.names(""))


def copy_home(
    store: StoreWriter, root: Path, there: Listing, lease: Lease | None = None, *, but: str = ""
) -> Copied:
    """Copy pointers, ``_SUCCESS``, and the plan, journal, record and states of the runs that pointers name.

    ``but``: a name that is left out. What a listing has and is gone by now is left out, too.
    """
    copied = Copied()
    home = root / HOME
    safe_files.make_folder(home, 0o700)
    for pointer in POINTERS:
        _copy(store, f"{HOME}/{pointer}", home / pointer, copied)
    _copy(store, SUCCESS, root / SUCCESS, copied)
    for run in filter(None, [read_pointer(home / pointer) for pointer in POINTERS]):
        folder, prefix = home / run, f"{HOME}/{run}/"
        safe_files.make_folder(folder, 0o700)
        names = [name.removeprefix(prefix) for name in there if name.startswith(prefix)]
        small = [name for name in {*names, *_ALWAYS} if _SMALL.fullmatch(name) and name != but]
        if any("/" in name for name in small):
            safe_files.make_folder(folder / STATES, 0o700)
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="headrace-copies") as threads:
            done = threads.map(lambda name: _copy(store, prefix + name, folder / name, copied), small)  # noqa: B023
            list(done)
        listed = sum(1 for name in names if name.startswith("journal/"))
        copied.journals[run] = copy_of(store, run, folder / "journal", lease, listed=listed)
    return copied


def _copy(store: StoreWriter, name: str, path: Path, copied: Copied) -> None:
    found = store.get(name)
    if found is not None:
        safe_files.write(path, found[0], lasting=False)
        copied.versions[name] = found[1].version
