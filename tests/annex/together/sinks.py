"""Every sink, as the tests that kill drivers see it: how rows are written, and what is there afterwards.

A sink that is added to Headrace gets a line in ``SINKS``.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

import headrace as hr
from headrace.errors import RunLocked, SinkError
from headrace.output.places import lease
from headrace.result import Result
from headrace.sources.range import RangeSource

ROWS, SHARD, KEYS = 120, 20, 50
SWAPS = ("swap.recorded", "swap.removed", "swap.pointed")
STORES = ("store.upload", "store.uploaded", "store.append", "store.appended")
Row = tuple[int, int]


def rows(options: dict[str, Any], **columns: Callable[[Any], Any]) -> hr.Dataset:
    """Six shards of rows with ``id`` and ``product``, and what a sink needs besides."""

    def made(batch: dict[str, Any]) -> dict[str, Any]:
        found = {"id": batch["id"], "product": batch["id"] * 3}
        return {**found, **{name: make(batch["id"]) for name, make in columns.items()}}

    data = hr.Dataset.from_source(RangeSource(ROWS, rows_per_split=SHARD)).map_batches(made, version="1")
    options = {"engine": "inline", "progress": False, "shard_rows": SHARD, "durability": "process", **options}
    required = options.pop("required", 0)
    data = data.require(rows=hr.at_least(required)) if required else data
    return data.with_options(**options)


@dataclass(frozen=True)
class Sink:
    """``write(options, place)`` writes; ``read(place)`` returns all rows that are there, with anything left over."""

    write: Callable[[dict[str, Any], str], Result]
    read: Callable[[str], list[Row]]
    expected: tuple[Row, ...] = tuple((i, i * 3) for i in range(ROWS))
    before: Callable[[str], None] = lambda place: None
    needs: str = ""  # a server: "postgresql" or "s3"
    imports: str = ""  # what it takes longest to import: longer than a driver lives, maybe
    points: tuple[str, ...] = ()  # at which its drivers may be killed, besides those that all have


def files(write: str, read: Callable[[str], hr.Dataset]) -> Sink:
    def written(options: dict[str, Any], place: str) -> Result:
        result: Result = getattr(rows(options), write)(f"{place}/out")
        return result

    return Sink(written, files_there(read))


def files_there(read: Callable[[str], hr.Dataset]) -> Callable[[str], list[Row]]:
    def found(place: str) -> list[Row]:
        assert hr.verify(f"{place}/out").good
        return pairs(read(f"{place}/out").with_options(engine="inline", progress=False).take_all())

    return found


def pairs(found: list[dict[str, Any]]) -> list[Row]:
    return [(int(row["id"]), int(row["product"])) for row in found]


# ------------------------------------------------------------ sinks that need more than a path


def images(options: dict[str, Any], place: str) -> Result:
    def pixels(ids: Any) -> Any:
        made = np.zeros((len(ids), 1, 2, 3), np.uint8)
        made[:, 0, 0, 0], made[:, 0, 1, :2] = ids, np.stack([ids * 3 % 256, ids * 3 // 256], 1)
        return made

    return rows(options, image=pixels).drop_columns(["product"]).write_images(f"{place}/out", "image")


def images_there(place: str) -> list[Row]:
    assert hr.verify(f"{place}/out").good
    found = hr.read_images(f"{place}/out").with_options(engine="inline", progress=False).take_all()
    pixels = [row["image"].astype(int) for row in found]
    return [(each[0, 0, 0], each[0, 1, 0] + 256 * each[0, 1, 1]) for each in pixels]


def partitioned(options: dict[str, Any], place: str) -> Result:
    """Each shard has rows of three folders."""
    made = rows(options, third=lambda ids: ids % 3)
    return made.write_parquet(f"{place}/out", partition_by=["third"])


def overwritten(options: dict[str, Any], place: str) -> Result:
    """In the place of an older output, with rows of its own."""
    if not os.path.exists(f"{place}/out"):
        rows(options).map_batches(older, version="1").write_parquet(f"{place}/out")
    return rows(options).with_options(mode="overwrite").write_parquet(f"{place}/out")


def older(batch: dict[str, Any]) -> dict[str, Any]:
    return {"id": batch["id"], "product": -batch["id"]}


def partitioned_there(place: str) -> list[Row]:
    assert hr.verify(f"{place}/out").good
    found = hr.read_parquet(f"{place}/out").with_options(engine="inline", progress=False).take_all()
    assert all(int(row["third"]) == row["id"] % 3 for row in found)
    return pairs(found)


def webdataset(options: dict[str, Any], place: str) -> Result:
    return rows(options, __key__=lambda ids: [f"{i:04}" for i in ids]).write_webdataset(f"{place}/out")


def delta(options: dict[str, Any], place: str) -> Result:
    return rows(options).write_delta(f"{place}/out")


def delta_there(place: str) -> list[Row]:
    import deltalake

    table = deltalake.DeltaTable(f"{place}/out")
    assert table.version() == 0
    return pairs(table.to_pyarrow_table().to_pylist())


def lake(place: str) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{place}/lake.db", "warehouse": place}


def iceberg(options: dict[str, Any], place: str) -> Result:
    return rows(options).write_iceberg("shop.t", catalog=lake(place))


def iceberg_there(place: str) -> list[Row]:
    from pyiceberg.catalog import load_catalog

    table = load_catalog("default", **lake(place)).load_table("shop.t")
    assert len(table.snapshots()) == 1
    return pairs(table.scan().to_arrow().to_pylist())


def lance(options: dict[str, Any], place: str) -> Result:
    return rows(options).write_lance(f"{place}/out")


def lance_there(place: str) -> list[Row]:
    from lance import dataset

    table = dataset(f"{place}/out")
    assert table.version == 1
    return pairs(table.to_table().to_pylist())


def schema_of(place: str) -> str:
    return "s" + place.rpartition("/")[2].replace("-", "_")


def uri_of(scheme: str, place: str) -> str:
    if scheme != "postgresql":
        return f"{scheme}:///{place}/a.db"
    return f"{os.environ['HEADRACE_TEST_POSTGRESQL']}&options=-csearch_path%3D{schema_of(place)}"


def asked(uri: str, sql: str, *, table: str = "") -> list[Any]:
    """Run a statement in PostgreSQL, in a transaction of its own; nothing, if there is no such ``table``."""
    from adbc_driver_postgresql import dbapi

    with dbapi.connect(uri) as connection, connection.cursor() as cursor:
        if table:
            cursor.execute(f"SELECT to_regclass('{table}')::text")
            if cursor.fetchall() == [(None,)]:
                return []
        cursor.execute(sql)
        found = cursor.fetchall() if cursor.description else []
        connection.commit()
        return found


def database(scheme: str, mode: str) -> Sink:
    """A table; in PostgreSQL a schema for each place."""

    uri = partial(uri_of, scheme)

    def before(place: str) -> None:
        if scheme == "postgresql":
            asked(os.environ["HEADRACE_TEST_POSTGRESQL"], f"CREATE SCHEMA {schema_of(place)}")

    def write(options: dict[str, Any], place: str) -> Result:
        warnings.simplefilter("ignore", UserWarning)  # of keys with several rows
        data, more = rows(options), {}
        if mode == "upsert":
            data = data.map_batches(keyed, version="1")
            more = {"key": "id"}
        return data.write_sql("t", uri(place), mode=mode, output=f"{place}/out", **more)  # type: ignore[arg-type]

    def read(place: str) -> list[Row]:
        quiet: Any = {"engine": "inline", "progress": False}
        noted = hr.read_sql("SELECT * FROM headrace_commits", uri(place)).with_options(**quiet).take_all()
        runs = {row["run"] for row in noted}
        assert sum(row["rows"] for row in noted) == ROWS * (len(runs) if mode == "overwrite" else 1)
        return pairs(hr.read_sql("SELECT * FROM t", uri(place)).with_options(**quiet).take_all())

    needs = "postgresql" if scheme == "postgresql" else ""
    if mode == "upsert":
        last = tuple((k, max(range(k, ROWS, KEYS)) * 3) for k in range(KEYS))
        return Sink(write, read, last, before=before, needs=needs, points=("table.filled",))
    return Sink(write, read, before=before, needs=needs, points=("table.filled",))


def keyed(batch: dict[str, Any]) -> dict[str, Any]:
    return {"id": batch["id"] % KEYS, "product": batch["product"]}


def bucket(options: dict[str, Any], place: str) -> Result:
    name = place.rpartition("/")[2]
    return rows(options).write_parquet(f"s3://bucket/{name}/out")


def bucket_there(place: str) -> list[Row]:
    there = f"s3://bucket/{place.rpartition('/')[2]}/out"
    assert hr.verify(there).good
    return pairs(hr.read_parquet(there).with_options(engine="inline", progress=False).take_all())


SINKS: dict[str, Sink] = {
    "parquet": files("write_parquet", hr.read_parquet),
    "csv": files("write_csv", hr.read_csv),
    "json": files("write_json", hr.read_json),
    "numpy": files("write_numpy", hr.read_numpy),
    "webdataset": Sink(webdataset, files_there(hr.read_webdataset)),
    "tfrecords": files("write_tfrecords", hr.read_tfrecords),
    "images": Sink(images, images_there),
    "parquet, partitioned": Sink(partitioned, partitioned_there),
    "parquet, overwrite": Sink(overwritten, files_there(hr.read_parquet), points=SWAPS),
    "delta": Sink(delta, delta_there, imports="deltalake"),
    "iceberg": Sink(iceberg, iceberg_there, imports="pyiceberg.catalog.sql"),
    "lance": Sink(lance, lance_there, imports="lance"),
    "sqlite": database("sqlite", "append"),
    "sqlite, upsert": database("sqlite", "upsert"),
    "duckdb": database("duckdb", "append"),
    "duckdb, upsert": database("duckdb", "upsert"),
    "postgresql": database("postgresql", "append"),
    "postgresql, upsert": database("postgresql", "upsert"),
    "postgresql, overwrite": database("postgresql", "overwrite"),
    "s3": Sink(bucket, bucket_there, needs="s3", points=STORES),
}


class Tells:
    """An observer that leaves a file once the driver has the output; if it ``meets``, it waits then.

    It goes on when another driver was refused. Else that one comes too late, where getting ready takes longer than
    writing.
    """

    def __init__(self, place: str, *, meets: bool) -> None:
        self.place, self.meets = place, meets

    def on_event(self, event: object) -> None:
        open(f"{self.place}/{BEGUN}", "a").close()
        while self.meets and not os.path.exists(f"{self.place}/{MET}"):
            time.sleep(0.001)


BEGUN, MET, OVER = "begun", "met", "over"


def main(name: str, place: str, options: dict[str, Any], waits: str = "") -> None:
    """What a driver does. One that ``waits`` tries again and again while another one has the output.

    ``"meets"``: it is a first one, that goes no further before the second one was refused.
    """
    if options.pop("apart", False):  # as on a machine of its own, where nobody waits for half a minute
        lease._machine = lambda: str(os.getpid())
        lease.SILENCE, lease.BEAT = 1.0, 0.1
    if SINKS[name].imports:
        importlib.import_module(SINKS[name].imports)
    result = None
    while result is None:
        try:
            result = SINKS[name].write(
                {**options, "observers": [Tells(place, meets=waits == "meets")]}, place
            )
        except RunLocked as error:
            if not waits or not re.search("is being written by|was taken over by|was changed by", str(error)):
                raise
            print("refused", flush=True)
            open(f"{place}/{MET}", "a").close()
        except SinkError as error:  # a connection was lost, and the program is run again
            if not waits or "run the same command again" not in str(error):
                raise
    print(json.dumps([result.rows, result.run, result.resumed]), flush=True)
