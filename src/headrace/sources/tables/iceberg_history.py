"""The snapshots of an Iceberg table, one after the other: which files each added and removed.

https://iceberg.apache.org/spec/#snapshots says what their operations promise.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headrace.core.tables.changes import Change, Kind, no_history, older_version
from headrace.core.tables.iceberg import place_of, told

_DELETIONS = "rows of other files"  # stands for files of which rows are deleted by further files


def check_later(table: str, metadata: Any, after: int | None, until: int | None) -> None:
    """Raise ``InputChanged`` if a snapshot comes before the one up to which the table was read."""
    before = [each.snapshot_id for each in _ancestors(metadata, after)]
    if until != after and (until is None or until in before):
        raise older_version(table, f"snapshot {until}", f"snapshot {after}")


def changes_since(table: str, metadata: Any, io: Any, after: int | None, until: int | None) -> list[Change]:
    """Return what the snapshots after one did to the files; raises ``InputChanged`` if some are not known now."""
    chain = []
    for snapshot in _ancestors(metadata, until):
        if snapshot.snapshot_id == after:
            break
        chain.append(snapshot)
    first = after if not chain else chain[-1].parent_snapshot_id
    if first != after:
        why = f"its snapshots do not go back to {after}: they have expired, or the table was rolled back"
        raise no_history(table, why)
    with told("read the manifests of", table):
        return [_change(snapshot, io) for snapshot in reversed(chain)]


def ancestors(metadata: Any, snapshot: int | None, until: int | None) -> list[int]:
    """Return the snapshots before one, the latest first, as far as they come after another one."""
    found = [int(each.snapshot_id) for each in _ancestors(metadata, snapshot)][1:]
    return found[: found.index(until)] if until in found else found


def _ancestors(metadata: Any, snapshot: int | None) -> Iterator[Any]:
    found = None if snapshot is None else metadata.snapshot_by_id(snapshot)
    while found is not None:
        yield found
        parent = found.parent_snapshot_id
        found = None if parent is None else metadata.snapshot_by_id(parent)


def _change(snapshot: Any, io: Any) -> Change:
    from pyiceberg.manifest import ManifestContent, ManifestEntryStatus

    added: list[str] = []
    removed: set[str] = set()
    operation = "" if snapshot.summary is None else str(snapshot.summary.operation.value)
    for manifest in snapshot.manifests(io):
        if manifest.added_snapshot_id != snapshot.snapshot_id:
            continue
        for entry in manifest.fetch_manifest_entry(io, discard_deleted=False):
            if entry.status == ManifestEntryStatus.EXISTING:
                continue
            if manifest.content == ManifestContent.DELETES:
                if operation != "replace":
                    removed.add(_DELETIONS)
            elif entry.status == ManifestEntryStatus.ADDED:
                added.append(place_of(entry.data_file.file_path))
            else:
                removed.add(place_of(entry.data_file.file_path))
    kind: Kind = "rewrite" if operation == "replace" else "change" if removed else "append"
    name = f"snapshot {snapshot.snapshot_id} ({operation or 'without an operation'})"
    return Change(name, snapshot.parent_snapshot_id, kind, added, removed)
