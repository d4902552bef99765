"""Object stores by name: addresses, ``storage_options``, and words for what went wrong. None of it is secret."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from headrace.errors import ArgumentError, StoreFailed, nearest

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
_OTHER_SCHEMES = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "azure": "az", "adl": "az", "abfss": "abfs"}
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
    name = _OTHER_SCHEMES.get(name, name)
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


# ---------------------------------------------------------------- storage_options: what a store needs to know

_OTHER_NAMES = {
    "anon": "anonymous",
    "skip_signature": "anonymous",
    "endpoint_url": "endpoint",
    "endpoint_override": "endpoint",
    "aws_endpoint": "endpoint",
    "region_name": "region",
    "aws_region": "region",
    "account_name": "account",
    "aws_profile": "profile",
    "virtual_hosted_style_request": "virtual_hosted",
    "requester_pays": "request_payer",
}
_KINDS: dict[str, type] = {
    "account": str,
    "anonymous": bool,
    "endpoint": str,
    "profile": str,
    "region": str,
    "request_payer": bool,
    "retries": int,
    "timeout": float,
    "virtual_hosted": bool,
}
_SECRET = re.compile(r"secret|passw|token|credential|sas|(^|_)key|key(_|$)|auth|signature", re.IGNORECASE)

Options = tuple[tuple[str, Any], ...]


def checked(given: Options | Mapping[str, Any] | None) -> Options:
    """Return options under the names they have here, in order; refuse secrets, and what is not known.

    A tuple was checked before.

    >>> checked({"anon": True, "endpoint_url": "http://localhost:9000"})
    (('anonymous', True), ('endpoint', 'http://localhost:9000'))
    >>> checked({"secret_access_key": "…"})
    Traceback (most recent call last):
    headrace.errors.ArgumentError: storage_options must not hold 'secret_access_key': credentials come from ...
    """
    if given is None or isinstance(given, tuple):
        return given or ()
    if not isinstance(given, Mapping):
        raise ArgumentError("storage_options is a dict, such as {'region': 'eu-west-1'}.")
    found: dict[str, Any] = {}
    for name, value in given.items():
        if not isinstance(name, str):
            raise ArgumentError(f"storage_options has names that are strings, not {type(name).__name__}.")
        if _SECRET.search(name):
            raise ArgumentError(
                f"storage_options must not hold {name!r}: credentials come from the environment (AWS_ACCESS_KEY_ID, "
                "AWS_PROFILE, GOOGLE_APPLICATION_CREDENTIALS, AZURE_STORAGE_ACCOUNT_KEY, …) or from the platform, so "
                "that they are never written into plans and reports."
            )
        known = _OTHER_NAMES.get(name, name)
        if known not in _KINDS:
            raise ArgumentError(
                f"storage_options has no {name!r}; it has {', '.join(_KINDS)}.{nearest(name, list(_KINDS))}"
            )
        found[known] = _value(known, value)
    return tuple(sorted(found.items()))


def unsigned(address: Address, given: Any) -> tuple[str, Any]:
    """Take ``anonymous@`` out of an address, and put what it stands for into the options; else return both.

    >>> from headrace.core.stores.addresses import parse
    >>> unsigned(parse("s3://anonymous@bucket/x"), {"region": "eu-west-1"})
    ('s3://bucket/x', {'region': 'eu-west-1', 'anonymous': True})
    >>> unsigned(parse("s3://bucket/x"), None)
    ('s3://bucket/x', None)
    """
    if not address.anonymous:
        return str(address), given
    return str(address._replace(anonymous=False)), with_anonymous(given)


def with_anonymous(given: Any) -> Any:
    """Return options that say, besides, that requests are not signed; refuse those that say the opposite."""
    if not isinstance(given, (Mapping, tuple, type(None))):
        return given  # `checked` refuses it
    options = {_OTHER_NAMES.get(name, name): value for name, value in dict(given or ()).items()}
    if options.get("anonymous") is False:
        raise ArgumentError("storage_options has anonymous=False, and the address says anonymous@: keep one.")
    return {**options, "anonymous": True}


def _value(name: str, value: Any) -> Any:
    kind = _KINDS[name]
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    wrong = not isinstance(value, kind) or (kind is int and isinstance(value, bool))
    if wrong or (kind in (int, float) and not 0 <= value <= 86_400):
        raise ArgumentError(
            f"storage_options: {name} is a {kind.__name__}, not a value of {type(value).__name__}."
        )
    return endpoint_of(value) if name == "endpoint" else value


# ---------------------------------------------------------------- what went wrong at a store

_CODE = re.compile(r"<Code>([A-Za-z0-9_.]{1,60})</Code>")
_STATUS = re.compile(r"status code: (\d{3})|HTTP status (?:client|server) error \((\d{3})")
_REFUSED = {
    "AccessDenied": "the store denies access",
    "AuthenticationFailed": "the store does not accept the credentials",
    "AuthorizationHeaderMalformed": "the request was signed for another region than the bucket's",
    "ExpiredToken": "the credentials have expired",
    "InvalidAccessKeyId": "the store does not know the access key",
    "NoSuchBucket": "there is no such bucket",
    "PermanentRedirect": "the bucket is in another region",
    "RequestTimeTooSkewed": "this machine's clock is too far from the store's",
    "SignatureDoesNotMatch": "the secret key does not belong to the access key",
}
_BY_STATUS = {
    "301": _REFUSED["PermanentRedirect"],
    "400": "the store does not accept the request; the region may be another one",
    "401": "the store does not accept the credentials",
    "403": "the store denies access, by these credentials or without any",
    "404": "there is no such bucket or object",
    "429": "the store asks for fewer requests, again and again",
    "503": "the store asks for fewer requests, again and again",
}
_ADVICE = {
    "region": "Give it with storage_options={'region': '…'} or AWS_REGION.",
    "clock": "Set the clock.",
    "bucket or object": "See whether the address is right.",
    "bucket": "See whether the address, and storage_options' endpoint, are right.",
    "fewer": "Run again later, or with fewer workers.",
    "reached": "See whether the network and storage_options' endpoint are right.",
}
_CREDENTIALS = (
    "Credentials come from the environment (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, "
    "GOOGLE_APPLICATION_CREDENTIALS, AZURE_STORAGE_ACCOUNT_KEY, …) or from the platform; for public data, write "
    "s3://anonymous@bucket/…, or give storage_options={'anonymous': True}."
)


def reason(error: Exception) -> str:
    """Return what an error of a client says, in our words: its own text may quote what was sent.

    >>> print(reason(Exception("… status code: 403 Forbidden: <Error><Code>InvalidAccessKeyId</Code>AKIA…</Error>")))
    the store does not know the access key (InvalidAccessKeyId). Credentials come from the environment ...
    """
    text = str(error).partition("Debug source:")[0]
    code = next(iter(_CODE.findall(text)), "")
    status = next((a or b for a, b in _STATUS.findall(text)), "")
    what = _REFUSED.get(code) or _BY_STATUS.get(status) or _by_words(text.lower(), status)
    note = code or (f"HTTP {status}" if status else type(error).__name__)
    advice = next((words for key, words in _ADVICE.items() if key in what), "")
    if not advice and (status in ("401", "403") or "credentials" in what or "key" in what):
        advice = _CREDENTIALS
    return f"{what} ({note}). {advice}".rstrip()


def failed(doing: str, error: Exception) -> StoreFailed:
    """Return the error for a store that cannot be reached, or refuses; it remembers whether that may pass."""
    failure = StoreFailed(f"Cannot {doing}: {reason(error)}")
    failure.passing = is_passing(error)
    return failure


def _by_words(text: str, status: str) -> str:
    if status:
        return f"the store answered with HTTP {status}"
    if "instance metadata" in text or "169.254." in text or "credential" in text:
        return "no credentials were found"
    if "redirect" in text:
        return _REFUSED["PermanentRedirect"]
    if "timed out" in text or "timeout" in text:
        return "the store cannot be reached in time"
    if "dns" in text or "connect" in text or "sending request" in text:
        return "the store cannot be reached"
    return "the store's answer could not be read to its end"


def is_passing(error: Exception) -> bool:
    """Say whether trying again may help: no answer, a broken one, or one that asks for it."""
    status = next((a or b for a, b in _STATUS.findall(str(error))), "")
    name = type(error).__name__
    return name in ("GenericError", "JoinError", "TimeoutError", "ConnectionError") and (
        not status or status in ("408", "409", "429") or status[0] == "5"
    )
