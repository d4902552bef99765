"""What one does with an output: `headrace verify`, `rejected`, `publish`, `discard`, `compare`, `clean`."""

from __future__ import annotations

import contextlib
import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from headrace.annex.cli import texts
from headrace.annex.cli.answer import DONE, FAILED, UNPUBLISHED, Answer, UsageMistake, wants_json
from headrace.annex.cli.predict import code_for, of_result
from headrace.annex.cli.texts import argument, flag, in_shell, output_of
from headrace.core.human import plural
from headrace.core.tables import Table
from headrace.core.terminal import say, size_of

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.output.verify import OnFile


_PATIENCE = 0.5

VERIFY_EXAMPLES = """\
  headrace verify fares/
  headrace verify fares/ --json | jq .findings
  headrace verify fares/ && publish fares/
"""


Out = Annotated[Path, argument("OUT", "An output folder or address.")]
Catalog = Annotated[str | None, flag("--catalog NAME", "The catalogue of the Iceberg table that OUT is in.")]
Uri = Annotated[
    str | None,
    flag("--uri ADDRESS", "The PostgreSQL database with OUT's rows: env:NAME for a variable that holds it."),
]


def verify(
    out: Out,
    *,
    threads: Annotated[int, flag("--threads N", "Files that are read at a time.", least=1)] = 4,
    catalog: Catalog = None,
    uri: Uri = None,
    progress: Annotated[bool, flag("--progress/--no-progress", "Show a bar on a terminal.")] = True,
) -> Answer:
    """Check an output again: every file, the record of finished work, the totals and the metrics. Nothing is
    changed.

    Sizes and checksums are computed again, rows are counted from the files, metrics are merged again from what each
    part counted. A table that has the rows is asked whether it has them still. Exit code 0: complete, and as it was
    written; 1: damaged, not finished, or being written; 4: as it was written, and not published.
    """
    from headrace.output.verify import verify as look

    with _bar(shown=progress) as on_file:
        found = look(texts.output_of(out), threads=threads, on_file=on_file, catalog=catalog, uri=uri)
    code = DONE if found.good else UNPUBLISHED if found.state == "unpublished" else FAILED
    data = {
        "status": found.state,
        "output": str(found.path),
        "run": found.run,
        "files": found.files,
        "rows": found.rows,
        "bytes": found.bytes,
        "rejected": found.rejected,
        "metrics": found.metrics or {},
        "unchecked_metrics": list(found.unchecked),
        "findings": [
            {"kind": each.kind, "file": each.file, "message": each.message} for each in found.findings
        ],
        "note": found.note,
    }
    return Answer(code, data, str(found))


@contextlib.contextmanager
def _bar(*, shown: bool) -> Iterator[OnFile]:
    """Show how many files are done, if standard error is a terminal, after half a second."""
    import time

    from headrace.observers.live_lines import ForgivingStream
    from headrace.observers.progress import TerminalView

    if not (shown and sys.stderr.isatty()):
        yield lambda files, of, size: None
        return
    begun = time.monotonic()
    with contextlib.closing(TerminalView(ForgivingStream(sys.stderr))) as view:

        def draw(files: int, of: int, size: int) -> None:
            if time.monotonic() - begun > _PATIENCE:
                view.draw_share(f"checking, {files:,} of {plural(of, 'file')}", files / max(of, 1))

        yield draw


REJECTED_EXAMPLES = """\
  headrace rejected fares/
  headrace rejected fares/ --to rejected.csv     all of them, to be edited
"""


