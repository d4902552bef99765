"""The 22 questions of TPC-H: ``hr.sql`` has the answers that DuckDB itself has for the same tables."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr

duckdb = pytest.importorskip("duckdb")

NATIONS = [
    "ALGERIA",
    "ARGENTINA",
    "BRAZIL",
    "CANADA",
    "EGYPT",
    "ETHIOPIA",
    "FRANCE",
    "GERMANY",
    "INDIA",
    "INDONESIA",
    "IRAN",
    "IRAQ",
    "JAPAN",
    "JORDAN",
    "KENYA",
    "MOROCCO",
    "MOZAMBIQUE",
    "PERU",
    "CHINA",
    "ROMANIA",
    "ARABIA",
    "VIETNAM",
    "RUSSIA",
    "KINGDOM",
    "STATES",
]
COLORS = [
    "almond",
    "azure",
    "black",
    "blue",
    "forest",
    "green",
    "indian",
    "ivory",
    "khaki",
    "lemon",
    "lime",
    "navy",
    "olive",
    "pink",
    "red",
]
WORDS = ["quick", "special", "packages", "requests", "Customer", "Complaints", "deposits", "sleep", "final"]


def money(draw: np.random.Generator, least: int, most: int, count: int) -> pa.Array:
    """Return amounts in cents as decimals."""
    values = pa.array(draw.integers(least, most, count))
    return values.cast(pa.decimal128(19, 0)).view(pa.decimal128(19, 2)).cast(pa.decimal128(15, 2))


def tables(scale: float) -> dict[str, pa.Table]:
    """Return the eight tables, of 6,000,000 times ``scale`` lines; each question hits some of the values."""
    draw = np.random.default_rng(7)

    def pick(values: list[str], count: int) -> np.ndarray:
        return draw.choice(np.array(values), count)

    def joined(*parts: np.ndarray) -> list[str]:
        return [" ".join(each) for each in zip(*parts, strict=True)]

    def people(prefix: str, count: int) -> dict[str, object]:
        nation = draw.integers(0, 25, count)
        return {
            f"{prefix}_name": [f"{prefix}#{i:09}" for i in range(count)],
            f"{prefix}_address": [f"street {i * 7 % 1000}" for i in range(count)],
            f"{prefix}_nationkey": nation,
            f"{prefix}_phone": [f"{n + 10}-{i % 1000:03}-{i % 9999:04}" for i, n in enumerate(nation)],
            f"{prefix}_acctbal": money(draw, -99_999, 999_999, count),
            f"{prefix}_comment": joined(*(pick(WORDS, count) for _ in range(4))),
        }

    lines, orders = int(6_000_000 * scale), int(1_500_000 * scale)
    parts, suppliers, customers = int(200_000 * scale), int(10_000 * scale), int(150_000 * scale)
    first = np.datetime64("1992-01-01")
    ordered = first + draw.integers(0, 2406, orders)
    of_order = np.sort(draw.integers(0, orders, lines))
    shipped = ordered[of_order] + draw.integers(1, 122, lines)
    quantity = draw.integers(1, 51, lines)
    of_part = draw.integers(0, parts, lines)
    offered = np.arange(parts).repeat(4)
    suppliers_of = (offered + np.tile(np.arange(4), parts) * (suppliers // 4 + 1)) % suppliers
    kinds = joined(
        pick(["STANDARD", "SMALL", "ECONOMY", "PROMO", "MEDIUM"], parts),
        pick(["ANODIZED", "BURNISHED", "PLATED", "POLISHED"], parts),
        pick(["TIN", "BRASS", "STEEL", "COPPER"], parts),
    )
    return {
        "region": pa.table(
            {"r_regionkey": range(5), "r_name": ["AFRICA", "AMERICA", "ASIA", "EUROPE", "MIDDLE EAST"]}
        ),
        "nation": pa.table(
            {"n_nationkey": range(25), "n_name": NATIONS, "n_regionkey": [i * 3 % 5 for i in range(25)]}
        ),
        "supplier": pa.table({"s_suppkey": range(suppliers), **people("s", suppliers)}),
        "customer": pa.table(
            {
                "c_custkey": range(customers),
                **people("c", customers),
                "c_mktsegment": pick(["BUILDING", "AUTOMOBILE", "MACHINERY"], customers),
            }
        ),
        "part": pa.table(
            {
                "p_partkey": range(parts),
                "p_name": joined(pick(COLORS, parts), pick(COLORS, parts)),
                "p_mfgr": [f"Manufacturer#{1 + i % 5}" for i in range(parts)],
                "p_brand": [f"Brand#{1 + i % 5}{1 + i % 3}" for i in range(parts)],
                "p_type": kinds,
                "p_size": draw.integers(1, 51, parts).astype(np.int32),
                "p_container": joined(
                    pick(["SM", "MED", "LG", "JUMBO"], parts), pick(["CASE", "BOX", "PACK", "PKG"], parts)
                ),
            }
        ),
        "partsupp": pa.table(
            {
                "ps_partkey": offered,
                "ps_suppkey": suppliers_of,
                "ps_availqty": draw.integers(1, 10_000, len(offered)).astype(np.int32),
                "ps_supplycost": money(draw, 100, 100_000, len(offered)),
            }
        ),
        "orders": pa.table(
            {
                "o_orderkey": range(orders),
                "o_custkey": draw.integers(0, customers * 2 // 3, orders),
                "o_orderstatus": pick(["F", "O", "P"], orders),
                "o_totalprice": money(draw, 90_000, 50_000_000, orders),
                "o_orderdate": ordered,
                "o_orderpriority": pick(["1-URGENT", "2-HIGH", "3-MEDIUM", "5-LOW"], orders),
                "o_shippriority": np.zeros(orders, np.int32),
                "o_comment": joined(*(pick(WORDS, orders) for _ in range(3))),
            }
        ),
        "lineitem": pa.table(
            {
                "l_orderkey": of_order,
                "l_partkey": of_part,
                "l_suppkey": suppliers_of[of_part * 4 + draw.integers(0, 4, lines)],
                "l_quantity": pa.array(quantity).cast(pa.decimal128(21, 2)).cast(pa.decimal128(15, 2)),
                "l_extendedprice": money(draw, 90_000, 10_000_000, lines),
                "l_discount": money(draw, 0, 11, lines),
                "l_tax": money(draw, 0, 9, lines),
                "l_returnflag": pick(["A", "N", "R"], lines),
                "l_linestatus": pick(["F", "O"], lines),
                "l_shipdate": shipped,
                "l_commitdate": ordered[of_order] + draw.integers(30, 91, lines),
                "l_receiptdate": shipped + draw.integers(1, 31, lines),
                "l_shipinstruct": pick(["DELIVER IN PERSON", "NONE"], lines),
                "l_shipmode": pick(["AIR", "AIR REG", "MAIL", "SHIP", "RAIL"], lines),
            }
        ),
    }


PRICE = "l_extendedprice * (1 - l_discount)"
QUESTIONS = {
    1: f"""
        SELECT l_returnflag, l_linestatus, sum(l_quantity) AS quantity, sum(l_extendedprice) AS base,
            sum({PRICE}) AS price, sum({PRICE} * (1 + l_tax)) AS charge, avg(l_quantity) AS mean_quantity,
            avg(l_extendedprice) AS mean_price, avg(l_discount) AS mean_discount, count(*) AS orders
        FROM lineitem WHERE l_shipdate <= DATE '1998-12-01' - INTERVAL 90 DAY
        GROUP BY ALL ORDER BY ALL""",
    2: """
        WITH cheap AS (
            SELECT * FROM partsupp, supplier, nation, region
            WHERE s_suppkey = ps_suppkey AND s_nationkey = n_nationkey AND n_regionkey = r_regionkey
                AND r_name = 'EUROPE')
        SELECT s_acctbal, s_name, n_name, p_partkey, p_mfgr, s_address, s_phone, s_comment
        FROM part JOIN cheap ON p_partkey = ps_partkey
        WHERE p_size = 15 AND p_type LIKE '%BRASS'
            AND ps_supplycost = (SELECT min(ps_supplycost) FROM cheap AS c WHERE c.ps_partkey = p_partkey)
        ORDER BY s_acctbal DESC, n_name, s_name, p_partkey LIMIT 100""",
    3: f"""
        SELECT l_orderkey, sum({PRICE}) AS revenue, o_orderdate, o_shippriority FROM customer, orders, lineitem
        WHERE c_mktsegment = 'BUILDING' AND c_custkey = o_custkey AND l_orderkey = o_orderkey
            AND o_orderdate < DATE '1995-03-15' AND l_shipdate > DATE '1995-03-15'
        GROUP BY l_orderkey, o_orderdate, o_shippriority ORDER BY revenue DESC, o_orderdate, l_orderkey LIMIT 10""",
    4: """
        SELECT o_orderpriority, count(*) AS orders FROM orders
        WHERE o_orderdate >= DATE '1993-07-01' AND o_orderdate < DATE '1993-10-01'
            AND EXISTS (FROM lineitem WHERE l_orderkey = o_orderkey AND l_commitdate < l_receiptdate)
        GROUP BY o_orderpriority ORDER BY o_orderpriority""",
    5: f"""
        SELECT n_name, sum({PRICE}) AS revenue FROM customer, orders, lineitem, supplier, nation, region
        WHERE c_custkey = o_custkey AND l_orderkey = o_orderkey AND l_suppkey = s_suppkey
            AND c_nationkey = s_nationkey AND s_nationkey = n_nationkey AND n_regionkey = r_regionkey
            AND r_name = 'ASIA' AND year(o_orderdate) = 1994
        GROUP BY n_name ORDER BY revenue DESC""",
    6: """
        SELECT sum(l_extendedprice * l_discount) AS revenue FROM lineitem
        WHERE year(l_shipdate) = 1994 AND l_discount BETWEEN 0.05 AND 0.07 AND l_quantity < 24""",
    7: f"""
        SELECT a.n_name AS seller, b.n_name AS buyer, year(l_shipdate) AS year, sum({PRICE}) AS revenue
        FROM supplier, lineitem, orders, customer, nation AS a, nation AS b
        WHERE s_suppkey = l_suppkey AND o_orderkey = l_orderkey AND c_custkey = o_custkey
            AND s_nationkey = a.n_nationkey AND c_nationkey = b.n_nationkey
            AND l_shipdate BETWEEN DATE '1995-01-01' AND DATE '1996-12-31'
            AND (a.n_name, b.n_name) IN (('FRANCE', 'GERMANY'), ('GERMANY', 'FRANCE'))
        GROUP BY ALL ORDER BY ALL""",
    8: f"""
        SELECT year(o_orderdate) AS year,
            sum(CASE WHEN sold.n_name = 'BRAZIL' THEN {PRICE} ELSE 0 END) / sum({PRICE}) AS share
        FROM part, supplier, lineitem, orders, customer, nation AS bought, nation AS sold, region
        WHERE p_partkey = l_partkey AND s_suppkey = l_suppkey AND l_orderkey = o_orderkey AND o_custkey = c_custkey
            AND c_nationkey = bought.n_nationkey AND bought.n_regionkey = r_regionkey AND r_name = 'AMERICA'
            AND s_nationkey = sold.n_nationkey AND p_type = 'ECONOMY ANODIZED STEEL'
            AND o_orderdate BETWEEN DATE '1995-01-01' AND DATE '1996-12-31'
        GROUP BY year ORDER BY year""",
    9: f"""
        SELECT n_name, year(o_orderdate) AS year, sum({PRICE} - ps_supplycost * l_quantity) AS profit
        FROM part, supplier, lineitem, partsupp, orders, nation
        WHERE s_suppkey = l_suppkey AND ps_suppkey = l_suppkey AND ps_partkey = l_partkey AND p_partkey = l_partkey
            AND o_orderkey = l_orderkey AND s_nationkey = n_nationkey AND p_name LIKE '%green%'
        GROUP BY ALL ORDER BY n_name, year DESC""",
    10: f"""
        SELECT c_custkey, c_name, sum({PRICE}) AS revenue, c_acctbal, n_name, c_address, c_phone, c_comment
        FROM customer, orders, lineitem, nation
        WHERE c_custkey = o_custkey AND l_orderkey = o_orderkey AND l_returnflag = 'R' AND c_nationkey = n_nationkey
            AND o_orderdate >= DATE '1993-10-01' AND o_orderdate < DATE '1994-01-01'
        GROUP BY ALL ORDER BY revenue DESC, c_custkey LIMIT 20""",
    11: """
        WITH here AS (
            SELECT * FROM partsupp, supplier, nation
            WHERE ps_suppkey = s_suppkey AND s_nationkey = n_nationkey AND n_name = 'GERMANY')
        SELECT ps_partkey, sum(ps_supplycost * ps_availqty) AS worth FROM here GROUP BY ps_partkey
        HAVING worth > (SELECT sum(ps_supplycost * ps_availqty) * 0.0005 FROM here)
        ORDER BY worth DESC, ps_partkey""",
    12: """
        SELECT l_shipmode, count(*) FILTER (o_orderpriority IN ('1-URGENT', '2-HIGH')) AS high,
            count(*) FILTER (o_orderpriority NOT IN ('1-URGENT', '2-HIGH')) AS low
        FROM orders JOIN lineitem ON o_orderkey = l_orderkey
        WHERE l_shipmode IN ('MAIL', 'SHIP') AND l_shipdate < l_commitdate AND l_commitdate < l_receiptdate
            AND year(l_receiptdate) = 1994
        GROUP BY l_shipmode ORDER BY l_shipmode""",
    13: """
        SELECT orders, count(*) AS customers FROM (
            SELECT c_custkey, count(o_orderkey) AS orders FROM customer LEFT JOIN orders
                ON c_custkey = o_custkey AND o_comment NOT LIKE '%special%requests%'
            GROUP BY c_custkey)
        GROUP BY orders ORDER BY customers DESC, orders DESC""",
    14: f"""
        SELECT 100.00 * sum(CASE WHEN p_type LIKE 'PROMO%' THEN {PRICE} ELSE 0 END) / sum({PRICE}) AS share
        FROM lineitem JOIN part ON l_partkey = p_partkey
        WHERE l_shipdate >= DATE '1995-09-01' AND l_shipdate < DATE '1995-10-01'""",
    15: f"""
        WITH revenue AS (
            SELECT l_suppkey AS supplier, sum({PRICE}) AS total FROM lineitem
            WHERE l_shipdate >= DATE '1996-01-01' AND l_shipdate < DATE '1996-04-01' GROUP BY l_suppkey)
        SELECT s_suppkey, s_name, s_address, s_phone, total FROM supplier, revenue
        WHERE s_suppkey = revenue.supplier AND total = (SELECT max(total) FROM revenue) ORDER BY s_suppkey""",
    16: """
        SELECT p_brand, p_type, p_size, count(DISTINCT ps_suppkey) AS suppliers FROM partsupp, part
        WHERE p_partkey = ps_partkey AND p_brand <> 'Brand#45' AND p_type NOT LIKE 'MEDIUM POLISHED%'
            AND p_size IN (49, 14, 23, 45, 19, 3, 36, 9)
            AND ps_suppkey NOT IN (SELECT s_suppkey FROM supplier WHERE s_comment LIKE '%Customer%Complaints%')
        GROUP BY ALL ORDER BY suppliers DESC, p_brand, p_type, p_size""",
    17: """
        SELECT sum(l_extendedprice) / 7.0 AS yearly FROM lineitem, part
        WHERE p_partkey = l_partkey AND p_brand = 'Brand#23' AND p_container = 'MED BOX'
            AND l_quantity < (SELECT 0.5 * avg(l_quantity) FROM lineitem AS l WHERE l.l_partkey = p_partkey)""",
    18: """
        SELECT c_name, c_custkey, o_orderkey, o_orderdate, o_totalprice, sum(l_quantity) AS quantity
        FROM customer, orders, lineitem
        WHERE o_orderkey IN (SELECT l_orderkey FROM lineitem GROUP BY l_orderkey HAVING sum(l_quantity) > 250)
            AND c_custkey = o_custkey AND o_orderkey = l_orderkey
        GROUP BY ALL ORDER BY o_totalprice DESC, o_orderdate, o_orderkey LIMIT 100""",
    19: f"""
        SELECT sum({PRICE}) AS revenue FROM lineitem JOIN part ON p_partkey = l_partkey
        WHERE l_shipmode IN ('AIR', 'AIR REG') AND l_shipinstruct = 'DELIVER IN PERSON' AND (
            p_brand = 'Brand#11' AND p_container LIKE 'SM %' AND l_quantity BETWEEN 1 AND 11 AND p_size <= 5
            OR p_brand = 'Brand#23' AND p_container LIKE 'MED %' AND l_quantity BETWEEN 10 AND 20 AND p_size <= 10
            OR p_brand = 'Brand#32' AND p_container LIKE 'LG %' AND l_quantity BETWEEN 20 AND 30 AND p_size <= 15)""",
    20: """
        SELECT s_name, s_address FROM supplier, nation
        WHERE s_nationkey = n_nationkey AND n_name IN ('CANADA', 'KENYA') AND s_suppkey IN (
            SELECT ps_suppkey FROM partsupp
            WHERE ps_partkey IN (SELECT p_partkey FROM part WHERE p_name LIKE 'forest%')
                AND ps_availqty > (SELECT 0.5 * sum(l_quantity) FROM lineitem WHERE l_partkey = ps_partkey
                    AND l_suppkey = ps_suppkey AND year(l_shipdate) = 1994))
        ORDER BY s_name""",
    21: """
        SELECT s_name, count(*) AS late FROM supplier, lineitem AS a, orders, nation
        WHERE s_suppkey = a.l_suppkey AND o_orderkey = a.l_orderkey AND o_orderstatus = 'F'
            AND a.l_receiptdate > a.l_commitdate AND s_nationkey = n_nationkey AND n_name IN ('ARABIA', 'PERU')
            AND EXISTS (FROM lineitem AS b WHERE b.l_orderkey = a.l_orderkey AND b.l_suppkey <> a.l_suppkey)
            AND NOT EXISTS (FROM lineitem AS c WHERE c.l_orderkey = a.l_orderkey AND c.l_suppkey <> a.l_suppkey
                AND c.l_receiptdate > c.l_commitdate)
        GROUP BY s_name ORDER BY late DESC, s_name LIMIT 100""",
    22: """
        WITH chosen AS (
            SELECT c_phone[1:2] AS code, c_acctbal, c_custkey FROM customer
            WHERE c_phone[1:2] IN ('13', '31', '23', '29', '30', '18', '17'))
        SELECT code, count(*) AS customers, sum(c_acctbal) AS balance FROM chosen
        WHERE c_acctbal > (SELECT avg(c_acctbal) FROM chosen WHERE c_acctbal > 0)
            AND NOT EXISTS (FROM orders WHERE o_custkey = c_custkey)
        GROUP BY code ORDER BY code""",
}


@pytest.fixture(scope="module", params=[0.01, pytest.param(0.1, marks=pytest.mark.soak)])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("tpch")
    for name, table in tables(request.param).items():
        pq.write_table(table, made / f"{name}.parquet", row_group_size=20_000)
    return made


@pytest.mark.parametrize("number", QUESTIONS)
def test_the_answer_is_that_of_the_engine(number: int, folder: Path) -> None:
    text, connection = QUESTIONS[number], duckdb.connect()
    named = set(re.split(r"\W+", text))
    given = {path.stem: hr.read_parquet(path) for path in folder.iterdir() if path.stem in named}
    for name in given:
        connection.read_parquet(str(folder / f"{name}.parquet")).create_view(name)
    if "supplier" in given:  # has a step, and is written first
        given["supplier"] = given["supplier"].filter(expr="s_suppkey >= 0")
    data = hr.sql(text, **given).with_options(engine="inline", progress=False)
    got, expected = data.to_arrow(), connection.sql(text).fetchall()
    assert [tuple(row.values()) for row in got.to_pylist()] == expected
    assert got.schema == data.schema() and expected and expected[0][-1] is not None
