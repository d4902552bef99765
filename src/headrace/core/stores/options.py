"""``storage_options``: what a store needs to know that is no secret."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from headrace.core.stores.addresses import Address, endpoint_of
from headrace.errors import ArgumentError, nearest

_SAME = {
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


def checked(given: Mapping[str, Any] | None) -> Options:
    """Return options under the names they have here, in order; refuse secrets, and what is not known.

    >>> checked({"anon": True, "endpoint_url": "http://localhost:9000"})
    (('anonymous', True), ('endpoint', 'http://localhost:9000'))
    >>> checked({"secret_access_key": "…"})
    Traceback (most recent call last):
    headrace.errors.ArgumentError: storage_options must not hold 'secret_access_key': credentials come from ...
    """
    if given is None:
        return ()
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
        known = _SAME.get(name, name)
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
    options = {_SAME.get(name, name): value for name, value in dict(given or ()).items()}
    if options.get("anonymous") is False:
        raise ArgumentError("storage_options has anonymous=False, and the address says anonymous@: keep one.")
    return {**options, "anonymous": True}


def checked_for_output(given: Options | Mapping[str, Any] | None) -> Options:
    """Return options for writing: as for reading, and maybe ``allow_unsafe_store``. A tuple was checked before."""
    if isinstance(given, tuple):
        return given
    rest = dict(given) if isinstance(given, Mapping) else given
    unsafe = rest.pop("allow_unsafe_store", False) if isinstance(rest, dict) else False
    if not isinstance(unsafe, bool):
        raise ArgumentError(f"storage_options: allow_unsafe_store is True or False, not {unsafe!r}.")
    return tuple(sorted((*checked(rest), *((("allow_unsafe_store", True),) if unsafe else ()))))


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
