"""`headrace debug`: what lies inside an output, for those who look for a fault."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.answer import Answer
from headrace.cli.exits import DONE, FAILED, UsageMistake
from headrace.cli.texts import output_of
from headrace.core.terminal import one_line

if TYPE_CHECKING:
    from headrace.output.journal_listing import Entry, JournalListing
    from headrace.output.places.place import Place

_SPLITS = 5  # of a shard that are printed

JOURNAL_EXAMPLES = """\
  headrace debug journal fares/
  headrace debug journal fares/ | grep -A 3 'shard 7,'
  headrace debug journal fares/ --json | jq '.records[] | select(.kind == "commit") | .rows_out'
"""


def journal(
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="An output folder or address.", show_default=False)
    ],
    *,
    run: Annotated[
        str | None,
        typer.Option(
            "--run", metavar="NAME", help="A run of this output. Default: the one that status shows."
        ),
    ] = None,
) -> Answer:
    """Print the records of a run's journal: what was committed, revoked and divided, in order.

    A line per record: the byte where its frame begins, its kind, and its fields; for a commit the shard, attempt,
    code revision, rows in, out and rejected, what was read, and each file with its rows, size and checksum. A damaged
    journal is printed up to the damage. Nothing is changed, and nothing in OUT is executed. Exit code 0: every record
    is valid; 1: damaged.
    """
    from headrace.output.places.place import looked_at

    with looked_at(output_of(out)) as output:
        return _listed(output, run)


def _listed(output: Place, run: str | None) -> Answer:
    from headrace.output.journal_listing import list_journal

    folder = _folder(output.root, run)
    found = list_journal(folder / "journal")
    place = str(found.path).replace(str(output.root), output.name)
    committed = found.committed.values()
    totals = {
        "shards": len(committed),
        "rows_in": sum(record.ledger.read for record in committed),
        "rows_out": sum(record.ledger.written for record in committed),
        "rows_rejected": sum(record.ledger.rejected for record in committed),
        "files": sum(len(record.files) for record in committed),
        "bytes": sum(file.size for record in committed for file in record.files),
    }
    code = FAILED if found.damage else DONE
    data = {
        "command": "debug journal",
        "status": "damaged" if found.damage else "torn" if found.torn else "good",
        "exit_code": code,
        "output": output.name,
        "run": folder.name,
        "journal": place,
        "bytes": found.size,
        "torn_bytes": found.torn,
        "damage": found.damage or None,
        "committed": totals,
        "records": [
            {"offset": each.offset, "length": each.length, "kind": each.kind, **each.fields}
            for each in found.entries
        ],
    }
    return Answer(
        code, data, "\n".join(map(one_line, _lines(found, place, totals, alive=output.writer() is not None)))
    )


def _folder(root: Path, run: str | None) -> Path:
    """Return the folder of a run: the one that is asked for, or the one that ``status`` shows."""
    from headrace.core.files import safe_files
    from headrace.output.layout import HOME
    from headrace.output.reporting import folder_of

    if run is None:
        return folder_of(root)
    home = root / HOME
    runs = (
        sorted(path.name for path in home.glob("*/") if safe_files.is_folder(path)) if home.is_dir() else []
    )
    if run not in runs:
        there = f"The runs there are {', '.join(runs)}." if runs else "There is none."
        raise UsageMistake(f"--run {run}: there is no such run in {root}. {there}", "headrace debug journal")
    return home / run


def _lines(found: JournalListing, place: str, totals: dict[str, int], *, alive: bool) -> list[str]:
    from headrace.core.human import plural, size

    lines = [f"{place}: {plural(len(found.entries), 'record')}, {size(found.size)}"]
    lines.append(f"{'byte':>10}  {'kind':<9}  record")
    for entry in found.entries:
        first, *rest = _words(entry)
        lines.append(f"{entry.offset:>10,}  {entry.kind:<9}  {first}")
        lines += [f"{'':>21}    {each}" for each in rest]
    lines.append(
        f"In force: {plural(totals['shards'], 'shard')} committed, {totals['rows_in']:,} rows in, "
        f"{totals['rows_out']:,} out, {totals['rows_rejected']:,} rejected; "
        f"{plural(totals['files'], 'file')}, {size(totals['bytes'])}."
    )
    if found.damage:
        lines.append(found.damage)
    elif found.torn:
        who = (
            "a driver is writing now"
            if alive
            else "its driver was killed while it wrote; a resumed run cuts it off"
        )
        lines.append(
            f"Torn at byte {found.size - found.torn:,}: {found.torn:,} bytes that are not a whole record: {who}."
        )
    return lines


def _words(entry: Entry) -> list[str]:
    """Return the fields of a record, as lines."""
    from headrace.core.human import plural, size

    fields = entry.fields
    match entry.kind:
        case "commit":
            name = f" ({fields['name']})" if fields["name"] != str(fields["shard"]) else ""
            rejected = f"{fields['rows_rejected']:,} rejected"
            rejected += f", {fields['rows_nulled']:,} with a null" if fields["rows_nulled"] else ""
            first = (
                f"shard {fields['shard']}{name}, attempt {fields['attempt']}, revision {fields['revision']}: "
                f"{fields['rows_in']:,} rows in, {fields['rows_out']:,} out, {rejected}"
            )
            written = [
                f"wrote {file['name']}: {plural(file['rows'], 'row')}, {size(file['size'])}, crc32 {file['crc32']}"
                for file in fields["files"]
            ]
            return [first, *_read(fields["splits"] or []), *written]
        case "opened":
            return [f"run {fields['run']}, Headrace {fields['headrace'] or 'of an unknown version'}"]
        case "revision":
            return [f"revision {fields['revision']} of the code: {plural(len(fields['code']), 'function')}"]
        case "settled":
            return [
                "output schema: "
                + (", ".join(fields["schema"]) if fields["schema"] is not None else "unreadable")
            ]
        case "lowered":
            return [f"{fields['step']} gets {plural(fields['rows'], 'row')} at a time at most"]
        case "revoked":
            return [
                f"shard {fields['shard']}: its files were gone; it does not count any more, and is done again"
            ]
        case "divided":
            parts = ", ".join(f"{part['shard']} ({part['name']})" for part in fields["parts"])
            return [f"shard {fields['parts'][0]['shard']} is done in parts: shards {parts}"]
        case "grown":
            files, shards = plural(len(fields["files"]), "input file"), plural(len(fields["shards"]), "shard")
            return [f"{files} added as {shards}"]
        case "swapping":
            return [f"takes the place of run {fields['replaces'] or 'none'}"]
        case "finished":
            return [f"everything is published, after {fields['seconds']:.1f} s"]
        case _:
            return [f"cannot be decoded by this version: {fields['error']}"]


def _read(splits: list[dict[str, Any]]) -> list[str]:
    """Return what a shard read, as lines; of many splits some."""
    from headrace.core.human import plural

    lines = []
    for split in splits[:_SPLITS]:
        rows = ""
        if split["first_row"] is not None:
            rows = f": rows {split['first_row']:,} to {split['first_row'] + split['rows'] - 1:,}"
        what = f"split {split['start']:,} to {split['stop']:,}{rows}"
        if split["stop"] < -1:
            what = f"and {plural(-split['stop'] - 1, 'file')} behind it"
        lines.append(f"read {split['file'] or 'the source'}, {what}")
    if len(splits) > _SPLITS:
        lines.append(f"read {len(splits) - _SPLITS:,} more splits")
    return lines
