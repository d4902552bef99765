"""A Delta, an Iceberg and a Lance table: read, scored, appended to, once each, however often the program runs."""

import deltalake
import lance
import pyarrow as pa
from pyiceberg.catalog import load_catalog

import headrace as hr

ROWS = 500
RIDES = pa.table({"id": pa.array(range(ROWS), pa.int64()), "miles": [i / 4 for i in range(ROWS)]})


def fare(batch):
    return 3.0 + 2.5 * batch["miles"]


def scored(rides):
    return rides.predict(fare, inputs=["miles"], output="fare")


def check(rows):
    assert sorted((row["id"], row["fare"]) for row in rows) == [(i, 3.0 + 2.5 * i / 4) for i in range(ROWS)]


if __name__ == "__main__":
    deltalake.write_deltalake("delta-rides", RIDES)
    lance.write_dataset(RIDES, "rides.lance")
    lake = {"name": "lake", "type": "sql", "uri": "sqlite:///lake.db", "warehouse": "lake"}
    catalog = load_catalog(**lake)
    catalog.create_namespace("city")
    catalog.create_table("city.rides", RIDES.schema).append(RIDES)
    columns = pa.schema([*RIDES.schema, pa.field("fare", pa.float64())])
    catalog.create_table("city.fares", columns)
    for _ in range(2):
        scored(hr.read_delta("delta-rides")).write_delta("delta-fares")
        scored(hr.read_lance("rides.lance")).write_lance("fares.lance")
        scored(hr.read_iceberg("city.rides", catalog=lake)).write_iceberg(
            "city.fares", catalog=lake, output="iceberg-run"
        )
    check(deltalake.DeltaTable("delta-fares").to_pyarrow_table().to_pylist())
    check(lance.dataset("fares.lance").to_table().to_pylist())
    check(catalog.load_table("city.fares").scan().to_arrow().to_pylist())
