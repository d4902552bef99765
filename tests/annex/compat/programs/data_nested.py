"""Lists and dicts inside rows, in and out of batches."""

import ray

ds = ray.data.from_items(
    [{"l": [1, 2], "d": {"a": 1, "b": [1]}}, {"l": [], "d": {"a": 2, "b": []}}], override_num_blocks=1
)
print(ds.take_all())
print(ds.map(lambda row: {"n": len(row["l"]), "a": row["d"]["a"]}).take_all())
print(
    ds.map_batches(
        lambda batch: {"n": [len(each) for each in batch["l"]], "a": [d["a"] for d in batch["d"]]}
    ).take_all()
)
print(ds.flat_map(lambda row: [{"x": x} for x in row["l"]]).take_all())
print(ds.schema().types)
