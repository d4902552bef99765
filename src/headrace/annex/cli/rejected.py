"""`headrace rejected`: the rows that a run has set aside, to look at or as a file to edit."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.annex.cli.answer import DONE, Answer
from headrace.annex.cli.texts import output_of
from headrace.annex.cli.verify import Out
from headrace.core.terminal import size_of

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.core.tables import Table

EXAMPLES = """\
  headrace rejected fares/
  headrace rejected fares/ --to rejected.csv     all of them, to be edited
"""


def rejected(
    out: Out,
    *,
    to: Annotated[
        str | None,
        typer.Option(
            "--to", metavar="FILE", help="Write all of them into a new .csv or .parquet.", show_default=False
        ),
    ] = None,
    rows: Annotated[int, typer.Option("--rows", metavar="N", min=0, help="Show the first N rows.")] = 10,
) -> Answer:
    """Show the rows that a run has set aside: where each stood, why it was rejected, and its columns.

    With --to, all of them are written into a file, which can be edited. CSV has no place for nested and binary
    columns; Parquet has.
    """
    from headrace.core.human import plural
    from headrace.output.rejected import rejected_rows
    from headrace.session.rejected_file import save

    root = output_of(out)
    table = rejected_rows(root)
    data: dict[str, Any] = {"command": "rejected", "status": "done", "exit_code": DONE, "output": root}
    data |= {"rejected": table.num_rows, "to": to}
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
            _table(sample, table.schema).text(size_of(sys.stdout)[0] if sys.stdout.isatty() else None),
        ]
    if len(sample) < table.num_rows:
        lines.append(
            f"… and {plural(table.num_rows - len(sample), 'more row')}: --rows N shows more, --to FILE has all"
        )
    return Answer(DONE, data, "\n".join(lines))


def _table(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> Table:
    """Return rows as a table: where each stood, why it was rejected, and its own columns."""
    import pyarrow as pa

    from headrace.core.rejected import ERROR_FIELDS, reason
    from headrace.core.tables import rows_table

    ours = {field.name for field in ERROR_FIELDS}
    fields = [field for field in schema if field.name not in ours]
    shown = [dict(zip(("from", "rejected for"), reason(row), strict=True)) | dict(row) for row in rows]
    return rows_table(shown, [pa.schema([("from", pa.string()), ("rejected for", pa.string()), *fields])])
