"""Whatever tests write to: how rows get there, and what readers find. Tables of lakes are read by their libraries.

A target is a place of one kind in a folder; each driver, and each reader, makes an object of its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

import headrace as hr

QUIET: Any = {"engine": "inline", "progress": False}


class Target:
    """Rows have an ``id``, and another number, whose column may have any name."""

    needs = ""  # a server: "postgresql" or "s3"
    imports = ""  # the library that reads it
    points: tuple[str, ...] = ()  # failpoints that only writing to this passes
    told: dict[str, Any]
    """What ``verify`` and ``publish`` have to be told."""

    def __init__(self, place: Any) -> None:
        self.place = Path(place)
        self.told = {}

    @property
    def output(self) -> str:
        return f"{self.place}/out"

    def prepare(self) -> None:
        """Make what has to be there before rows are written."""

    def write(self, data: hr.Dataset, **options: Any) -> hr.Result:
        raise NotImplementedError

    def rows(self) -> list[dict[str, Any]]:
        """Return what readers find, in any order; nothing where there is nothing yet."""
        raise NotImplementedError

    def commits(self) -> int:
        """Return how often a table was changed."""
        return 1

    def pairs(self) -> list[tuple[int, int]]:
        found = [(row["id"], next(row[name] for name in row if name in _OTHERS)) for row in self.rows()]
        return sorted((int(i), int(number)) for i, number in found)


_OTHERS = ("value", "product", "made", "y")


class Files(Target):
    verb = "parquet"

    def write(self, data: hr.Dataset, **options: Any) -> hr.Result:
        result: hr.Result = getattr(data, f"write_{self.verb}")(self.output, **options)
        return result

    def rows(self) -> list[dict[str, Any]]:
        try:
            return getattr(hr, f"read_{self.verb}")(self.output).with_options(**QUIET).take_all()  # type: ignore[no-any-return]
        except hr.errors.NothingMatched:
            return []


def in_format(verb: str) -> type[Files]:
    return type(verb, (Files,), {"verb": verb})


class Webdataset(Files):
    verb = "webdataset"

    def write(self, data: hr.Dataset, **options: Any) -> hr.Result:
        named = data.with_column("__key__", lambda batch: [f"{i:04}" for i in batch["id"]], version="1")
        return super().write(named, **options)


class Images(Files):
    """The first pixel of each has the numbers of its row."""

    verb, imports = "images", "PIL"

    def write(self, data: hr.Dataset, **options: Any) -> hr.Result:
        return super().write(data.map_batches(drawn, version="1"), column="image", **options)

    def rows(self) -> list[dict[str, Any]]:
        pixels = [row["image"][0, 0].astype(int) for row in super().rows()]
        return [{"id": pixel[0], "value": pixel[1] + 256 * pixel[2]} for pixel in pixels]


def drawn(batch: dict[str, Any]) -> dict[str, Any]:
    ids, numbers = batch["id"], next(batch[name] for name in batch if name in _OTHERS)
    pixels = np.zeros((len(ids), 1, 1, 3), np.uint8)
    pixels[:, 0, 0] = np.stack([ids, numbers % 256, numbers // 256], 1)
    return {"image": pixels}


class Partitioned(Files):
    """Each shard has rows of three folders."""

    def write(self, data: hr.Dataset, **options: Any) -> hr.Result:
        made = data.with_column("third", lambda batch: batch["id"] % 3, version="1")
        return super().write(made, partition_by="third", **options)

    def rows(self) -> list[dict[str, Any]]:
        found = super().rows()
        assert all(int(row["third"]) == row["id"] % 3 for row in found)
        return found


class Store(Files):
    needs, points = "s3", ("store.upload", "store.uploaded", "store.append", "store.appended")

    @property
    def output(self) -> str:
        return f"s3://bucket{self.place}/out"


class TableInAFolder(Target):
    """A table that is a folder, with its output in it."""

    points = ("table.filled",)
    options: Any = None

    @property
    def table_uri(self) -> str:
        return f"{self.place}/t"

    @property
    def output(self) -> str:
        return f"{self.table_uri}/headrace-output"


class Delta(TableInAFolder):
    imports = "deltalake"

    def write(self, data: hr.Dataset, **options: Any) -> hr.Result:
        return data.write_delta(self.table_uri, **options)

    def table(self) -> Any:
        import deltalake

        return deltalake.DeltaTable(self.table_uri, storage_options=self.options)

    def there(self) -> bool:
        import deltalake

        return bool(deltalake.DeltaTable.is_deltatable(self.table_uri, self.options))

    def rows(self) -> list[dict[str, Any]]:
        return self.table().to_pyarrow_table().to_pylist() if self.there() else []

    def commits(self) -> int:
        return int(self.table().version()) + 1


class DeltaInAStore(Delta):
    needs, points = "s3", ("table.filled", "store.uploaded", "store.append")
    options = {"allow_http": "true"}  # noqa: RUF012

    @property
    def table_uri(self) -> str:
        return f"s3://bucket{self.place}/t"


class Iceberg(Target):
    imports, points = "pyiceberg.catalog.sql", ("table.filled",)

    def __init__(self, place: Any, **more: str) -> None:
        super().__init__(place)
        self.lake = lake(place, **more)
        self.told = {"catalog": self.lake}

    @property
    def output(self) -> str:
        return f"{self.place}/shop/t/data/headrace-output"

    def write(self, data: hr.Dataset, **options: Any) -> hr.Result:
        return data.write_iceberg("shop.t", catalog=self.lake, **options)

    @property
    def catalog(self) -> Any:
        from pyiceberg.catalog import load_catalog

        return load_catalog(**self.lake)

    def table(self) -> Any:
        return self.catalog.load_table("shop.t")

    def there(self) -> bool:
        return bool(self.catalog.table_exists("shop.t"))

    def rows(self) -> list[dict[str, Any]]:
        return self.table().scan().to_arrow().to_pylist() if self.there() else []

    def commits(self) -> int:
        return len(self.table().metadata.snapshots)


def lake(folder: Any, **more: str) -> dict[str, str]:
    uri = f"sqlite:///{folder}/lake.db"
    return {"name": "lake", "type": "sql", "uri": uri, "warehouse": str(folder), **more}


class Lance(TableInAFolder):
    imports = "lance"

    def write(self, data: hr.Dataset, **options: Any) -> hr.Result:
        return data.write_lance(self.table_uri, **options)

    def table(self) -> Any:
        import lance

        return lance.dataset(self.table_uri, storage_options=self.options)

    def there(self) -> bool:
        return (self.place / "t/_versions").exists()

    def rows(self) -> list[dict[str, Any]]:
        return self.table().to_table().to_pylist() if self.there() else []

    def commits(self) -> int:
        return int(self.table().version)


class Database(Target):
    points = ("table.filled",)

    def __init__(self, place: Any, scheme: str = "sqlite", mode: str = "append") -> None:
        super().__init__(place)
        self.how: dict[str, Any] = {"mode": mode, **({"key": "id"} if mode == "upsert" else {})}
        self.uri = f"{scheme}:///{place}/a.db"
        self.told = {"uri": self.uri}

    def write(self, data: hr.Dataset, **options: Any) -> hr.Result:
        how = self.how if "mode" not in options else {}
        return data.write_sql("t", self.uri, output=self.output, **how, **options)

    def rows(self) -> list[dict[str, Any]]:
        return self.asked("SELECT * FROM t")

    def asked(self, sql: str) -> list[dict[str, Any]]:
        """Return the answer to a query; nothing if there is no such table."""
        try:
            return hr.read_sql(sql, self.uri).with_options(**QUIET).take_all()
        except hr.errors.HeadraceError:
            return []


class Postgresql(Database):
    """A schema for each place, in the server of the environment."""

    needs = "postgresql"

    def __init__(self, place: Any, mode: str = "append") -> None:
        super().__init__(place, "postgresql", mode)
        self.schema = f"s{crc32(str(place).encode())}"
        self.uri = f"{os.environ['HEADRACE_TEST_POSTGRESQL']}&options=-csearch_path%3D{self.schema}"
        self.told = {"uri": self.uri}

    def prepare(self) -> None:
        from adbc_driver_postgresql import dbapi

        with dbapi.connect(self.uri) as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE SCHEMA IF NOT EXISTS {self.schema}")
            connection.commit()


TARGETS: dict[str, Callable[[Any], Target]] = {
    **{verb: in_format(verb) for verb in ("parquet", "csv", "json", "numpy", "tfrecords")},
    "webdataset": Webdataset,
    "images": Images,
    "parquet, partitioned": Partitioned,
    "s3": Store,
    "delta": Delta,
    "delta, s3": DeltaInAStore,
    "iceberg": Iceberg,
    "lance": Lance,
    "sqlite": Database,
    "sqlite, upsert": partial(Database, mode="upsert"),
    "duckdb": partial(Database, scheme="duckdb"),
    "duckdb, upsert": partial(Database, scheme="duckdb", mode="upsert"),
    "postgresql": Postgresql,
    "postgresql, upsert": partial(Postgresql, mode="upsert"),
    "postgresql, overwrite": partial(Postgresql, mode="overwrite"),
}
