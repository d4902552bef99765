"""From addresses to input objects: single ones, folders, patterns, by the rules that hold for files.

A store has no folders: what a folder holds are the keys that begin with its name and a slash.
"""

from __future__ import annotations

from collections.abc import Iterable

from headrace.core.files.input_files import InputFile
from headrace.core.files.listing import MAGIC, chosen
from headrace.core.stores.addresses import WEB, Address, Options, parse
from headrace.core.stores.clients import Client, Entry, client_for
from headrace.core.stores.objects import ObjectPath
from headrace.core.terminal import warn
from headrace.errors import NothingMatched, UnreadableFile

_SHOWN = 3


class _Node:
    """An object; without one, a folder of those that keys make. There may be millions, so each is small."""

    __slots__ = ("_folder", "file", "folders", "objects")

    def __init__(self, folder: str = "", file: InputFile | None = None) -> None:
        self._folder, self.file = folder, file
        self.folders: dict[str, _Node] = {} if file is None else _NONE
        self.objects: list[_Node] = [] if file is None else _NOTHING

    @property
    def name(self) -> str:
        return self._folder if self.file is None else self.file.path.rpartition("/")[2]

    @property
    def is_folder(self) -> bool:
        return self.file is None

    @property
    def real(self) -> _Node:
        return self

    def inside(self) -> Iterable[_Node]:
        return [*self.objects, *self.folders.values()]


_NONE: dict[str, _Node] = {}
_NOTHING: list[_Node] = []


def record(path: str, options: Options) -> InputFile:
    """Return what identifies the present state of an object."""
    address = parse(path)
    entry = client_for(address, options).head(address.key)
    if entry is None:
        raise UnreadableFile(f"Cannot look at input object {path!r}: there is none.")
    return _input(address, entry, options)


def expand(argument: str, suffixes: tuple[str, ...] | None, options: Options) -> list[InputFile]:
    """List the objects behind an address: one, a folder's, or those that match a pattern."""
    address = parse(argument)
    client = client_for(address, options)
    if address.scheme in WEB:
        entry = client.head(address.key)
        if entry is None:
            raise NothingMatched(
                f"No input at {argument!r}: the server has no such file. Give the full address of each file: a web "
                "server cannot list its files."
            )
        return [_input(address, entry, options)]
    entry = client.head(address.key) if _may_be_object(address.key) else None
    if entry is not None:
        return [_input(address, entry, options)]
    parts = address.key.rstrip("/").split("/") if address.key else []
    first = next((i for i, part in enumerate(parts) if MAGIC.search(part)), len(parts))
    root = _tree(client, address, "".join(f"{part}/" for part in parts[:first]), options)
    if (
        not parts[first:]
        and "_headrace" in root.folders
        and all(node.name != "_SUCCESS" for node in root.objects)
    ):
        warn(
            f"{address} is the unfinished output of a headrace run: _SUCCESS is missing, and rows may be "
            "missing, too. Run its job again to complete it."
        )
    found = list(chosen(root, parts[first:], suffixes))
    if not found:
        names = [node.name for node in chosen(root, parts[first:], None)]
        raise NothingMatched(_why_nothing(argument, names, suffixes))
    return [node.file for node in found if node.file is not None]


def _may_be_object(key: str) -> bool:
    return bool(key) and not key.endswith("/") and "*" not in key


def _input(address: Address, entry: Entry, options: Options) -> InputFile:
    path = ObjectPath.of(address, entry, options)
    return InputFile(path, entry.size, path.number)


def _tree(client: Client, address: Address, root: str, options: Options) -> _Node:
    """List what begins with ``root``, as folders in folders."""
    tree = _Node()
    for entry in client.entries(root):
        *folders, name = entry.key[len(root) :].split("/")
        if not name or (entry.size == 0 and "." not in name and client.head(entry.key) is None):
            continue  # what some tools leave where a folder is: its slash is lost in the listing
        folder = tree
        for part in folders:
            folder = folder.folders.setdefault(part, _Node(part))
        folder.objects.append(_Node(file=_input(address, entry, options)))
    return tree


def _why_nothing(argument: str, names: list[str], suffixes: tuple[str, ...] | None) -> str:
    start = f"No input object at {argument!r}: "
    if not names:
        return (
            f"{start}there is no object of this name, and no matching object below it; names that begin with '_' or "
            "'.' are skipped. Check the bucket and the key."
        )
    shown = ", ".join(map(repr, names[:_SHOWN]))
    wanted = f" that ends in {', '.join(suffixes)}" if suffixes else ""
    return (
        f"{start}none of the {len(names):,} objects there, such as {shown}, has a name{wanted}. Name the objects, or "
        "give a pattern such as '*.xyz'."
    )
