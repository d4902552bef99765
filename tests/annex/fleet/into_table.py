"""Machines of a fleet that add the rows of ``job.py`` to a table."""

from __future__ import annotations

from pathlib import Path

import headrace as hr
from annex.fleet import job
from annex.lakes.growing import TABLES


def main(kind: str, folder: str) -> None:
    """Be one machine."""
    data = job.dataset()
    if kind == "Sqlite":
        data.write_sql("t", f"sqlite:///{folder}/t.db", output=f"{folder}/out")
    else:
        TABLES[kind](Path(folder)).write(data)


def check(kind: str, folder: str) -> None:
    """Compare the table with what one loop makes."""
    if kind == "Sqlite":
        found = hr.read_sql("SELECT id FROM t", f"sqlite:///{folder}/t.db")
    else:
        found = TABLES[kind](Path(folder)).read()
    ids = sorted(found.with_options(engine="inline").to_arrow()["id"].to_pylist())
    assert ids == [i for i in range(job.ROWS) if i % job.BAD != 5]
