"""Tables that grow, by their own libraries, and an output that takes in what is new in them."""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
import shutil
import sqlite3
import uuid
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import forked
import headrace as hr
import targets
from headrace.core import failpoints
from headrace.sources.range import RangeSource

PLAIN: dict[str, Any] = {"engine": "inline", "progress": False}
QUIET: dict[str, Any] = {**PLAIN, "shard_rows": 3}
JOB = """
from pathlib import Path
from annex.lakes.growing import TABLES

TABLES[argv[0]](Path(argv[1])).run(key=argv[2] or None)
"""
WRITTEN = """
from annex.lakes.growing import hundred

getattr(hundred(), argv[0])(argv[1], mode=argv[2])
"""


def rows(*batches: dict[str, Any] | pa.Table) -> hr.Dataset:
    tables = [each if isinstance(each, pa.Table) else pa.table(each) for each in batches]
    return hr.from_arrow(tables).with_options(**PLAIN)


def typed() -> pa.Table:
    """Columns of types that tables of lakes hold as others."""
    when = dt.datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=dt.UTC)
    return pa.table(
        {
            "id": pa.array([1, 2], pa.uint32()),
            "small": pa.array([1, None], pa.int8()),
            "word": pa.array(["a", None]).dictionary_encode(),
            "when": pa.array([when, None], pa.timestamp("ns", "UTC")),
            "plain": pa.array([dt.datetime(2026, 1, 1), None], pa.timestamp("ms")),
            "vector": pa.array([[1, 2], [3, 4]], pa.list_(pa.float32(), 2)),
            "price": pa.array([Decimal("1.50"), None], pa.decimal128(10, 2)),
            "day": pa.array([dt.date(2026, 1, 1), None]),
            "raw": pa.array([b"\0\1", None], pa.binary(2)),
            "deep": pa.array([{"a": [1]}, None], pa.struct([("a", pa.list_(pa.uint8()))])),
        }
    )


def hundred() -> hr.Dataset:
    """Four shards."""
    return hr.Dataset.from_source(RangeSource(100, rows_per_split=25)).with_options(shard_rows=25, **PLAIN)


def made(batch: dict[str, Any]) -> dict[str, Any]:
    return {"id": batch["id"], "twice": batch["id"] * 2}


def half(batch: dict[str, Any]) -> Any:
    return batch["id"] / 2


def pair(batch: dict[str, Any]) -> Any:
    return np.stack([batch["id"], -batch["id"]], axis=1).astype(np.float32)


class Table(targets.Target):
    """A table of the column ``id``, what its own library does to it, and an output of its rows."""

    imports = ""  # what processes that read it are forked with
    output: Any = None  # of rows that are read from the table

    def __init__(self, folder: Path, **more: str) -> None:
        super().__init__(folder, **more)
        self.folder, self.output = folder, folder / "out"
        self.next = 0

    def append(self, rows: int = 2) -> None:
        self.add(pa.table({"id": pa.array(range(self.next, self.next + rows), pa.int64())}))
        self.next += rows

    def run(self, faults: dict[str, str] | None = None, **options: Any) -> hr.Result:
        reading = {name: options.pop(name) for name in ("version", "columns") if name in options}
        quiet = {**QUIET, "progress": options.pop("progress", False)}
        failpoints.activate(faults or {})
        try:
            data = self.read(**reading).map_batches(made).with_options(**quiet)
            return data.write_parquet(self.output, **{"incremental": True, **options})
        finally:
            failpoints.activate({})

    def killed(self, at: str, key: str = "") -> None:
        forked.killed(at, JOB, type(self).__name__, self.folder, key, also=self.imports)

    def written(self) -> list[int]:
        """Return the ids of the output, each of which has its value."""
        rows = [row for path in self.output.glob("part-*") for row in pq.read_table(path).to_pylist()]
        assert all(row["twice"] == 2 * row["id"] for row in rows)
        return sorted(row["id"] for row in rows)

    def ids(self) -> list[int]:
        return sorted(row["id"] for row in self.rows())

    runs: Callable[[], list[str]]  # which the commits name
    add: Callable[..., None]
    compact: Callable[[], None]
    clean: Callable[[], None]
    delete: Callable[..., None]
    drop: Callable[[], None]
    overwrite: Callable[[pa.Table], None]
    restore: Callable[[], None]  # the first version
    read: Callable[..., hr.Dataset]
    version: Callable[[], int]


