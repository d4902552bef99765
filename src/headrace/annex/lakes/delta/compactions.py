"""What became of files of a Delta table that were rewritten by OPTIMIZE and removed by VACUUM."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa

from headrace.annex.lakes.delta.table import opened, told
from headrace.core.human import plural
from headrace.core.stores.options import Options
from headrace.core.work import StagedFile
from headrace.errors import HeadraceError
from headrace.output.verification import Finding

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
