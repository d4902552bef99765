"""Opening Delta tables, by the library ``deltalake``; and what their log says of each version."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import msgspec

from headrace.annex.lakes.places import inside, within
from headrace.core.door import install_hint
from headrace.core.files.storage import storage_at
from headrace.core.stores.addresses import Options
from headrace.core.stores.objects import contents
from headrace.core.table_changes import Change, Kind, no_history
from headrace.errors import HeadraceError, MissingLibrary, SourceError, UnreadableFile

_NAMES = {
    "account": "azure_storage_account_name",
    "endpoint": "endpoint",
    "profile": "aws_profile",
    "region": "aws_region",
    "request_payer": "aws_request_payer",
    "retries": "max_retries",
    "virtual_hosted": "aws_virtual_hosted_style_request",
}
_READ = {"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck", "typeWidening", "typeWidening-preview"}
_LOOKED_AT = {"columnMapping", "deletionVectors"}
_MOST = 3  # names in a message


def library() -> Any:
    """Return ``deltalake``."""
    try:
        import deltalake
    except ImportError as error:
        raise MissingLibrary(f"Delta tables need deltalake: {install_hint('delta')}.") from error
    return deltalake


def storage(place: str, options: Options) -> dict[str, str]:
    """Return what the library needs to know of a store. Credentials it takes from the environment itself.

    >>> storage("s3://lake/sales", (("endpoint", "http://localhost:9000"),))
    {'endpoint': 'http://localhost:9000', 'allow_http': 'true'}
    """
    given = dict(options)
    found = {
        _NAMES[name]: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in given.items()
        if name in _NAMES
    }
    if given.get("anonymous"):
        scheme = {"s3": "aws", "gs": "google"}.get(place[:2], "azure")
        found[f"{scheme}_skip_signature"] = "true"
    variables = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL") if place.startswith("s3:") else ()
    endpoint = given.get("endpoint") or next(filter(None, map(os.environ.get, variables)), "")
    if endpoint:
        found["endpoint"] = endpoint
    if endpoint.startswith("http://"):
        found["allow_http"] = "true"
    return found


@contextlib.contextmanager
def told(place: str, doing: str) -> Iterator[None]:
    """Raise our own errors for those of the library: what was done with which table."""
    try:
        yield
    except HeadraceError:
        raise
    except Exception as error:  # the library raises this very class, too
        said = " ".join(str(error).split())[:300].rstrip(".")
        raise storage_at(place).failed(f"{doing} the Delta table {place}", error, said) from None


def opened(place: str, options: Options, version: int | None = None) -> Any | None:
    """Return a table as it is now, or was in a version; None if there is none."""
    deltalake = library()
    with told(place, "open"):
        found = storage(place, options)
        try:  # `is_deltatable` would hold the lock of the interpreter while it waits
            return deltalake.DeltaTable(place, version=version, storage_options=found)
        except deltalake.exceptions.TableNotFoundError:
            return None
        except deltalake.exceptions.DeltaError:
            if version is None:
                raise
            now = deltalake.DeltaTable(place, storage_options=found).version()
            raise SourceError(
                f"The Delta table {place} has no version {version} that can be read: its latest is {now}. The table "
                "has removed the log of older versions."
            ) from None


def check_readable(table: Any, place: str) -> None:
    """Refuse a table whose files do not mean what they say."""
    protocol = table.protocol()
    features = set(protocol.reader_features or ())
    unknown = sorted(features - _READ - _LOOKED_AT)
    if unknown or protocol.min_reader_version > 3:
        raise SourceError(
            f"The Delta table {place} needs a reader with {', '.join(unknown[:_MOST]) or 'a newer protocol'}, which "
            "Headrace does not have. Write its rows to a plain table with the engine that made it, and read that."
        )
    mapped = (table.metadata().configuration or {}).get("delta.columnMapping.mode", "none")
    if mapped != "none":
        raise SourceError(
            f"The Delta table {place} maps columns to other names in its files (delta.columnMapping.mode is "
            f"{mapped!r}), which Headrace cannot read. Write its rows to a table without that, and read it."
        )
    if "deletionVectors" in features:
        with told(place, "read the deletion vectors of"):
            deleted = sum(len(batch["filepath"]) for batch in table.deletion_vectors())
        if deleted:
            raise SourceError(
                f"{deleted} files of the Delta table {place} have deletion vectors: some of their rows are deleted, "
                "and are still in the files. Run OPTIMIZE or REORG TABLE … APPLY (PURGE) where it was made, or read "
                "a version from before the deletion."
            )


# ---------------------------------------------------------------- what versions did


def history(place: str, options: Options, version: int, *, after: int = -1) -> Iterator[Change]:
    """Yield what versions did to the files, the latest first. Raises ``InputChanged`` where the log is not there."""
    for number in range(version, after, -1):
        yield _change(place, number, _actions(place, options, number))


def _actions(place: str, options: Options, version: int) -> list[dict[str, Any]]:
    path = within(place, f"_delta_log/{version:020}.json")
    try:
        data = b"".join(bytes(part) for part in contents([storage_at(path, options).record().path]))
    except UnreadableFile as error:
        why = f"its log of version {version} is gone: a table removes old logs after some time"
        raise no_history(f"The Delta table {place}", why) from error
    try:
        return [msgspec.json.decode(line, type=dict[str, Any]) for line in data.splitlines() if line.strip()]
    except msgspec.DecodeError as error:
        raise SourceError(f"The log {path} of the Delta table {place} is damaged: {error}.") from error


def _change(place: str, version: int, actions: list[dict[str, Any]]) -> Change:
    found = [(kind, each) for action in actions for kind, each in action.items() if kind in ("add", "remove")]
    added, removed = (
        [
            inside(place, str(each["path"]), f"The Delta table {place}")
            for kind, each in found
            if kind == which
        ]
        for which in ("add", "remove")
    )
    about: dict[str, Any] = next((each["commitInfo"] for each in actions if "commitInfo" in each), {})
    operation, given = str(about.get("operation", "")), about.get("operationParameters") or {}
    kind: Kind = "append"
    if not any(each.get("dataChange", True) for _, each in found):
        kind = "rewrite"
    elif operation == "RESTORE" or (given.get("mode") == "Overwrite" and not given.get("predicate")):
        kind = "overwrite"
    elif removed:
        kind = "change"
    name = f"version {version} ({operation})" if operation else f"version {version}"
    run = str((about.get("headrace") or {}).get("run", ""))
    return Change(name, version - 1, kind, added, {*removed}, run)
