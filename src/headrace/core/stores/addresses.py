"""Addresses of objects: which store, which key; never a secret."""

from __future__ import annotations

import re
from typing import NamedTuple

from headrace.errors import ArgumentError

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
_SAME = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "azure": "az", "adl": "az", "abfss": "abfs"}
_SIGNED = re.compile(r"\?.*(sig|token|key|secret|passw|credential|auth)\w*=", re.IGNORECASE | re.DOTALL)
_LOGIN = re.compile(r"://[^\s@'\"]*@")
_NAMED = re.compile(
    r"((?:\w*passw(?:or)?d|pwd|\w*secret\w*|\w*token|\w*(?:api|account|access)_?key|sig|\w*signature|\w*credential\w*)"
    r"\s*=\s*|\bbearer\s+)[^\s&;,'\"]+",
    re.IGNORECASE,
)
_ANONYMOUS = "anonymous@"
OBJECT_STORES = ("s3", "gs", "az", "abfs")
WEB = ("http", "https")


class Address(NamedTuple):
    """Where objects lie: the scheme; the bucket, container or server; the key or path in it, with nothing escaped.

    ``account`` is that of Azure, where the address names it. ``anonymous``: it says ``anonymous@bucket``, as Ray's
    documentation does for public data; then requests are not signed.
    """

    scheme: str
    bucket: str
    key: str
    account: str = ""
    anonymous: bool = False

    @property
    def root(self) -> str:
        """The address of the whole bucket, without a slash at its end."""
        at = f"@{self.account}.dfs.core.windows.net" if self.account else ""
        return f"{self.scheme}://{_ANONYMOUS if self.anonymous else ''}{self.bucket}{at}"

    def __str__(self) -> str:
        if self.scheme not in WEB:
            return f"{self.root}/{self.key}"
        from urllib.parse import quote  # needed for few addresses, and all readers import this module

        escaped = quote(self.key, safe="/~!$&'()*+,;=:@")
        return f"{self.root}/{escaped}"


def scheme_of(text: str) -> str:
    """Return the scheme of an URL, in small letters; "" if it is none.

    >>> scheme_of("S3A://bucket/key"), scheme_of("/data/x")
    ('s3a', '')
    """
    scheme = _SCHEME.match(text)
    return "" if scheme is None else scheme[1].lower()


def is_address(path: str) -> bool:
    """Say whether a path is an URL of another place than this machine's own files. ``core/files/storage`` asks it.

    >>> is_address("s3://bucket/key"), is_address("/data/x"), is_address("file:///data/x")
    (True, False, False)
    """
    return scheme_of(path) not in ("", "file", "local")


def parse(text: str, what: str = "read") -> Address:
    """Return the parts of an URL; refuse one that holds a secret, or names no bucket. ``what`` is not possible then.

    >>> parse("s3a://bucket/a/b.parquet")
    Address(scheme='s3', bucket='bucket', key='a/b.parquet', account='', anonymous=False)
    >>> parse("s3://anonymous@bucket/x").anonymous
    True
    >>> parse("abfss://data@store.dfs.core.windows.net/x").root
    'abfs://data@store.dfs.core.windows.net'
    >>> parse("s3://id:secret@bucket/x")
    Traceback (most recent call last):
    headrace.errors.ArgumentError: Cannot read 's3://***@bucket/x': an address must not hold a name or a password, ...
    """
    scheme = _SCHEME.match(text)
    if scheme is None:
        raise ArgumentError(
            f"Cannot {what} {without_secrets(text)!r}: it is no URL, such as s3://bucket/key."
        )
    name = scheme[1].lower()
    name = _SAME.get(name, name)
    bucket, _, key = text[scheme.end() :].partition("/")
    account = ""
    if name in ("az", "abfs") and ":" not in bucket:
        bucket, _, host = bucket.partition("@")
        account = host.split(".")[0]
        name = "abfs" if account else name
    anonymous = name in ("s3", "gs") and bucket.startswith(_ANONYMOUS)
    if anonymous:
        bucket = bucket.removeprefix(_ANONYMOUS)
    if "@" in bucket or (":" in bucket and name in OBJECT_STORES):
        raise ArgumentError(
            f"Cannot {what} {without_secrets(text)!r}: an address must not hold a name or a password, as addresses "
            "are written into plans, records and reports. Credentials are taken from the environment; only "
            "s3://anonymous@bucket/… may say that there are none."
        )
    if (name in WEB and ("?" in key or "#" in key)) or _SIGNED.search(key):
        raise ArgumentError(
            f"Cannot {what} {without_secrets(text)!r}: what stands behind '?' may be a signature, and addresses are "
            "written into plans, records and reports. Fetch the file first, or read it by the address of its store."
        )
    if not bucket:
        raise ArgumentError(
            f"Cannot {what} {text!r}: the address names no bucket, as in {name}://bucket/key."
        )
    if "\0" in text or "\n" in text:
        raise ArgumentError(f"Cannot {what} {text!r}: an address has no control characters.")
    if name in WEB:
        from urllib.parse import unquote

        key = unquote(key)
    elif name in OBJECT_STORES:
        key = key.lstrip("/")
    return Address(name, bucket, key, account, anonymous)


def parse_output(text: str) -> Address:
    """Return the address of an output; refuse one where nothing can be written on conditions."""
    address = parse(text, "write to")
    if address.scheme not in OBJECT_STORES:
        raise ArgumentError(
            f"Cannot write to {address.scheme}:// addresses: an output is written by conditional requests, which "
            "s3://, gs://, az:// and abfs:// have. Write to one of these or to a folder, and copy it when it has "
            "_SUCCESS."
        )
    return address._replace(key=address.key.rstrip("/"))


def without_secrets(address: str) -> str:
    """Hide who logs in and what is asked for: messages end up in logs."""
    return re.sub(r"\?.*", "?***", re.sub(r"://.*@", "://***@", address, flags=re.DOTALL), flags=re.DOTALL)


def without_secrets_in(text: str) -> str:
    """Hide in a message of somebody else what looks like a name and password of an address, or like a key.

    >>> without_secrets_in("no answer of db://ada:pw@host/x?token=abc&n=1, password=x y")
    'no answer of db://***@host/x?token=***&n=1, password=*** y'
    """
    return _NAMED.sub(r"\1***", _LOGIN.sub("://***@", text))


def endpoint_of(text: str) -> str:
    """Return the address of a server as it is; refuse what is none, or has a password in it."""
    from urllib.parse import urlsplit

    parts = urlsplit(text)
    if parts.scheme not in WEB or not parts.netloc or parts.query or "@" in parts.netloc:
        raise ArgumentError(
            f"storage_options: the endpoint is an address such as 'http://localhost:9000', without a name, a "
            f"password or a query, not {without_secrets(text)!r}."
        )
    return text