class Delta(Table, targets.Delta):
    def add(self, rows: pa.Table) -> None:
        import deltalake

        deltalake.write_deltalake(
            self.table_uri, rows, mode="append", schema_mode="merge", storage_options=self.options
        )

    def compact(self) -> None:
        self.table().optimize.compact()

    def clean(self) -> None:
        self.table().vacuum(0, dry_run=False, enforce_retention_duration=False)

    def delete(self, which: str = "") -> None:
        self.table().delete(*filter(None, [which]))

    def drop(self) -> None:
        shutil.rmtree(self.folder / "t/_delta_log")

    def overwrite(self, rows: pa.Table) -> None:
        import deltalake

        deltalake.write_deltalake(self.folder / "t", rows, mode="overwrite")

    def restore(self) -> None:
        self.table().restore(0)

    def runs(self) -> list[str]:
        told = [each.get("headrace", {}).get("run") for each in self.table().history()]
        return [each for each in reversed(told) if each]

    def read(self, version: int | None = None, columns: Any = None) -> hr.Dataset:
        return hr.read_delta(self.table_uri, version, columns=columns)

    def version(self) -> int:
        return int(self.table().version())


class Iceberg(Table, targets.Iceberg):
    imports = "pyiceberg.catalog.sql"

    def table(self, schema: pa.Schema | None = None) -> Any:
        catalog = self.catalog
        catalog.create_namespace_if_not_exists("shop")
        columns = schema or pa.schema([("id", pa.int64())])
        return catalog.create_table_if_not_exists("shop.t", schema=columns)

    def add(self, rows: pa.Table) -> None:
        self.table(rows.schema).append(rows)

    def compact(self) -> None:
        """Write all rows anew, as a snapshot that replaces files, which the library cannot make by itself."""
        import pyiceberg.io.pyarrow as iceberg_files
        from pyiceberg.table.snapshots import Operation, Summary
        from pyiceberg.table.update.snapshot import _OverwriteFiles

        class Replacing(_OverwriteFiles):
            def _summary(self, snapshot_properties: dict[str, str] | None = None) -> Summary:
                usual = super()._summary(snapshot_properties or {})
                return Summary(operation=Operation.REPLACE, **usual.additional_properties)

        table = self.table()
        scan, rows = list(table.scan().plan_files()), table.scan().to_arrow()
        with table.transaction() as transaction:
            files = iceberg_files._dataframe_to_data_files(
                transaction.table_metadata, rows, table.io, uuid.uuid4(), itertools.count()
            )
            with Replacing(Operation.OVERWRITE, transaction, table.io) as update:
                for file in files:
                    update.append_data_file(file)
                for task in scan:
                    update.delete_data_file(task.file)

    def clean(self) -> None:
        """Remove files that the latest snapshot has not, as a clean-up of orphans does too early."""
        kept = {task.file.file_path.removeprefix("file://") for task in self.table().scan().plan_files()}
        for path in (self.folder / "shop").rglob("*.parquet"):
            if str(path) not in kept:
                path.unlink()

    def delete(self, which: str = "") -> None:
        self.table().delete(*filter(None, [which]))

    def drop(self) -> None:
        self.catalog.drop_table("shop.t")

    def overwrite(self, rows: pa.Table) -> None:
        self.table().overwrite(rows)

    def restore(self) -> None:
        table = self.table()
        with table.manage_snapshots() as snapshots:
            snapshots.set_current_snapshot(table.metadata.snapshots[0].snapshot_id)

    def runs(self) -> list[str]:
        told = [each.summary.additional_properties for each in self.table().metadata.snapshots]
        return [each["headrace.run"] for each in told if "headrace.run" in each]

    def read(self, version: int | None = None, columns: Any = None) -> hr.Dataset:
        return hr.read_iceberg("shop.t", catalog=self.lake, snapshot_id=version, selected_fields=columns)

    def version(self) -> int:
        return int(self.table().current_snapshot().snapshot_id)


