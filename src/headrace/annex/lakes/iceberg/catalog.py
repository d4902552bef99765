"""Opening Iceberg tables by their catalogue, with the library ``pyiceberg``; its errors in our words."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from headrace.core.files.storage import storage_at
from headrace.core.install import install_hint
from headrace.core.stores.options import Options, checked
from headrace.errors import ArgumentError, HeadraceError, MissingLibrary, SourceError

_SECRET = re.compile(
    r"secret|passw|token|credential|access-key|account-key|connection-string|sas", re.IGNORECASE
)
_IN_ADDRESS = re.compile(r"://[^/@]*:[^/@]*@")
_STORE = {"s3.endpoint": "endpoint", "s3.region": "region", "client.region": "region"}


class Catalog(NamedTuple):
    """Which catalogue: its name in the configuration of PyIceberg, and what it has besides."""

    name: str | None
    properties: tuple[tuple[str, str], ...]

    @classmethod
    def given(
        cls, catalog: str | Mapping[str, Any] | None, kwargs: Mapping[str, Any] | None, verb: str
    ) -> Catalog:
        """Read what names a catalogue; refuse secrets.

        >>> Catalog.given({"type": "sql", "uri": "sqlite:///lake.db"}, None, "read_iceberg").name
        >>> Catalog.given("lake", {"s3.secret-access-key": "…"}, "read_iceberg")
        Traceback (most recent call last):
        headrace.errors.ArgumentError: read_iceberg: the catalogue must not be given 's3.secret-access-key': ...
        """
        if not isinstance(catalog, (str, Mapping, type(None))) or not isinstance(
            kwargs, (Mapping, type(None))
        ):
            raise ArgumentError(
                f"{verb}: catalog= is the name of a catalogue in the configuration of PyIceberg, or a dict of its "
                "properties, such as {'type': 'sql', 'uri': 'sqlite:///lake.db', 'warehouse': 'lake/'}."
            )
        found = {**(catalog if isinstance(catalog, Mapping) else {}), **(kwargs or {})}
        name = found.pop("name", catalog if isinstance(catalog, str) else None)
        for key, value in found.items():
            if _SECRET.search(str(key)) or _IN_ADDRESS.search(str(value)):
                raise ArgumentError(
                    f"{verb}: the catalogue must not be given {str(key)!r}: credentials come from the environment "
                    "(AWS_ACCESS_KEY_ID, PYICEBERG_CATALOG__NAME__URI, …) or from ~/.pyiceberg.yaml, so that they "
                    "are never written into plans and reports."
                )
        return cls(name, tuple(sorted((str(key), str(value)) for key, value in found.items())))

    def load(self) -> Any:
        """Return the library's catalogue."""
        try:
            from pyiceberg.catalog import load_catalog
        except ImportError as error:
            raise MissingLibrary(f"Iceberg tables need pyiceberg: {install_hint('iceberg')}.") from error
        with told("open the catalogue", self.name or "of this name"):
            return load_catalog(self.name, **dict(self.properties))


@contextlib.contextmanager
def told(doing: str, what: str) -> Iterator[None]:
    """Raise ``SourceError`` for errors of the library, whose words may hold what only a catalogue should know."""
    try:
        yield
    except HeadraceError:
        raise
    except Exception as error:
        said = re.sub(r"://[^\s/]*@", "://***@", " ".join(str(error).split()))[:300].rstrip(".")
        raise SourceError(f"Cannot {doing} {what}: {type(error).__name__}: {said}.") from None


def given_identifier(identifier: Any, verb: str) -> str:
    """Return the name of a table, with its namespace."""
    if not isinstance(identifier, str) or not all(identifier.split(".")) or "." not in identifier:
        raise ArgumentError(
            f"{verb}: a table is named with its namespace, such as 'shop.sales', not {identifier!r}."
        )
    return identifier


def opened(identifier: str, catalog: Catalog) -> Any | None:
    """Return a table as it is now; None if there is none."""
    found = catalog.load()
    from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

    with told("open the Iceberg table", identifier):
        try:
            return found.load_table(identifier)
        except (NoSuchTableError, NoSuchNamespaceError):
            return None


def store_options(properties: Mapping[str, Any], place: str) -> Options:
    """Return what our own client needs to know of the store of a table, by what the catalogue says."""
    return storage_at(
        place, checked({ours: properties[name] for name, ours in _STORE.items() if properties.get(name)})
    ).options
