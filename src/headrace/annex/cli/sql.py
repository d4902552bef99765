"""`headrace sql`: a query over files, and its rows written or shown."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.annex.cli.answer import DONE, Answer, UsageMistake
from headrace.annex.cli.flags import Flags
from headrace.annex.cli.predict import answered
from headrace.annex.cli.writes import Output
from headrace.core.terminal import size_of
from headrace.readers import by_name

if TYPE_CHECKING:
    from headrace.dataset.dataset import Dataset

EXAMPLES = """\
  headrace sql 'SELECT * FROM rides JOIN zones USING (zone)' --rides rides/ --zones zones.csv -o joined/
  headrace sql 'SELECT zone, avg(fare) FROM fares GROUP BY zone' --fares fares/
"""
NAMES = {"allow_extra_args": True, "ignore_unknown_options": True}


def sql(
    context: typer.Context,
    query: Annotated[str, typer.Argument(metavar="QUERY", help="One SELECT.", show_default=False)],
    *,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="OUT", help="The folder or address to write to.", show_default=False
        ),
    ] = None,
    rows: Annotated[int, typer.Option("--rows", metavar="N", min=1, help="Without OUT: show N rows.")] = 20,
    query_engine: Annotated[
        str, typer.Option("--query-engine", metavar="NAME", help="duckdb or polars. Default: duckdb.")
    ] = "duckdb",
    output: Output,
    flags: Flags,
) -> Answer:
    """Answer a query over files, and write its rows to OUT, or show the first of them.

    Each table that the query names is an option of its name: --rides 'rides/*.parquet'. It may be given more than
    once, for several paths. DuckDB answers the query; its result is written as every output is.
    """

    def data() -> Dataset:
        from headrace.annex.queries.queried import sql as queried

        given = {
            name: by_name.dataset_of(paths, by_name.format_of(paths), {})
            for name, paths in _tables(context.args).items()
        }
        return queried(query, query_engine=query_engine, **given).with_options(**flags.options())

    if out is None:
        from headrace.core.tables import rows_table

        sample, schemas = data()._first(rows)
        text = rows_table(sample, schemas).text(size_of(sys.stdout)[0])
        told = {"sample": sample}
        return Answer(DONE, {"command": "sql", "status": "done", "exit_code": DONE, **told}, text)

    return answered("sql", lambda: output.write_dataset(data(), out), out, output)


def _tables(words: list[str]) -> dict[str, list[str]]:
    """Return the paths of each table, from ``--name PATH`` and ``--name=PATH``."""
    found: dict[str, list[str]] = {}
    left = iter(words)
    for word in left:
        name, sign, path = word.removeprefix("--").partition("=")
        name = name.replace("-", "_")
        if not word.startswith("--") or not name.isidentifier():
            raise UsageMistake(f"{word}: after the query come tables, such as --rides PATH.", "headrace sql")
        given = path if sign else next(left, None)
        if not given:
            raise UsageMistake(f"--{name}: it takes a path, as a table that the query names.", "headrace sql")
        found.setdefault(name, []).append(given)
    return found
