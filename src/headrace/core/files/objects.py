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
    """An object; without one, a folder of those that keys make."""

    def __init__(self, name: str, entry: Entry | None = None) -> None:
        self.name, self.entry = name, entry
        self.nodes: dict[str, _Node] = {}
        self.is_folder, self.real = entry is None, self

    def inside(self) -> Iterable[_Node]:
        return [self.nodes[key] for key in sorted(self.nodes)]


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
    root = _tree(client, "".join(f"{part}/" for part in parts[:first]))
    if not parts[first:] and "_headrace/" in root.nodes and "_SUCCESS" not in root.nodes:
        warn(
            f"{address} is the unfinished output of a headrace run: _SUCCESS is missing, and rows may be "
            "missing, too. Run its job again to complete it."
        )
    found = list(chosen(root, parts[first:], suffixes))
    if not found:
        names = [node.name for node in chosen(root, parts[first:], None)]
        raise NothingMatched(_why_nothing(argument, names, suffixes))
    return [_input(address, node.entry, options) for node in found if node.entry is not None]


def _may_be_object(key: str) -> bool:
    return bool(key) and not key.endswith("/") and "*" not in key


def _input(address: Address, entry: Entry, options: Options) -> InputFile:
    path = ObjectPath.of(address, entry, options)
    return InputFile(path, entry.size, path.number)


def _tree(client: Client, root: str) -> _Node:
    """List what begins with ``root``, as folders in folders; the key of each ends with a slash."""
    tree = _Node("")
    for entry in client.entries(root):
        *folders, name = entry.key[len(root) :].split("/")
        if not name or (entry.size == 0 and "." not in name and client.head(entry.key) is None):
            continue  # what some tools leave where a folder is: its slash is lost in the listing
        folder = tree
        for part in folders:
            folder = folder.nodes.setdefault(f"{part}/", _Node(part))
        folder.nodes[name] = _Node(name, entry)
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
