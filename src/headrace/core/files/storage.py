"""Where files lie: on a disk of this machine, or behind an address. Only this file asks which of the two it is."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from headrace.core.files import safe_files
from headrace.core.stores.addresses import (
    Address,
    Options,
    checked,
    is_address,
    parse,
    parse_output,
    scheme_of,
    unsigned,
    without_secrets,
)
from headrace.errors import ArgumentError, HeadraceError, SourceError

if TYPE_CHECKING:
    from headrace.core.files.input_files import InputFile
    from headrace.core.work import Durability


# ---------------------------------------------------------------- paths as they are given

_NEVER = (errno.ENAMETOOLONG, errno.ELOOP)
_SHOWN = 200


def absolute(path: str, what: str) -> str:
    """Return the full form of a path; ``what`` it is, such as "The output path", for messages.

    >>> absolute("/data/../out", "The output path")
    '/out'
    >>> absolute("a\\0b", "The output path")
    Traceback (most recent call last):
    headrace.errors.ArgumentError: The output path 'a\\x00b' has a NUL character in it, which no file name has.
    """
    shown = repr(path if len(path) <= _SHOWN else f"{path[:_SHOWN]}…")
    if "\0" in path:
        raise ArgumentError(f"{what} {shown} has a NUL character in it, which no file name has.")
    expanded = os.path.expanduser(path)
    full = os.path.normpath(expanded if os.path.isabs(expanded) else os.path.join(here(), expanded))
    try:
        os.lstat(full)
    except UnicodeEncodeError:
        raise ArgumentError(f"{what} {shown} has a character that no file name has.") from None
    except OSError as error:
        if error.errno in _NEVER:
            raise ArgumentError(f"{what} {shown} cannot be used: {error.strerror}.") from error
    return full


def here() -> str:
    """Return the present folder."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise ArgumentError(
            "The folder in which this program runs was removed: go to another one (cd), or give full paths."
        ) from None


T = TypeVar("T")

_KEY = 1024  # bytes that the key of an object may have
_MAGIC = frozenset("*?[")


class Storage:
    """A file, a folder or a pattern on this machine, by its full path, and what it takes to read or write there.

    ``InStore`` is one by its address. ``options`` say what a store needs to know; a disk needs none, and has none.
    """

    latency: ClassVar[float] = 0.0
    """Seconds that it takes to look at a file, about: if there are many, they are looked at together."""

    blocks: ClassVar[tuple[int, int]] = (128 << 10, 8 << 20)
    """How many bytes are read at least, and at most, where a big file is read in parts."""

    def __init__(self, path: str, options: Options = ()) -> None:
        self.path, self.options = path, options

    def pick(self, on_disk: T, in_store: T) -> T:
        """Return the one of two which is for here: for a room that has an adapter of its own for each."""
        return on_disk

    def on_disk(self, refusal: str) -> str:
        """Return the path, which other libraries can open; raises ``ArgumentError(refusal)`` for an address."""
        return self.path

    # ------------------------------------------------------------ input

    def expanded(self, suffixes: tuple[str, ...] | None) -> list[InputFile]:
        """List the files of input that are here; of a folder, those that end in ``suffixes`` (None: all).

        A folder in which nothing has such a suffix gives its files without any suffix. A file that is named, or
        matched by a pattern whose last part is more than wildcards, is read whatever its suffix.
        """
        from headrace.core.files import listing

        return listing.expand(self.path, suffixes)

    def record(self) -> InputFile:
        """Return what identifies the present state of the file."""
        from headrace.core.files import listing

        return listing.record(self.path)

    def names(self) -> Iterable[str]:
        """Return the files that are here, whatever their suffixes; they are looked for as they are taken."""
        from headrace.core.files import listing

        return listing.matches(self.path)

    def may_hold(self) -> bool:
        """Say whether this may be a folder; of a store, whose folders nobody sees, unless it is a pattern."""
        return os.path.isdir(self.path)

    def may_match(self) -> bool:
        """Say whether input may be here, as far as it is told without a request."""
        return not _MAGIC.isdisjoint(self.path) or os.path.exists(self.path)

    def known_size(self) -> int | None:
        """Return the bytes of the file, -1 if it cannot be looked at; None where that would take a request."""
        try:
            return os.stat(self.path).st_size
        except OSError:
            return -1

    def may_name(self, path: str) -> bool:
        """Say whether a table that is here may name a file that is there: others write tables of a store."""
        return True

    # ------------------------------------------------------------ an output

    def size_of(self, name: str) -> int | None:
        """Return the size of a file, by its name from the folder on; None if there is none."""
        try:
            return os.stat(os.path.join(self.path, name)).st_size
        except FileNotFoundError:
            return None

    def opened(self, name: str) -> Any:
        """Open a file for reading, by its name from the folder on; raises ``FileNotFoundError``."""
        return safe_files.file(os.path.join(self.path, name))

    def longest_path(self, near: str) -> int:
        """Return how many bytes a path may have; the folder ``near`` is on the disk that files are staged on."""
        return os.pathconf(near, "PC_PATH_MAX")

    def syncs(self, durability: Durability) -> bool:
        """Say whether files have to be synced to last as a run promises; what a store has taken lasts."""
        return durability == "power"

    # ------------------------------------------------------------ words

    def words(self, error: Exception, said: str) -> str:
        """Return what a library's error says in a message, which ``said`` is; that of a store may quote secrets."""
        return f"{said}."

    def failed(self, doing: str, error: Exception, said: str) -> HeadraceError:
        """Return our error for one of a library that was ``doing`` something here."""
        return SourceError(f"Cannot {doing}: {said}.")


