"""`headrace rejected`: the rows that a run has set aside, to look at or as a file to edit."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any

import typer

from headrace.annex.cli.answer import DONE, Answer
from headrace.annex.cli.texts import output_of
from headrace.annex.cli.verify import Out

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
    from headrace.core.human import plural, row_text
    from headrace.core.rejected import ERROR_FIELDS, reason
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
    ours = {field.name for field in ERROR_FIELDS}
    for row in sample:
        where, raised = reason(row)
        own = {name: value for name, value in row.items() if name not in ours}
        lines.append(f"{where}: {raised}\n    {row_text(own)}")
    if len(sample) < table.num_rows:
        lines.append(
            f"… and {plural(table.num_rows - len(sample), 'more row')}: --rows N shows more, --to FILE has all"
        )
    return Answer(DONE, data, "\n".join(lines))
