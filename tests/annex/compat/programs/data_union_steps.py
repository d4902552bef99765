"""Datasets that have steps, one behind the other."""

import pyarrow as pa
import ray

a = ray.data.range(3).map(lambda row: {"id": row["id"] * 10})
b = ray.data.range(3).filter(lambda row: row["id"] > 0)


def ids(data):
    return sorted(row["id"] for row in data.take_all())


print(1, ids(a.materialize().union(b.materialize())))
print(2, ids(a.union(b)), a.union(b).count())
print(3, ids(a.union(a)), a.union(a).count())
print(4, ids(a.union(b).union(a.map_batches(lambda batch: batch), b)))
print(5, ids(a.union(b).map(lambda row: {"id": row["id"] + 1})))
print(6, ids(a.union(b).filter(lambda row: row["id"] % 2 == 0).union(b)))
print(7, a.union(b).sum("id"), a.union(b).max("id"), a.union(b).mean("id"))
print(8, sorted(a.union(b).unique("id")), a.union(b).columns())
print(9, ids(a.flat_map(lambda row: [row] * 2).union(b)), len(a.union(b).take(4)))
print(10, a.union(b).schema().names, [str(each) for each in a.union(b).schema().types])
two = a.map_batches(lambda batch: {"id": batch["id"], "x": batch["id"] + 1}).union(
    b.map_batches(lambda batch: {"id": batch["id"], "x": batch["id"] - 1})
)
print(11, sorted((row["id"], row["x"]) for row in two.take_all()), two.columns())
print(12, sorted(two.select_columns(["x"]).to_pandas()["x"].tolist()))
none = ray.data.range(3).filter(lambda row: False)
print(13, ids(none.union(b)), none.union(none).count())
table = ray.data.from_arrow(pa.table({"id": [5, 6]})).rename_columns({"id": "k"})
print(14, sorted(row["k"] for row in table.union(b.rename_columns({"id": "k"})).take_all()))


class Plus:
    def __init__(self, by):
        self.by = by

    def __call__(self, batch):
        return {"id": batch["id"] + self.by}


pools = a.map_batches(Plus, fn_constructor_args=(1,), concurrency=1).union(
    b.map_batches(Plus, fn_constructor_args=(2,), concurrency=1)
)
print(15, ids(pools))
print(
    16,
    ids(a.union(b).repartition(1)),
    sum(len(batch["id"]) for batch in a.union(b).iter_batches(batch_size=2)),
)
