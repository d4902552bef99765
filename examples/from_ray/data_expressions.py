# The calls are those of ray-project/ray, doc/source/data/transforming-data.rst.
import datetime

import pyarrow as pa
import pyarrow.compute as pc

from headrace.compat import ray
from headrace.compat.ray.data.datatype import DataType
from headrace.compat.ray.data.expressions import col, lit, pyarrow_udf, udf


@udf(return_dtype=DataType.int32())
def squared(values: pa.Array) -> pa.Array:
    return pc.cast(pc.multiply(values, values), pa.int32())


@pyarrow_udf(return_dtype=DataType.string())
def joined(first: pa.Array, last: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(first, last, " ")


ds = ray.data.from_items(
    [
        {"n": 2, "a": "x", "b": "y", "t": datetime.datetime(2024, 5, 6, 7)},
        {"n": 3, "a": "p", "b": "q", "t": None},
    ]
)
ds = ds.with_column("sq", squared(col("n"))).with_column("ab", joined(col("a"), col("b")))
ds = ds.with_column("year", col("t").dt.year()).with_column("half", (col("n") + lit(2)) / 2)
ds = ds.with_column("both", col("a") + "-" + col("b")).filter(expr=col("n").is_in([2, 3]))
rows = ds.take_all()
assert [row["sq"] for row in rows] == [4, 9] and rows[0]["ab"] == "x y" and rows[1]["both"] == "p-q"
assert rows[0]["year"] == 2024
assert ds.filter(expr="n > 2").count() == 1