def rejected(
    out: Out,
    *,
    to: Annotated[str | None, flag("--to FILE", "Write all of them into a new .csv or .parquet.")] = None,
    rows: Annotated[int, flag("--rows N", "Show the first N rows.", least=0)] = 10,
) -> Answer:
    """Show the rows that a run has set aside: where each stood, why it was rejected, and its columns.

    With --to, all of them are written into a file, which can be edited. CSV has no place for nested and binary
    columns; Parquet has.
    """
    from headrace.output.runs import rejected_rows
    from headrace.session.rejected_file import save

    root = output_of(out)
    table = rejected_rows(root)
    data: dict[str, Any] = {"output": root, "rejected": table.num_rows, "to": to}
    lines = [f"{root}: {plural(table.num_rows, 'rejected row')}"]
    if to is not None:
        left_out = save(table, to)
        lines[0] += f", written to {to}"
        if left_out:
            lines.append(f"  left out, as CSV has no place for them: {', '.join(left_out)}; .parquet has")
        return Answer(DONE, {**data, "left_out": left_out}, "\n".join(lines))
    kinds = Counter(zip(*(table[name].to_pylist() for name in ("_error_type", "_step")), strict=True))
    data["reasons"] = [
        {"error_type": kind, "step": step, "rows": n} for (kind, step), n in kinds.most_common()
    ]
    data["sample"] = sample = table.slice(0, rows).to_pylist()
    lines += [f"  {plural(n, 'row')}: {kind} in {step}" for (kind, step), n in kinds.most_common()]
    if sample:
        lines += [
            "",
            _rejected_table(sample, table.schema).text(
                size_of(sys.stdout)[0] if sys.stdout.isatty() else None
            ),
        ]
    if len(sample) < table.num_rows:
        lines.append(
            f"… and {plural(table.num_rows - len(sample), 'more row')}: --rows N shows more, --to FILE has all"
        )
    return Answer(DONE, data, "\n".join(lines))


