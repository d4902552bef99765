"""What ``verify`` says of an output whose rows are those of a table: has it them, and in which files."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from headrace.core.human import plural
from headrace.core.stores.options import Options
from headrace.core.work import StagedFile
from headrace.errors import HeadraceError
from headrace.output.runs import SavedRun
from headrace.output.verification import Finding

Findings = list[Finding]

TABLES = ("Delta table", "Iceberg table", "Lance table")


def in_table(kind: str, place: str, options: Options, run: SavedRun) -> tuple[Findings, list[str]]:
    """Look whether a table has the rows of each run of a finished output; return what it has not, and notes."""
    if kind == "Iceberg table":
        return [], [
            "whether its table has the rows was not looked at, as the catalogue is not written down here: the same "
            "command, run again, looks"
        ]
    from headrace.sinks.tables.delta import DeltaSink
    from headrace.sinks.tables.lance import LanceSink

    sink = (DeltaSink if kind == "Delta table" else LanceSink)(place, storage_options=options)
    findings, notes = [], []
    entries = run.state.runs
    for entry, after in zip(entries, [*(each.shard for each in entries[1:]), math.inf], strict=True):
        of_run = (record for record in run.records if entry.shard <= record.shard < after)
        parts = [file for record in of_run for file in record.files if file.is_part]
        try:
            found = sink.rows_lost(parts, (), entry.name(run.name))
        except HeadraceError as error:
            notes.append(f"whether its table has the rows is not known: {error}")
            break
        if found is not None and (found.left == "unknown" or found.by_run):
            notes.append(found.why)
        elif found is not None:
            findings.append(Finding("table", entry.name(run.name), f"{found.why}."))
    return findings, notes


def without_compacted(
    place: str, options: Options, files: Mapping[str, StagedFile], findings: Sequence[Finding]
) -> tuple[Findings, str]:
    """Leave out parts that are missing since a compaction has rewritten them; return a note about these.

    ``place``: the folder of the output, which lies in the table. What the table's history does not account for stays
    a finding.
    """
    missing = [each for each in findings if each.kind == "missing" and files[each.file].is_part]
    if not missing:
        return list(findings), ""
    table, _, folder = place.rstrip("/").rpartition("/")
    rows = {f"{folder}/{each.file}": files[each.file].rows for each in missing}
    from headrace.core.tables.delta_compactions import rewritten

    try:
        found = rewritten(table, options, rows)
    except HeadraceError as error:
        told = f"Whether a compaction of the table has rewritten it is not known: {error}"
        return [
            dataclasses.replace(f, message=f"{f.message} {told}") if f in missing else f for f in findings
        ], ""
    kept: Findings = []
    for finding in findings:
        path = f"{folder}/{finding.file}"
        if finding not in missing:
            kept.append(finding)
        elif path in found.wrong:
            kept.append(dataclasses.replace(finding, message=f"it is not there: {found.wrong[path]}."))
        elif path not in found.versions:
            kept.append(finding)
    if not found.versions:
        return kept, ""
    versions = sorted(set(found.versions.values()))
    at = f"version{'s' if len(versions) > 1 else ''} {', '.join(map(str, versions[:5]))}{', …' * (len(versions) > 5)}"
    counted = sum(rows[path] for path in found.versions)
    return kept, (
        f"{plural(len(found.versions), 'part')} with {plural(counted, 'row')} are not there any more: by the history "
        f"of the Delta table a compaction has rewritten them ({at}), with as many rows as before. The files that "
        "hold them now are there and were counted, but have no checksums of this run"
    )
