"""The path of an object: a string that knows which content was planned with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.core.stores.addresses import Address, parse
from headrace.core.stores.options import Options

if TYPE_CHECKING:
    from headrace.core.stores.clients import Client, Entry


class ObjectPath(str):
    """The address of an object, with its size and version as they were when the input was listed."""

    size: int
    version: str
    options: Options

    @classmethod
    def of(cls, address: Address, entry: Entry, options: Options) -> ObjectPath:
        """Return the path of an object of a listing."""
        path = cls(address._replace(key=entry.key))
        path.size, path.version, path.options = entry.size, entry.version, options
        return path

    @property
    def number(self) -> int:
        """The version as a number: where files have their time of change."""
        import hashlib

        return int.from_bytes(hashlib.blake2b(self.version.encode(), digest_size=7).digest(), "big")

    def opened(self) -> tuple[Client, Entry]:
        """Return the client of the object's store, and what to ask it for."""
        from headrace.core.stores.clients import Entry, client_for  # only where objects are read

        address = parse(self)
        return client_for(address, self.options), Entry(address.key, self.size, self.version)

    def content(self) -> bytes | memoryview:
        """Return all bytes."""
        client, entry = self.opened()
        return client.fetch(entry, 0, entry.size)
