"""Before a driver goes on with an output whose rows are in a table: others may have changed it meanwhile."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from headrace.core.human import plural
from headrace.core.ports import Sink
from headrace.core.warn import warn
from headrace.core.work import CommitRecord
from headrace.errors import SinkError
from headrace.output.layout import Output
from headrace.output.revealing import has_all_or_none, parts_of

if TYPE_CHECKING:
    from headrace.core.table_changes import Lost
    from headrace.output.commit import ShardCommitter


def check_in_table(committer: ShardCommitter, *, incremental: bool) -> None:
    """Look whether the table has the rows of a run that has finished: refuse if it has none, warn if not all.

    ``incremental``: only a table that is gone, or is another one, is refused. Runs that follow one another go on
    where others take out rows that they do not need any more.
    """
    table = committer.sink.target
    if table is None or not has_all_or_none(table):
        return
    parts = parts_of(committer.of_last_run(), committer.state.runs[-1].name(committer.plan.run))
    found = table.rows_lost(
        parts, [file for file in parts if committer.revealing.publisher.state(file) == "missing"]
    )
    if found is None or (incremental and found.left != "no table"):
        return
    if found.left in ("none", "no table"):
        raise SinkError(
            f"{_sentence(found)} Nothing was touched: restore the table to get these rows back, or write with "
            "another output= to add all rows of this run again."
        )
    warn(
        f"{_sentence(found)} The run in {committer.output} had finished before, and does not add them again. If rows "
        "are missing: restore the table, or write with another output= to add all rows of this run again."
    )


def check_inserted(
    sink: Sink, output: Output, records: Iterable[CommitRecord], *, finished: bool, go_on: bool
) -> bool:
    """Look whether the table of a database has the rows that drivers of a run have inserted, one part after another.

    Refuse if it has none of them, warn if not all. ``go_on``, as the user asked: a table that is gone is made anew
    from the parts that the output keeps, and one that is there is taken as it is. Return False if the run must be
    finished once more for that.
    """
    table = sink.target
    if table is None or not table.by_part:
        return True
    parts = parts_of(records)
    inserted = parts if finished else table.has_parts(parts)
    found = table.rows_lost(inserted, ())
    if found is not None and found.left == "no table" and go_on:
        warn(
            f"{_sentence(found)} The rows that {output} keeps are inserted again, into a table that is made anew."
        )
        return table.insert_again(inserted)
    if found is not None and found.left in ("none", "no table") and not go_on:
        what = (
            f"makes it anew, inserts again the rows that {output} keeps,"
            if found.left == "no table"
            else "leaves these rows out"
        )
        raise SinkError(
            f"{_sentence(found)} Nothing was touched: on_change='continue' {what} and goes on; another output= makes "
            "all rows again, and inserts them."
        )
    anew = table.mend_records(parts, finished=finished)
    if anew:
        warn(
            f"{plural(anew, 'row')} that this run inserted before were not in the table, and headrace_commits did "
            "not name them: another database has taken the place of the first one. They are inserted again."
        )
        found = table.rows_lost(table.has_parts(parts), ())
    if found is not None:
        now = "had finished before, and does not add them again" if finished else "goes on without them"
        warn(
            f"{_sentence(found)} The run in {output} {now}. If rows are missing: write with another output= to "
            "insert all rows of this run again."
        )
    return True


def _sentence(found: Lost) -> str:
    return f"{found.why[0].upper()}{found.why[1:]}."
