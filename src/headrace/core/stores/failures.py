"""What went wrong at a store, in a sentence that names the object and holds no secret."""

from __future__ import annotations

import re

from headrace.errors import StoreFailed

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
