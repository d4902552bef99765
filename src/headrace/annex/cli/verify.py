"""`headrace verify`: is an output complete, and every byte of it as it was written?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.annex.cli import texts
from headrace.annex.cli.answer import DONE, FAILED, UNPUBLISHED, Answer

if TYPE_CHECKING:
    from headrace.output.verify import OnFile

_PATIENCE = 0.5

EXAMPLES = """\
  headrace verify fares/
  headrace verify fares/ --json | jq .findings
  headrace verify fares/ && publish fares/
"""


Out = Annotated[Path, typer.Argument(metavar="OUT", help="An output folder or address.", show_default=False)]
Catalog = Annotated[
    str | None,
    typer.Option(
        "--catalog",
        metavar="NAME",
        help="The catalogue of the Iceberg table that OUT is in.",
        show_default=False,
    ),
]
Uri = Annotated[
    str | None,
    typer.Option(
        "--uri",
        metavar="ADDRESS",
        help="The PostgreSQL database with OUT's rows: env:NAME for a variable that holds it.",
        show_default=False,
    ),
]


def verify(
    out: Out,
    *,
    threads: Annotated[
        int, typer.Option("--threads", metavar="N", min=1, help="Files that are read at a time.")
    ] = 4,
    catalog: Catalog = None,
    uri: Uri = None,
    progress: Annotated[
        bool, typer.Option("--progress/--no-progress", help="Show a bar on a terminal.")
    ] = True,
) -> Answer:
    """Check an output again: every file, the record of finished work, the totals and the metrics. Nothing is
    changed.

    Sizes and checksums are computed anew, rows are counted from the files, metrics are merged again from what each
    part counted. A table that has the rows is asked whether it has them still. Exit code 0: complete, and as it was
    written; 1: damaged, not finished, or being written; 4: as it was written, and not published.
    """
    from headrace.output.verify import verify as look

    with _bar(shown=progress) as on_file:
        found = look(texts.output_of(out), threads=threads, on_file=on_file, catalog=catalog, uri=uri)
    code = DONE if found.good else UNPUBLISHED if found.state == "unpublished" else FAILED
    data = {
        "command": "verify",
        "status": found.state,
        "exit_code": code,
        "output": str(found.path),
        "run": found.run,
        "files": found.files,
        "rows": found.rows,
        "bytes": found.bytes,
        "rejected": found.rejected,
        "metrics": found.metrics or {},
        "recounted_metrics": list(found.recounted),
        "unchecked_metrics": list(found.unchecked),
        "findings": [
            {"kind": each.kind, "file": each.file, "message": each.message} for each in found.findings
        ],
        "note": found.note,
    }
    return Answer(code, data, str(found))


@contextmanager
def _bar(*, shown: bool) -> Iterator[OnFile]:
    """Show how many files are done, if standard error is a terminal, after half a second."""
    import sys
    import time

    bars: list[Any] = []
    begun = time.monotonic()

    def draw(files: int, of: int, size: int) -> None:
        if not bars and time.monotonic() - begun > _PATIENCE and files < of:
            from rich.console import Console
            from rich.progress import Progress

            bar = Progress(console=Console(stderr=True), transient=True)
            bars.extend([bar, bar.add_task("checking", total=of)])
            bar.start()
        if bars:
            bars[0].update(bars[1], completed=files, total=of)

    try:
        yield draw if shown and sys.stderr.isatty() else lambda files, of, size: None
    finally:
        if bars:
            bars[0].stop()
