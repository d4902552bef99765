"""From addresses to input objects: single ones, folders, patterns, by the rules that hold for files.

A store has no folders: what a folder holds are the keys that begin with its name and a slash.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator
from typing import TypeAlias

from headrace.core.files.input_files import InputFile
from headrace.core.stores.addresses import WEB, Address, parse
from headrace.core.stores.clients import Client, Entry, client_for
from headrace.core.stores.objects import ObjectPath
from headrace.core.stores.options import Options
from headrace.core.warn import warn
from headrace.errors import NothingMatched, UnreadableFile

_MAGIC = re.compile(r"[*?\[]")
_SHOWN = 3
_Folder: TypeAlias = "dict[str, Entry | _Folder]"


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
    entries, suffixes = _listed(client, address, suffixes)
    chosen = _of_format(entries, suffixes)
    if not chosen:
        raise NothingMatched(_why_nothing(argument, entries, suffixes))
    return [_input(address, each, options) for each in chosen]


def _may_be_object(key: str) -> bool:
    return bool(key) and not key.endswith("/") and "*" not in key


def _input(address: Address, entry: Entry, options: Options) -> InputFile:
    path = ObjectPath.of(address, entry, options)
    return InputFile(path, entry.size, path.number)


def _of_format(entries: list[Entry], suffixes: tuple[str, ...] | None) -> list[Entry]:
    if suffixes is None:
        return entries
    chosen = [entry for entry in entries if entry.key.lower().endswith(suffixes)]
    return chosen or [entry for entry in entries if "." not in entry.key.rpartition("/")[2]]


def _listed(
    client: Client, address: Address, suffixes: tuple[str, ...] | None
) -> tuple[list[Entry], tuple[str, ...] | None]:
    """Return the objects of a folder, or those that match a pattern, in order; and the suffixes that count there."""
    parts = address.key.rstrip("/").split("/") if address.key else []
    first = next((i for i, part in enumerate(parts) if _MAGIC.search(part)), len(parts))
    root, pattern = "".join(f"{part}/" for part in parts[:first]), parts[first:]
    tree = _tree(client, root)
    if not pattern:
        if "_headrace/" in tree and "_SUCCESS" not in tree:
            warn(
                f"{address} is the unfinished output of a headrace run: _SUCCESS is missing, and rows may be "
                "missing, too. Run its job again to complete it."
            )
        return list(_walk(tree)), suffixes
    spelt = tuple(mark for mark in "_." if any(part.startswith(mark) for part in pattern))
    found = dict.fromkeys(entry for match in _glob(tree, pattern, spelt) for entry in _below(match))
    return list(found), None if pattern[-1].strip("*") else suffixes


def _tree(client: Client, root: str) -> _Folder:
    """List what begins with ``root``, as folders in folders; the name of each ends with a slash."""
    tree: _Folder = {}
    for entry in client.entries(root):
        *folders, name = entry.key[len(root) :].split("/")
        if not name or (entry.size == 0 and "." not in name and client.head(entry.key) is None):
            continue  # what some tools leave where a folder is: its slash is lost in the listing
        folder = tree
        for part in folders:
            inner = folder.setdefault(f"{part}/", {})
            assert isinstance(inner, dict)
            folder = inner
        folder[name] = entry
    return tree


def _below(node: Entry | _Folder) -> Iterator[Entry]:
    return _walk(node) if isinstance(node, dict) else iter([node])


def _walk(folder: _Folder) -> Iterator[Entry]:
    for _, node in _shown(folder, ()):
        yield from _below(node)


def _glob(folder: _Folder, parts: list[str], spelt: tuple[str, ...]) -> Iterator[Entry | _Folder]:
    """Yield what matches, in the order in which files do."""
    part, rest = parts[0], parts[1:]
    if part == "**":
        if rest:
            yield from _glob(folder, rest, spelt)
        for _, node in _shown(folder, spelt):
            if isinstance(node, dict):
                yield from _glob(node, parts, spelt)
            elif not rest:
                yield node
        return
    fits = re.compile(fnmatch.translate(part)).match
    for name, node in _shown(folder, spelt):
        if fits(name):
            if not rest:
                yield node
            elif isinstance(node, dict):
                yield from _glob(node, rest, spelt)


def _shown(folder: _Folder, spelt: tuple[str, ...]) -> Iterator[tuple[str, Entry | _Folder]]:
    named = sorted((name.rstrip("/"), name) for name in folder)
    return ((name, folder[key]) for name, key in named if not _hidden(name, key != name, spelt))


def _hidden(name: str, is_folder: bool, spelt: tuple[str, ...]) -> bool:
    mark = name[:1]
    if mark not in ("_", ".") or mark in spelt:
        return False
    return not (mark == "_" and is_folder and "=" in name)  # a partition key may begin with "_"


def _why_nothing(argument: str, entries: list[Entry], suffixes: tuple[str, ...] | None) -> str:
    start = f"No input object at {argument!r}: "
    if not entries:
        return (
            f"{start}there is no object of this name, and no matching object below it; names that begin with '_' or "
            "'.' are skipped. Check the bucket and the key."
        )
    names = ", ".join(repr(entry.key.rpartition("/")[2]) for entry in entries[:_SHOWN])
    wanted = f" that ends in {', '.join(suffixes)}" if suffixes else ""
    return (
        f"{start}none of the {len(entries):,} objects there, such as {names}, has a name{wanted}. Name the objects, "
        "or give a pattern such as '*.xyz'."
    )