def _rejected_table(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> Table:
    """Return rows as a table: where each stood, why it was rejected, and its own columns.

    The folder that all files are in stands below: it would take the room of what differs.
    """
    import pyarrow as pa

    from headrace.core.rejected import ERROR_FIELDS, reason
    from headrace.core.tables import rows_table

    ours = {field.name for field in ERROR_FIELDS}
    fields = [field for field in schema if field.name not in ours]
    names = [str(row["_file"]) for row in rows]
    folder = os.path.commonprefix(names).rpartition("/")[0]  # noqa: RUF071 - an address is no path
    shown = [
        {"from": where.removeprefix(f"{folder}/"), "rejected for": why} | dict(row)
        for row in rows
        for where, why in [reason(row)]
    ]
    made = rows_table(shown, [pa.schema([("from", pa.string()), ("rejected for", pa.string()), *fields])])
    return msgspec.structs.replace(made, note=f"files are in {folder}") if folder else made


PUBLISH_EXAMPLES = """\
  headrace publish fares/ --because "the holiday has fewer rides"
"""
DISCARD_EXAMPLES = """\
  headrace discard fares/ --because "half of the input was missing"
"""

Because = Annotated[str, flag("--because TEXT", "Why, for the record.")]


def publish(out: Out, *, because: Because, catalog: Catalog = None, uri: Uri = None) -> Answer:
    """Publish an output that was kept back, as something that --require asks for is not met.

    Its parts appear, or its rows go into the table, as they would have at the end of the run. What is published
    already stays as it is. Killed and given again, it goes on.
    """
    from headrace.session.publishing import publish

    result = publish(output_of(out), because=because, catalog=catalog, uri=uri)
    return Answer(code_for(result), of_result(result), str(result))


def discard(out: Out, *, because: Because = "") -> Answer:
    """Drop the rows of an output that was kept back, as something that --require asks for is not met.

    What readers see stays. The same command makes the rows again.
    """
    from headrace.session.publishing import discard

    discard(output_of(out), because=because)
    return Answer(DONE, {"output": output_of(out)}, f"{out}: the rows that were kept back are dropped.")


COMPARE_EXAMPLES = """\
  headrace compare yesterday/ today/                       the same input: row by row
  headrace compare fares.csv today/ --on id --sample 5     rows with the same id
  headrace compare yesterday/ today/ --report page.html    with charts, and the rows that changed most
  headrace compare yesterday/ today/ --label tipped        which is better, and is it chance?
"""


def compare(
    old: Annotated[str, argument("OLD", "An output, a table, files.")],
    new: Annotated[str, argument("NEW", "What to compare with it.")],
    *,
    on: Annotated[
        list[str] | None,
        flag("--on COLUMN", "What tells a row: --on id, --on day,shop. Default: its position."),
    ] = None,
    columns: Annotated[
        list[str] | None, flag("--columns COLUMN", "What to compare. Default: all that both have.")
    ] = None,
    label: Annotated[str | None, flag("--label COLUMN", "The truth, by which both are judged.")] = None,
    sample: Annotated[
        int, flag("--sample N", "Rows to keep of each column, for --report and --json.", least=0)
    ] = 20,
    report: Annotated[Path | None, flag("--report FILE", "Write a page with charts and rows there.")] = None,
) -> Answer:
    """Compare two outputs, tables or files: which rows are the same, which changed, and how each column differs.

    The exit code is 0, whether or not rows changed; --require is what stops a run.
    """
    from headrace.annex.compare import compare

    found = compare(
        old,
        new,
        on=texts.names("--on", on),
        columns=texts.names("--columns", columns),
        sample=sample,
        label=label,
    )
    text, data = str(found), found.data()
    if report is not None:
        data["report"] = str(found.write_report(report))
        text += f"\nreport: {data['report']}"
    return Answer(DONE, data, text)


CLEAN_EXAMPLES = """\
  headrace clean fares/                   what is there to remove? (on a terminal, asks)
  headrace clean fares/ --yes             remove it
  headrace clean fares/ --unfinished      a run that will not be resumed, too
  headrace clean fares/ --all --yes       the whole output
"""


def clean(
    out: Out,
    *,
    yes: Annotated[bool, flag("--yes -y", "Remove it, without asking.")] = False,
    unfinished: Annotated[
        bool, flag("--unfinished", "Runs that are not complete, too, with the parts that they have written.")
    ] = False,
    all: Annotated[
        bool, flag("--all", "All that Headrace has written here, the complete output included.")
    ] = False,
) -> Answer:
    """Remove what is left over in an output: abandoned attempts, runs that were given up or replaced.

    Only shows what would go, with its size, unless --yes is given or you say so on a terminal. The parts of a
    complete output, and what a run needs to be resumed, stay, unless --all or --unfinished is given. Files that
    Headrace has not written are never touched. Refused while a run is writing.
    """
    from headrace.core import human
    from headrace.output import clean as cleaning
    from headrace.output.places.place import place_at

    if all and unfinished:
        raise UsageMistake("--all includes --unfinished: give one of them.", "headrace clean")
    given = output_of(out)
    found = cleaning.leftovers(given, unfinished=unfinished, everything=all)
    size = sum(each.bytes for each in found)
    data = {
        "status": "nothing to do" if not found else "dry run",
        "output": place_at(given).name,
        "bytes": size,
        "items": [{"path": each.path, "bytes": each.bytes, "why": each.why} for each in found],
        "removed": False,
    }
    if not found:
        return Answer(DONE, data, f"{given}: nothing is left over.")
    rows = [(each.path, human.size(each.bytes), each.why) for each in found]
    lines = [Table((), rows, numbers={1}).text()]
    total = f"{human.plural(len(found), 'item')}, {human.size(size)}"
    flag = " --all" if all else " --unfinished" if unfinished else ""
    if not yes and not wants_json() and sys.stdin.isatty() and sys.stdout.isatty():
        say("\n".join(lines), sys.stdout)
        if not typer.confirm(f"Remove {total}?"):
            return Answer(DONE, data, "Nothing was removed.")
        lines, yes = [], True
    if not yes:
        last = f"{total}. Nothing was removed; to remove it: headrace clean {in_shell([given])}{flag} --yes"
        return Answer(DONE, data, "\n".join([*lines, last]))
    cleaning.remove(given, found, unfinished=unfinished, everything=all)
    data |= {"status": "done", "removed": True}
    return Answer(DONE, data, "\n".join([*lines, f"Removed {total}."]))
