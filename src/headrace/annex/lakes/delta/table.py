"""Opening Delta tables, by the library ``deltalake``, and what OPTIMIZE and VACUUM did to their files."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa

from headrace.core.door import install_hint
from headrace.core.files.storage import storage_at
from headrace.core.human import plural
from headrace.core.stores.addresses import Options
from headrace.core.work import StagedFile
from headrace.errors import HeadraceError, MissingLibrary, SourceError
from headrace.output.verification import Finding

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


# ---------------- files that OPTIMIZE rewrote and VACUUM removed

Counts = dict[str, "int | None"]


class Rewritten(NamedTuple):
    """Files that compactions have rewritten: those whose rows are in the table, and what is wrong with others."""

    versions: Mapping[str, int]  # by path: the version in which it was rewritten
    wrong: Mapping[str, str]


def without_compacted(
    place: str, options: Options, files: Mapping[str, StagedFile], findings: Sequence[Finding]
) -> tuple[list[Finding], str]:
    """Leave out parts that are missing since a compaction has rewritten them; return a note about these.

    ``place``: the folder of the output, which lies in the table. What the table's history does not account for stays
    a finding.
    """
    missing = [each for each in findings if each.kind == "missing" and files[each.file].is_part]
    if not missing:
        return list(findings), ""
    table, _, folder = place.rstrip("/").rpartition("/")
    rows = {f"{folder}/{each.file}": files[each.file].rows for each in missing}
    try:
        found = rewritten(table, options, rows)
    except HeadraceError as error:
        told = f"It could not be checked whether a compaction of the table has rewritten it: {error}"
        return [replace(f, message=f"{f.message} {told}") if f in missing else f for f in findings], ""
    kept: list[Finding] = []
    for finding in findings:
        path = f"{folder}/{finding.file}"
        if finding not in missing:
            kept.append(finding)
        elif path in found.wrong:
            kept.append(replace(finding, message=f"it is not there: {found.wrong[path]}."))
        elif path not in found.versions:
            kept.append(finding)
    if not found.versions:
        return kept, ""
    versions = sorted(set(found.versions.values()))
    at = f"version{'s' if len(versions) > 1 else ''} {', '.join(map(str, versions[:5]))}{', …' * (len(versions) > 5)}"
    counted = sum(rows[path] for path in found.versions)
    return kept, (
        f"{plural(len(found.versions), 'part')} with {plural(counted, 'row')} are not there any more: the history of "
        f"the Delta table says that a compaction has rewritten them ({at}), with as many rows as before. The files "
        "that hold them now are there, and their rows were counted; this run has no checksums of them"
    )


def rewritten(place: str, options: Options, rows: Mapping[str, int]) -> Rewritten:
    """Ask a table's history for files that are not there, given by path with their rows.

    Believed are versions that say OPTIMIZE, and whose new files have as many rows in each partition as those that
    they replace. These new files, or those that later compactions made of them, must be in the table, with just these
    rows by their own footers. A file of which the log says nothing, or not any more, is in neither answer.
    """
    table = opened(place, options)
    if table is None:
        return Rewritten({}, {})
    with told(place, "read the history of"):
        history = table.history()
    steps = sorted(int(each["version"]) for each in history if each.get("operation") == "OPTIMIZE")
    found: dict[str, int] = {}
    into: dict[str, set[str]] = {}  # where the rows of a file are now
    for version in steps:
        for removed, added in _step(place, options, version):
            counts = (*removed.values(), *added.values())
            if None in counts or sum(filter(None, removed.values())) != sum(filter(None, added.values())):
                continue
            for path, count in rows.items():
                if removed.get(path) == count and path not in found:
                    found[path], into[path] = version, {path}
                if into.get(path, set()) & removed.keys():
                    into[path] = (into[path] - removed.keys()) | added.keys()
    there = _counts(place, table, set().union(*into.values())) if found else {}
    wrong = {path: why for path in found if (why := _wrong(found[path], into[path], there))}
    return Rewritten({path: at for path, at in found.items() if path not in wrong}, wrong)


def _wrong(version: int, files: set[str], there: Mapping[str, tuple[int | None, int | None]]) -> str:
    begin = f"a compaction of the table (version {version}) has rewritten it"
    for name in sorted(files):
        if name not in there:
            return f"{begin}, and later commands have removed {name}, which held its rows"
        told, counted = there[name]
        if counted is None:
            return f"{begin}, and {name}, which holds its rows since, is not as the table describes it"
        if told != counted:
            return f"{begin}, and {name}, which holds its rows since, has {counted:,} rows, not {told:,}"
    return ""


def _step(place: str, options: Options, version: int) -> list[tuple[Counts, Counts]]:
    """Return for each partition the files that a version has removed, and added; none if its log is gone."""
    try:
        before, after = (_files(opened(place, options, at)) for at in (version - 1, version))
    except Exception:
        return []
    return [
        (_without(before[partition], after.get(partition, {})), _without(after.get(partition, {}), files))
        for partition, files in before.items()
    ]


def _without(files: Counts, others: Counts) -> Counts:
    return {path: count for path, count in files.items() if path not in others}


def _files(table: Any) -> dict[Hashable, Counts]:
    """Return the files of each partition by their paths, as they are called on disk, with their rows."""
    found = pa.table(table.get_add_actions(flatten=True))
    values = [found[name].to_pylist() for name in found.column_names if name.startswith("partition.")]
    partitions: list[Hashable] = list(zip(*values, strict=True)) if values else [()] * found.num_rows
    files: dict[Hashable, Counts] = {}
    for partition, path, count in zip(
        partitions, found["path"].to_pylist(), found["num_records"].to_pylist(), strict=True
    ):
        files.setdefault(partition, {})[unquote(path)] = count
    return files


def _counts(place: str, table: Any, names: set[str]) -> dict[str, tuple[int | None, int | None]]:
    """Return how many rows files of the table have by its log, and by themselves: None if they cannot be read."""
    listed = {name: count for each in _files(table).values() for name, count in each.items() if name in names}
    counted: dict[str, int] = {}
    with told(place, "look at the files of"):
        fragments = {f.path: f for f in table.to_pyarrow_dataset().get_fragments()}
    for name in listed:
        try:
            counted[name] = fragments[name].count_rows()
        except (KeyError, OSError, pa.ArrowException):
            continue
    return {name: (count, counted.get(name)) for name, count in listed.items()}
