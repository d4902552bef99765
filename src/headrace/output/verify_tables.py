"""What ``verify`` says of an output whose rows are those of a table: has it them, and in which files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from headrace.core.door import annex
from headrace.core.human import plural
from headrace.core.ports import Target
from headrace.core.stores.options import Options
from headrace.core.work import StagedFile
from headrace.errors import HeadraceError
from headrace.output.places.place import Place
from headrace.output.revealing import DATABASE, LAKES, TABLES, parts_of
from headrace.output.runs import SavedRun
from headrace.output.verification import Finding

if TYPE_CHECKING:
    from headrace.sinks.files import TableOfFiles

Findings = list[Finding]

_OPENED_BY = {
    DATABASE: "databases.verbs",
    **dict.fromkeys(LAKES, "lakes.verbs"),
}  # modules with a function `saved`


class Reached(NamedTuple):
    """What opens a table that an output is in, as the caller gave it: its catalogue, or the database's address."""

    catalog: str | Mapping[str, Any] | None = None
    uri: str | None = None


def in_table(
    about: Mapping[str, Any], place: str, options: Options, run: SavedRun, reached: Reached
) -> tuple[Findings, list[str]]:
    """Look whether a table has the rows of each run of an output; return what it has not, and notes.

    ``about``: what the plan says of the sink. Of a run that is not finished, a database may have rows already.
    """
    kind = about.get("kind")
    if kind not in TABLES or not (run.finished or kind == DATABASE):
        return [], []
    findings, notes = [], []
    try:
        target = _target_of(about, place, options, run, reached)
        if isinstance(target, str):
            return [], [f"it was not checked whether the table has the rows: {target}"]
        for name, parts in _parts_by_run(target, run):
            found = target.rows_lost(parts, (), name)
            if found is not None and (found.left == "unknown" or found.by_run):
                notes.append(found.why)
            elif found is not None:
                findings.append(Finding("table", name, f"{found.why}."))
    except HeadraceError as error:
        notes.append(f"it could not be checked whether the table has the rows: {error}")
    return findings, notes


def gone(output: Place, run: SavedRun, options: Options = ()) -> str:
    """Say what is gone of a finished output, as far as names, sizes and tables tell; "" if nothing is.

    No part is read, and no row of a database is compared: ``verify`` does.
    """
    about = msgspec.json.decode(run.plan.shape).get("sink") or {}
    files = [file for record in run.records for file in record.files]
    missing = [file for file in files if output.size_of(file.name) != file.size]
    if about.get("kind") not in TABLES:
        if not missing:
            return ""
        others = f", {missing[0].name} the first" if len(missing) > 1 else f": {missing[0].name}"
        return (
            f"{len(missing):,} of {plural(len(files), 'file')} {'is' if len(missing) == 1 else 'are'} gone, or of "
            f"another size{others}"
        )
    try:
        target = _target_of(about, str(output.at()), options, run, Reached())
        if isinstance(target, str):
            return ""
        for name, parts in _parts_by_run(target, run):
            found = target.gone(parts, [file for file in parts if file in missing], name)
            if found is not None and found.left != "unknown" and not found.by_run:
                return found.why
    except HeadraceError:  # the table cannot be looked at from here
        return ""
    return ""


def _parts_by_run(target: Target, run: SavedRun) -> Iterator[tuple[str, Sequence[StagedFile]]]:
    """Yield the name and the parts of each run that the table must have; of a database, of all runs at once."""
    if target.by_part:
        parts = [file for file in parts_of(run.records) if file.rows]
        yield run.name, parts if run.finished else target.has_parts(parts)
        return
    for name in (entry.name(run.name) for entry in run.state.runs):
        yield name, parts_of(run.records, name)


def _target_of(
    about: Mapping[str, Any], place: str, options: Options, run: SavedRun, reached: Reached
) -> Target | str:
    """Return what looks into the table of a run; or why nothing does."""
    found = table_of(about, place, options, reached)
    if isinstance(found, str):
        return found
    assert found is not None
    staging = str(run.folder / "staging")
    return found.of(found.files.bind(run=run.name, staging=staging, digits=0, durability="process"))


def table_of(
    about: Mapping[str, Any], place: str, options: Options, reached: Reached
) -> TableOfFiles | str | None:
    """Return the table that a plan describes, with its files at ``place``; None if it describes files alone.

    Or why there is none: no server is connected to because an output names it.
    """
    if about.get("kind") not in TABLES:
        return None
    from headrace.sinks.files import FileSink
    from headrace.sinks.parquet import Parquet

    parts = FileSink(
        place, Parquet(), storage_options=options, partition_by=tuple(about.get("partition_by", ()))
    )
    opened = annex(_OPENED_BY[about["kind"]])
    return opened.saved(about, parts, options, reached) if opened else "its annex is not there"
