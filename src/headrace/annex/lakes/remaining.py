"""What a table still has of the rows that a run added, and what others did to them since, by its history."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa

from headrace.annex.lakes.places import place_of
from headrace.core.human import plural
from headrace.core.table_changes import Lost

ADDED = "ADD COLUMNS WITH VALUES"  # what a commit of ours says that puts rows into files with new columns
_NO_ROWS_GO = (  # of a Delta table
    *(
        "ADD COLUMN",
        "ADD COLUMNS",
        "ADD CONSTRAINT",
        "ADD FEATURE",
        "CHANGE COLUMN",
        "CLUSTER BY",
        "COMPUTE STATS",
    ),
    ADDED,
    *("CREATE TABLE", "DROP CONSTRAINT", "OPTIMIZE", "REORG", "SET TBLPROPERTIES", "STREAMING UPDATE"),
    *("UNSET TBLPROPERTIES", "VACUUM END", "VACUUM START"),
)
_ROWS_GO = ("Delete", "Overwrite", "Update")  # operations of a Lance table
_SHOWN = 5


class Version(NamedTuple):
    """A version that took out or changed rows. ``whole``: no older row was left. ``run``: it is one of ours."""

    words: str
    whole: bool
    run: bool = False


class _History(NamedTuple):
    """The versions since a run's own that took or changed rows, the latest first.

    ``begun``: the run's version was found among those that the table is made of. ``complete``: they go back to the
    first one. ``compacted``: rows were put into other files since.
    """

    versions: list[Version]
    begun: bool
    complete: bool
    compacted: bool = False


def rows_lost(
    what: str, table: Any | None, run: str, rows: Mapping[str, int], missing: Collection[str] = ()
) -> Lost | None:
    """Say why a table has not all rows that a run added; None if it has, as far as it tells.

    ``what`` is the table in messages, ``table`` the library's; ``rows`` are those of each file that the run added, by
    its path in the table, and ``missing`` files that are not there. No file is opened.
    """
    total = sum(rows.values())
    added = f"the {plural(total, 'row')} that this run added"
    if table is None:
        return Lost("no table", f"{what} is gone, and with it {added}")
    live, since = _LOOKS[type(table).__module__.partition(".")[0]]
    there = live(table)
    broken = [path for path in missing if path in there]
    if broken:
        files = "a file" if len(broken) == 1 else f"{len(broken):,} files"
        return Lost(
            "none",
            f"{what} cannot be read: {files} of this run that it names, {broken[0]}, "
            f"{'is' if len(broken) == 1 else 'the first of them, are'} not there",
        )
    kept = sum(min(there.get(path, 0), count) for path, count in rows.items())
    if kept == total:
        return None
    versions, begun, complete, compacted = since(table, run)
    told = "; ".join(version.words for version in versions[:_SHOWN]) + "; …" * (len(versions) > _SHOWN)
    if not begun and complete and not versions:
        return Lost(
            "no table",
            f"{what} has never had {added}: another table was made in the place of the one that had them",
        )
    wiped = [version for version in versions if version.whole] if not kept else []
    if wiped:
        return Lost("none", f"{what} has none of {added} any more: {told}", wiped[-1].run)
    if versions and not compacted:
        least = f" (at least {kept:,} of them are)" if kept else ""
        return Lost("some", f"{what} has not all of {added} as they were{least}: {told}")
    if versions:
        return Lost(
            "unknown",
            f"others took rows out of {what}, or changed some, after this run ({told}), and compacted it, so it is "
            f"not known whether these are among {added}",
        )
    if begun:
        return None
    return Lost(
        "unknown",
        f"{kept:,} of {added} are in the run's own files in {what}, and its history does not go back to the run, so "
        "it is not known whether the others were compacted or taken out",
    )


# ---------------------------------------------------------------- Delta


def _delta_files(table: Any) -> Mapping[str, int]:
    about = pa.table(table.get_add_actions(flatten=True))
    paths = map(unquote, about["path"].to_pylist())
    found = dict(zip(paths, about["num_records"].to_pylist(), strict=True))
    if "deletionVectors" in (table.protocol().reader_features or ()):
        for batch in table.deletion_vectors():
            for path, taken in zip(batch["filepath"].to_pylist(), batch["selection_vector"], strict=True):
                name = next((name for name in found if unquote(path).endswith(f"/{name}")), None)
                if name is not None and found[name] is not None:
                    found[name] -= sum(not kept for kept in taken.as_py())
    return {name: count or 0 for name, count in found.items()}


def _delta_history(table: Any, run: str) -> _History:
    history = {int(each["version"]): each for each in table.history()}
    at, found, compacted = int(table.version()), list[Version](), False
    while at in history:
        about = history[at]
        if (about.get("headrace") or {}).get("run") == run:
            return _History(found, True, False, compacted)
        operation, given = str(about.get("operation", "")), about.get("operationParameters") or {}
        appends = operation == "WRITE" and str(given.get("mode")) == "Append"
        if operation == "RESTORE" and str(given.get("version", "")).isdigit():
            found.append(Version(f"version {at} (RESTORE to version {given['version']})", True))
            at = int(given["version"])
            continue
        compacted = compacted or operation in ("OPTIMIZE", ADDED)
        if not appends and operation not in _NO_ROWS_GO and (operation != "WRITE" or at):
            found.append(_delta_version(at, about))
        at -= 1
    return _History(found, False, at < 0, compacted)


def _delta_version(at: int, about: Mapping[str, Any]) -> Version:
    operation, given = str(about.get("operation", "")), about.get("operationParameters") or {}
    counts = about.get("operationMetrics") or {}

    def count(*names: str) -> int | None:
        found = next((str(counts[name]) for name in names if counts.get(name) is not None), "")
        return int(found) if found.isdigit() else None

    deleted = count("num_deleted_rows", "numDeletedRows", "num_target_rows_deleted", "numTargetRowsDeleted")
    updated = count("num_updated_rows", "numUpdatedRows", "num_target_rows_updated", "numTargetRowsUpdated")
    told = [
        f"{plural(number, 'row')} {how}"
        for number, how in ((deleted, "deleted"), (updated, "changed"))
        if number
    ]
    all_new = str(given.get("mode")) == "Overwrite" and not given.get("predicate")
    whole = all_new or (operation == "DELETE" and str(given.get("predicate") or "[]") == "[]")
    name = f"{operation}, overwrite" if all_new else operation
    words = f"version {at} ({': '.join([name, ', '.join(told)]) if told else name})"
    return Version(words, whole, bool(about.get("headrace")))


# ---------------------------------------------------------------- Iceberg


def _iceberg_files(table: Any) -> Mapping[str, int]:
    found = {}
    for task in table.scan().plan_files():
        taken = sum(each.record_count for each in task.delete_files)
        found[place_of(task.file.file_path)] = max(0, task.file.record_count - taken)
    return found


def _iceberg_history(table: Any, run: str) -> _History:
    found: list[Version] = []
    at, compacted = table.current_snapshot(), False
    while at is not None:
        about = at.summary.additional_properties if at.summary is not None else {}
        if about.get("headrace.run") == run:
            return _History(found, True, False, compacted)
        operation = "" if at.summary is None else str(at.summary.operation.value)
        taken, put = (int(about.get(name, 0)) for name in ("deleted-records", "added-records"))
        taken += int(about.get("added-position-deletes", 0))
        compacted = compacted or operation == "replace"
        if operation not in ("append", "replace") and (taken or operation != "overwrite"):
            told = f"{plural(taken, 'row')} taken out" + (f", {plural(put, 'row')} put in" if put else "")
            replaced = about.get("total-records") == "0" or "headrace.run" in about
            ours = "headrace.run" in about
            found.append(Version(f"snapshot {at.snapshot_id} ({operation}: {told})", replaced, ours))
        if at.parent_snapshot_id is None:
            return _rolled_back(table, run, found)
        at = table.metadata.snapshot_by_id(at.parent_snapshot_id)
    gone = table.current_snapshot() is not None  # a snapshot in between has expired
    return _History(found, False, False, compacted) if gone else _rolled_back(table, run, found)


def _rolled_back(table: Any, run: str, found: list[Version]) -> _History:
    """Add that the table was rolled back, if it has a snapshot of the run that is not among those it is made of."""
    for each in table.metadata.snapshots:
        if each.summary is not None and each.summary.additional_properties.get("headrace.run") == run:
            found.append(
                Version(f"it was rolled back to a snapshot from before, or beside, {each.snapshot_id}", True)
            )
    return _History(found, False, True)


# ---------------------------------------------------------------- Lance


def _lance_files(table: Any) -> Mapping[str, int]:
    found = {}
    for fragment in table.get_fragments():
        about = fragment.metadata
        found[str(about.files[0].path)] = int(about.physical_rows - about.num_deletions)
    return found


def _lance_history(table: Any, run: str) -> _History:
    rows = {
        int(each["version"]): int((each.get("metadata") or {}).get("total_rows", -1))
        for each in table.versions()
    }
    at, found, compacted = int(table.version), list[Version](), False
    while at in rows:
        try:
            transaction = table.read_transaction(at)
        except TypeError:  # the library cannot say what a compaction did to indices
            at, compacted = at - 1, True
            continue
        except (OSError, ValueError):  # its file was cleaned up
            break
        if transaction is not None:
            if (transaction.transaction_properties or {}).get("headrace.run") == run:
                return _History(found, True, False, compacted)
            operation = transaction.operation
            name = type(operation).__name__
            if name == "Restore":
                found.append(Version(f"version {at} (Restore of version {operation.version})", True))
                at = int(operation.version)
                continue
            compacted = compacted or name == "Rewrite"
            if name in _ROWS_GO and at > 1:
                whole = name == "Overwrite" or (name == "Delete" and rows[at] == 0)
                taken = rows.get(at - 1, -1) - rows[at] if name == "Delete" and rows[at] >= 0 else 0
                told = f"{name}: {plural(taken, 'row')} deleted" if taken > 0 else name
                ours = "headrace.run" in (transaction.transaction_properties or {})
                found.append(Version(f"version {at} ({told})", whole, ours))
        at -= 1
    return _History(found, False, at < 1, compacted)


_Look = tuple[Callable[[Any], Mapping[str, int]], Callable[[Any, str], _History]]
_LOOKS: Mapping[str, _Look] = {
    "deltalake": (_delta_files, _delta_history),
    "pyiceberg": (_iceberg_files, _iceberg_history),
    "lance": (_lance_files, _lance_history),
}
