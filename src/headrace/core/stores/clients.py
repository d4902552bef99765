"""Clients of object stores, by one port: obstore for S3, Google, Azure and the web, fsspec for all others.

A client is made when an address is first used, and kept for the process. Nothing of these libraries is imported
before that. Why obstore: docs/decisions/0047.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any, NamedTuple, Protocol, TypeVar

from headrace.core.door import install_hint, needed_by
from headrace.core.process import backoff
from headrace.core.stores.addresses import OBJECT_STORES, WEB, Address, Options, failed, is_passing
from headrace.errors import (
    ArgumentError,
    InputChanged,
    MissingLibrary,
    SourceError,
    StoreFailed,
    UnreadableFile,
)

T = TypeVar("T")

_TRIES = 5
_LISTED_AT_ONCE = 10_000
_ADVICE = "Run again to plan with the input as it is now; objects must not change while they are read."


class Entry(NamedTuple):
    """An object in a listing: its key, its size, and what identifies its present content."""

    key: str
    size: int
    version: str


class Client(Protocol):
    """What reading needs of a store. Errors name the object, and are ours."""

    def head(self, key: str) -> Entry | None:
        """Return the object of this key; None if there is none."""
        ...

    def entries(self, prefix: str) -> Iterator[Entry]:
        """Yield all objects below a folder: ``prefix`` is empty, or ends with a slash."""
        ...

    def fetch(self, entry: Entry, start: int, stop: int) -> bytes | memoryview:
        """Return a range of bytes of an object; raise ``InputChanged`` if it is not the one of ``entry``."""
        ...


def client_for(address: Address, options: Options) -> Client:
    """Return the client for the store of an address."""
    options = _with_anonymous(address, options)
    return _client(address.scheme, address.bucket, address.account, options, _surroundings())


def open_store(address: Address, options: Options) -> Any:
    """Return obstore's client of an address's bucket; the same one as long as the environment is the same."""
    options = _with_anonymous(address, options)
    return _opened(address.scheme, address.bucket, address.account, options, _surroundings())


def _with_anonymous(address: Address, options: Options) -> Options:
    return tuple(sorted({**dict(options), "anonymous": True}.items())) if address.anonymous else options


@functools.lru_cache(maxsize=64)
def _opened(scheme: str, bucket: str, account: str, options: Options, _: object) -> Any:
    return _open_store(scheme, bucket, account, dict(options))


def _surroundings() -> tuple[tuple[str, str], ...]:
    """Return the variables that choose server and credentials: others of them need another client."""
    prefixes = ("AWS_", "GOOGLE_", "AZURE_")
    return tuple(sorted((k, v) for k, v in os.environ.items() if k.startswith(prefixes)))


@functools.lru_cache(maxsize=64)
def _client(scheme: str, bucket: str, account: str, options: Options, _: object) -> Client:
    root = Address(scheme, bucket, "", account)
    if scheme in (*OBJECT_STORES, *WEB):
        return ObstoreClient(root, _open_store(scheme, bucket, account, dict(options)))
    return FsspecClient(root, dict(options))


# ---------------------------------------------------------------- obstore


class ObstoreClient:
    """A bucket, container or web server, by obstore."""

    def __init__(self, root: Address, store: Any) -> None:
        self._root = root
        self._store = store

    def head(self, key: str) -> Entry | None:
        """Ask for the object; a key that this client cannot ask for is none."""
        import obstore

        try:
            return _entry(self._try(key, lambda: obstore.head(self._store, key)))
        except _NoObject:
            return None

    def entries(self, prefix: str) -> Iterator[Entry]:
        """List 1,000 keys by a request."""
        import obstore

        try:
            for page in obstore.list(self._store, prefix.rstrip("/") or None, chunk_size=_LISTED_AT_ONCE):
                yield from map(_entry, page)
        except store_errors() as error:
            raise self._failed("list", self._address(prefix), error) from None

    def fetch(self, entry: Entry, start: int, stop: int) -> bytes | memoryview:
        """Ask for the bytes on the condition that the object is the same; a store that ignores it is noticed."""
        import obstore

        options: dict[str, Any] = {"range": (start, stop)} if stop > start else {}
        options |= _condition(entry.version)

        def get() -> memoryview:
            result = obstore.get(self._store, entry.key, options=options)
            found = _entry(result.meta)
            if (found.version, found.size) != (entry.version, entry.size):
                raise self._changed(entry, found)
            data = memoryview(result.bytes())
            if len(data) != stop - start:
                raise ConnectionError(f"{len(data)} bytes came, not {stop - start}")
            return data

        try:
            return self._try(entry.key, get)
        except _NoObject:
            raise InputChanged(
                f"The input object {self._address(entry.key)!r} is gone since the run was planned. {_ADVICE}"
            ) from None

    def _address(self, key: str) -> str:
        return str(self._root._replace(key=key))

    def _try(self, key: str, call: Callable[[], T]) -> T:
        """Call, again after a pause while trying may help. The client itself tries what fails before an answer."""
        from obstore import exceptions

        for attempt in range(_TRIES):
            try:
                return call()
            except (FileNotFoundError, exceptions.NotFoundError) as error:
                if "<Code>NoSuchBucket" in str(error):
                    raise self._failed("read", self._address(key), error) from None
                raise _NoObject from None
            except exceptions.PreconditionError:
                raise InputChanged(
                    f"The input object {self._address(key)!r} changed since the run was planned. {_ADVICE}"
                ) from None
            except (exceptions.InvalidPathError, ValueError) as error:
                if isinstance(error, ArgumentError):
                    raise
                raise self._bad_key(self._address(key)) from None
            except store_errors() as error:
                if attempt + 1 == _TRIES or not is_passing(error):
                    raise self._failed("read", self._address(key), error) from None
                time.sleep(backoff(attempt + 1, 0.1, 60.0, spread=0.9))
        raise AssertionError("unreachable")

    def _failed(self, verb: str, address: str, error: Exception) -> SourceError:
        if isinstance(error, _bad_keys()):
            return self._bad_key(address)
        return failed(f"{verb} {address!r}", error)

    def _bad_key(self, address: str) -> UnreadableFile:
        return UnreadableFile(
            f"Cannot read {address!r}: a key there has an empty part or a part '.' or '..', as in 'a//b', which this "
            "client cannot ask for. Copy such objects to other keys, or name others one by one."
        )

    def _changed(self, entry: Entry, found: Entry) -> InputChanged:
        return InputChanged(
            f"The input object {self._address(entry.key)!r} changed since the run was planned: it had "
            f"{entry.size:,} bytes and version {entry.version or 'none'}, and has {found.size:,} and "
            f"{found.version or 'none'}. {_ADVICE}"
        )


class _NoObject(Exception):
    """There is no object of this key."""


def _entry(meta: Any) -> Entry:
    tag = meta["e_tag"]
    if tag and not tag.startswith(('"', "W/")):  # Azure's listings leave out the quotes
        tag = f'"{tag}"'
    if not tag:
        modified = meta["last_modified"]
        tag = modified.isoformat() if isinstance(modified, datetime) else ""
    return Entry(meta["path"], meta["size"], tag)


def _condition(version: str) -> dict[str, str]:
    """Return the condition that an object is of this version, if that is an ETag."""
    return {"if_match": version} if version.startswith('"') else {}


@functools.cache
def store_errors() -> tuple[type[Exception], ...]:
    """Return what obstore raises where a store refuses, or cannot be reached."""
    from obstore import exceptions

    return exceptions.BaseError, OSError


@functools.cache
def _bad_keys() -> tuple[type[Exception], ...]:
    from obstore import exceptions

    return (exceptions.InvalidPathError,)


def _open_store(scheme: str, bucket: str, account: str, options: dict[str, Any]) -> Any:
    try:
        from obstore import store as stores
    except ImportError as error:
        raise MissingLibrary(f"Reading {scheme}:// needs obstore: {install_hint('stores')}.") from error
    client = _client_options(scheme, options)
    retry = {
        "max_retries": options.get("retries", 8),
        "retry_timeout": timedelta(seconds=120),
        "backoff": {
            "init_backoff": timedelta(milliseconds=100),
            "max_backoff": timedelta(seconds=10),
            "base": 2,
        },
    }
    common: dict[str, Any] = {"client_options": client, "retry_config": retry}
    if options.get("anonymous") and scheme not in WEB:
        common["skip_signature"] = True
    try:
        if scheme == "s3":
            return stores.S3Store(bucket, **common, **_s3_options(options))
        if scheme == "gs":
            return stores.GCSStore(bucket, **common)
        if scheme in ("az", "abfs"):
            named = account or options.get("account")
            return stores.AzureStore(
                bucket,
                **common,
                **({"account_name": named} if named else {}),
                **({"endpoint": options["endpoint"]} if "endpoint" in options else {}),
            )
        return stores.HTTPStore.from_url(f"{scheme}://{bucket}", client_options=client, retry_config=retry)
    except store_errors() as error:
        raise failed(f"open {scheme}://{bucket}", error) from None


def _client_options(scheme: str, options: dict[str, Any]) -> dict[str, Any]:
    seconds = options.get("timeout", 60.0)
    client: dict[str, Any] = {
        "timeout": timedelta(seconds=seconds),
        "connect_timeout": timedelta(seconds=min(seconds, 5.0)),
        "user_agent": "headrace",
    }
    endpoint = (
        options.get("endpoint") or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    )
    if scheme == "http" or (endpoint or "").startswith("http://"):
        client["allow_http"] = True
    return client


def _s3_options(options: dict[str, Any]) -> dict[str, Any]:
    names = {"endpoint": "endpoint", "region": "region", "request_payer": "request_payer"}
    found = {name: options[key] for key, name in names.items() if key in options}
    if "virtual_hosted" in options:
        found["virtual_hosted_style_request"] = options["virtual_hosted"]
    profile = options.get("profile") or os.environ.get("AWS_PROFILE")
    if profile and not options.get("anonymous"):
        try:
            import boto3
            from obstore.auth.boto3 import Boto3CredentialProvider
        except ImportError as error:
            raise MissingLibrary(
                f"The AWS profile {profile!r} is read by boto3, which is not installed: install it, or set "
                "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY."
            ) from error
        try:
            session = boto3.Session(profile_name=profile)
            found["credential_provider"] = Boto3CredentialProvider(session)
        except Exception as error:  # botocore's and obstore's own
            raise StoreFailed(f"Cannot use the AWS profile {profile!r}: {type(error).__name__}.") from None
        if session.region_name and "region" not in found:
            found["region"] = session.region_name
    return found


# ---------------------------------------------------------------- fsspec


class FsspecClient:
    """A file system by fsspec. It knows no conditions: whether an object changed is asked before and after."""

    def __init__(self, address: Address, options: dict[str, Any]) -> None:
        self._root, scheme, root = address, address.scheme, address.root
        if options:
            raise ArgumentError(
                f"storage_options are for s3://, gs://, az://, abfs:// and https://; {scheme}:// is opened by "
                "fsspec, which takes its own from the environment and its configuration files."
            )
        try:
            import fsspec
        except ImportError as error:
            raise MissingLibrary(f"Reading {scheme}:// needs fsspec: {install_hint('stores')}.") from error
        try:
            self._fs, self._path = fsspec.core.url_to_fs(root + "/")
        except ValueError:
            raise ArgumentError(
                f"Cannot read {root!r}: neither Headrace nor fsspec knows {scheme}:// addresses. Copy the data here "
                "or mount it, and give its path."
            ) from None
        except ImportError as error:
            raise MissingLibrary(f"Cannot read {root!r}: {needed_by(f'{scheme}://', error)}.") from error
        except Exception as error:
            raise failed(f"open {root!r}", error) from None

    def head(self, key: str) -> Entry | None:
        """Ask for the file."""
        try:
            info = self._fs.info(self._full(key))
        except FileNotFoundError:
            return None
        except Exception as error:
            raise failed(f"look at {self._address(key)!r}", error) from None
        return self._entry(key, info) if info["type"] == "file" else None

    def entries(self, prefix: str) -> Iterator[Entry]:
        """List all levels, and ask for each file: what a listing says of versions may be in another form."""
        folder = self._full(prefix).rstrip("/")
        try:
            paths = self._fs.find(folder)
        except FileNotFoundError:
            return
        except Exception as error:
            raise failed(f"list {self._address(prefix)!r}", error) from None
        cut = len(self._full("").lstrip("/"))
        keys = [path.lstrip("/")[cut:].lstrip("/") for path in paths]
        with ThreadPoolExecutor(16, thread_name_prefix="headrace-listing") as threads:
            yield from filter(None, threads.map(self.head, keys))

    def fetch(self, entry: Entry, start: int, stop: int) -> bytes | memoryview:
        """Read the bytes; look before and after whether the file is the same."""
        for moment in ("before", "after"):
            if moment == "after":
                try:
                    data: bytes = self._fs.cat_file(self._full(entry.key), start=start, end=stop)
                except Exception as error:
                    raise failed(f"read {self._address(entry.key)}", error) from None
            self._fs.invalidate_cache()
            found = self.head(entry.key)
            if found is None or (found.size, found.version) != (entry.size, entry.version):
                raise InputChanged(
                    f"The input file {self._address(entry.key)!r} changed, or is gone, since the run was planned. "
                    f"{_ADVICE}"
                )
        if len(data) != stop - start:
            raise StoreFailed(
                f"Cannot read {self._address(entry.key)}: {len(data)} bytes came, not {stop - start}."
            )
        return data

    def _address(self, key: str) -> str:
        return str(self._root._replace(key=key))

    def _full(self, key: str) -> str:
        return f"{self._path.rstrip('/')}/{key}"

    def _entry(self, key: str, info: dict[str, Any]) -> Entry:
        names = (
            "ETag",
            "etag",
            "checksum",
            "oid",
            "mtime",
            "last_modified",
            "LastModified",
            "created",
        )
        version = next((f"{name} {info[name]}" for name in names if info.get(name)), "")
        return Entry(key, int(info.get("size") or 0), version)
