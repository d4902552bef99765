"""The log of a Delta table, version by version: which files each added and removed.

https://github.com/delta-io/delta/blob/master/PROTOCOL.md#delta-log-entries; the library tells only whole versions.
"""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.core.stores.objects import contents
from headrace.core.stores.options import Options
from headrace.core.tables.changes import Change, Kind, no_history
from headrace.core.tables.places import inside, within
from headrace.errors import SourceError, UnreadableFile
from headrace.sources.files import record


def changes_since(place: str, options: Options, after: int, until: int) -> list[Change]:
    """Return what the versions after one did to the files. Raises ``InputChanged`` where the log is not there."""
    return [
        _change(place, version, _actions(place, options, version)) for version in range(after + 1, until + 1)
    ]


def _actions(place: str, options: Options, version: int) -> list[dict[str, Any]]:
    path = within(place, f"_delta_log/{version:020}.json")
    try:
        data = b"".join(bytes(part) for part in contents([record(path, options).path]))
    except UnreadableFile as error:
        why = f"its log of version {version} is gone: a table removes old logs after some time"
        raise no_history(f"The Delta table {place}", why) from error
    try:
        return [msgspec.json.decode(line, type=dict[str, Any]) for line in data.splitlines() if line.strip()]
    except msgspec.DecodeError as error:
        raise SourceError(f"The log {path} of the Delta table {place} is damaged: {error}.") from error


def _change(place: str, version: int, actions: list[dict[str, Any]]) -> Change:
    found = [(kind, about) for each in actions for kind, about in each.items() if kind in ("add", "remove")]
    added = [_place(place, about) for kind, about in found if kind == "add"]
    removed = {_place(place, about) for kind, about in found if kind == "remove"}
    operation = next(
        (str(each["commitInfo"].get("operation", "")) for each in actions if "commitInfo" in each), ""
    )
    name = f"version {version} ({operation})" if operation else f"version {version}"
    changes = any(about.get("dataChange", True) for _, about in found)
    kind: Kind = ("change" if removed else "append") if changes else "rewrite"
    return Change(name, version - 1, kind, added, removed)


def _place(place: str, about: dict[str, Any]) -> str:
    return inside(place, str(about["path"]), f"The Delta table {place}")
