"""The outputs below a folder or an address: on a disk its folders are walked, in a store one listing is read."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from headrace.core.files.storage import output_at
from headrace.core.stores.options import Options
from headrace.core.warn import warn
from headrace.core.work import HOME, SUCCESS
from headrace.errors import NothingMatched
from headrace.output.places.folder import Folder
from headrace.output.places.place import Place
from headrace.output.runs import check_is_folder

_LAST = "\U0010ffff"  # behind all names


def outputs_below(path: str | os.PathLike[str], options: Options) -> tuple[str, list[Place]]:
    """Return the name of a folder or an address, and the outputs there; none is opened yet.

    What lies in an output is passed over, and so are links and folders whose names begin with a dot. Raises
    ``NothingMatched`` if there is no such folder.
    """
    storage = output_at(path, options)
    below: Callable[[str, Options], tuple[str, list[Place]]] = storage.pick(_folders, _stores)
    return below(storage.path, storage.options)


def _folders(path: str, options: Options) -> tuple[str, list[Place]]:
    root = Path(path)
    check_is_folder(root)
    return path, list(_folders_below(root))


def _folders_below(folder: Path) -> Iterator[Place]:
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError as error:
        warn(f"{folder} cannot be listed: {error.strerror}. Outputs in it are left out.")
        return
    if HOME in names:
        yield Folder(folder)
        return
    for name in names:
        if not name.startswith("."):
            yield from _folders_below(folder / name)


def _stores(address: str, options: Options) -> tuple[str, list[Place]]:
    """See what is there by a listing that passes over parts. Raises ``NothingMatched`` if there is nothing."""
    from headrace.core.stores.addresses import parse_output
    from headrace.core.stores.writing import PAGE, StoreWriter  # only where outputs lie in stores
    from headrace.output.places.store import Store

    objects = StoreWriter(parse_output(address), options)
    found: dict[str, dict[str, int]] = {}
    marks: dict[str, int] = {}
    page = objects.names_after("")
    if not page:
        raise NothingMatched(f"There is nothing in {objects.address}.")
    while page:
        for name, size in page:
            folder, home, rest = f"/{name}".partition(f"/{HOME}/")
            if home:
                found.setdefault(folder[1:], {})[f"{HOME}/{rest}"] = size
            elif name.rpartition("/")[2] == SUCCESS:
                marks[name.rpartition("/")[0]] = size
        page = objects.names_after(_behind(page[-1][0], found)) if len(page) == PAGE else []
    outputs: list[Place] = []
    for root, names in found.items():
        above = ["", *("/".join(root.split("/")[:i]) for i in range(1, root.count("/") + 1))]
        if not root or not any(each in found for each in above):
            there = names | ({SUCCESS: marks[root]} if root in marks else {})
            outputs.append(Store(objects.url(root).rstrip("/"), options, listed=there))
    return str(objects.address), outputs


def _behind(last: str, outputs: Collection[str]) -> str:
    """Return where a listing goes on that ``last`` has ended: behind the folder of a run, such as its journal, or
    behind the output, if that is where it is.

    >>> _behind("a/_headrace/k3f9a2xq/journal/0000000007", {"a"}), _behind("a/part-1", {"a"}), _behind("b/x", {"a"})
    ('a/_headrace/k3f9a2xq/journal/\U0010ffff', 'a/\U0010ffff', 'b/x')
    """
    root = next((each for each in outputs if last.startswith(f"{each}/" if each else "")), None)
    if root is None:
        return last
    inside = last.removeprefix(f"{root}/").split("/")
    if inside[0] != HOME:
        return f"{root}/{_LAST}".lstrip("/")
    return f"{last[: -len('/'.join(inside[3:]))]}{_LAST}" if len(inside) > 3 else last