class Lance(Table, targets.Lance):
    def add(self, rows: pa.Table) -> None:
        import lance

        lance.write_dataset(rows, self.table_uri, mode="append", storage_options=self.options)

    def compact(self) -> None:
        self.table().optimize.compact_files()

    def clean(self) -> None:
        self.table().cleanup_old_versions(dt.timedelta(0), delete_unverified=True)

    def delete(self, which: str = "true") -> None:
        self.table().delete(which)

    def drop(self) -> None:
        shutil.rmtree(self.folder / "t/_versions")
        shutil.rmtree(self.folder / "t/_transactions")

    def overwrite(self, rows: pa.Table) -> None:
        import lance

        lance.write_dataset(rows, str(self.folder / "t"), mode="overwrite")

    def restore(self) -> None:
        import lance

        lance.dataset(str(self.folder / "t"), version=1).restore()

    def read(self, version: int | None = None, columns: Any = None) -> hr.Dataset:
        return hr.read_lance(self.table_uri, version=version, columns=columns)

    def version(self) -> int:
        return self.commits()


class Sqlite(Table):
    """A table of a database, whose rows are known by their keys only."""

    def asked(self, statement: str, *rows: tuple[int]) -> list[Any]:
        with contextlib.closing(sqlite3.connect(self.folder / "t.db")) as base, base:
            base.execute("CREATE TABLE IF NOT EXISTS t (id INTEGER PRIMARY KEY)")
            return list(base.executemany(statement, rows) if rows else base.execute(statement))

    def add(self, rows: pa.Table) -> None:
        self.asked("INSERT INTO t VALUES (?)", *((number,) for number in rows["id"].to_pylist()))

    def compact(self) -> None:
        """A database compacts nothing that one could see."""

    def delete(self, which: str) -> None:
        self.asked(f"DELETE FROM t WHERE {which}")

    def ids(self) -> list[int]:
        return [number for (number,) in self.asked("SELECT id FROM t ORDER BY id")]

    def read(self) -> hr.Dataset:
        address = f"sqlite:///{self.folder}/t.db"
        return hr.read_sql("SELECT id FROM t", address, partition_column="id", partitions=5)


class InFiles(Table):
    """A folder of files, which are written again, with rows that were in them and others."""

    def paths(self) -> list[Path]:
        return sorted((self.folder / "in").iterdir())

    def add(self, rows: pa.Table) -> None:
        (self.folder / "in").mkdir(exist_ok=True)
        pq.write_table(rows, self.folder / f"in/{len(self.paths()):03}.parquet")

    def compact(self) -> None:
        """The last file is written again, with its rows behind new ones."""
        path = self.paths()[-1]
        new = pa.table({"id": pa.array(range(self.next, self.next + 2), pa.int64())})
        pq.write_table(pa.concat_tables([new, pq.read_table(path)]), path)
        self.next += 2

    def delete(self, which: str) -> None:
        gone = int(which.rpartition(" ")[2])
        for path in self.paths():
            ids = pq.read_table(path)["id"].to_pylist()
            if gone in ids:
                ids.remove(gone)
                pq.write_table(pa.table({"id": pa.array(ids, pa.int64())}), path)

    def ids(self) -> list[int]:
        return sorted(i for path in self.paths() for i in pq.read_table(path)["id"].to_pylist())

    def read(self) -> hr.Dataset:
        return hr.read_parquet(self.folder / "in")


TABLES: dict[str, type[Any]] = {
    "Delta": Delta,
    "Iceberg": Iceberg,
    "Lance": Lance,
    "Sqlite": Sqlite,
    "InFiles": InFiles,
}