class InStore(Storage):
    """An address of an object store, or of a web server."""

    latency = 0.05
    blocks = (4 << 20, 16 << 20)  # each is a request of its own

    def pick(self, on_disk: T, in_store: T) -> T:
        return in_store

    def on_disk(self, refusal: str) -> str:
        raise ArgumentError(refusal)

    def expanded(self, suffixes: tuple[str, ...] | None) -> list[InputFile]:
        from headrace.core.files import objects

        return objects.expand(self.path, suffixes, self.options)

    def record(self) -> InputFile:
        from headrace.core.files import objects

        return objects.record(self.path, self.options)

    def names(self) -> Iterable[str]:
        return (file.path for file in self.expanded(None))

    def may_hold(self) -> bool:
        return _MAGIC.isdisjoint(self.path)

    def may_match(self) -> bool:
        return True

    def known_size(self) -> int | None:
        return None

    def may_name(self, path: str) -> bool:
        return is_address(path)

    def size_of(self, name: str) -> int | None:
        entry = self._object(name)[1]
        return None if entry is None else int(entry.size)

    def opened(self, name: str) -> Any:
        from headrace.core.stores.objects import ObjectPath, open_arrow

        address, entry = self._object(name)
        if entry is None:
            raise FileNotFoundError(str(address))
        return open_arrow(ObjectPath.of(address, entry, self.options))

    def _object(self, name: str) -> tuple[Address, Any]:
        from headrace.core.stores.clients import client_for

        address = parse(f"{self.path}/{name}")
        return address, client_for(address, self.options).head(address.key)

    def longest_path(self, near: str) -> int:
        return _KEY

    def syncs(self, durability: Durability) -> bool:
        return False

    def words(self, error: Exception, said: str) -> str:
        from headrace.core.stores.addresses import reason

        return reason(error)

    def failed(self, doing: str, error: Exception, said: str) -> HeadraceError:
        from headrace.core.stores.addresses import failed

        return failed(doing, error)


# ---------------------------------------------------------------- made of what is given


def storage_at(path: str, options: Options = ()) -> Storage:
    """Return where a full path or an address leads; ``options`` are for the latter.

    >>> options = (("region", "eu-west-1"),)
    >>> storage_at("s3://bucket/key", options).options == options, storage_at("/data/x", options).options
    (True, ())
    """
    return InStore(path, options) if is_address(path) else Storage(path)


def given(text: str, what: str, read: Callable[[str], Address] = parse) -> Storage:
    """Return what a text stands for that may be relative, or begin with ``file://``, or with ``local://`` as in Ray.

    ``what`` it is, for messages; ``read`` is how an address is read. One with ``anonymous@`` is without it then.
    """
    text = text.removeprefix("local://")
    if is_address(text):
        path, options = unsigned(read(text), None)
        return InStore(path, checked(options))
    if scheme_of(text):
        host, slash, rest = text.partition("://")[2].partition("/")
        if host not in ("", "localhost") or not slash:
            raise ArgumentError(
                f"Cannot read {without_secrets(text)!r}: write a local file as file:///folder/name."
            )
        from urllib.parse import unquote

        text = "/" + unquote(rest)
    return Storage(absolute(text, what))


def signed_alike(places: Iterable[Storage]) -> Options:
    """Return the options of all addresses among some: requests are either signed or, with ``anonymous@``, not."""
    options = {each.options for each in places if each.pick(False, True)}
    if len(options) > 1:
        raise ArgumentError(
            "Some of the addresses begin with anonymous@ and others do not, and one reader signs either all of its "
            "requests or none. Read them with two readers, and combine these with union."
        )
    return options.pop() if options else ()


def output_at(path: str | os.PathLike[str], options: Options | Mapping[str, Any] | None = ()) -> Storage:
    """Return where an output is, or is to be; refuse an address where nothing can be committed."""
    text = os.fspath(path)
    if is_address(text):
        text, options = unsigned(parse_output(text), options)
        return InStore(text.rstrip("/"), checked(options))
    if "://" in text:
        raise ArgumentError(f"Cannot write to {text!r}: give the folder as a path, without the scheme.")
    return Storage(absolute(text, "The output path"))
