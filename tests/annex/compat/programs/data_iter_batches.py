"""Batches of a size, in each form, with and without the last."""

import ray

ds = ray.data.range(10)
for form in ("numpy", "pandas", "pyarrow", "default"):
    sizes, kinds = [], set()
    for batch in ds.iter_batches(batch_size=4, batch_format=form):
        sizes.append(len(batch["id"]))
        kinds.add(type(batch).__name__)
    print(form, sizes, kinds)
print([len(batch["id"]) for batch in ds.iter_batches(batch_size=4, drop_last=True)])
print(sum(len(batch["id"]) for batch in ds.iter_batches(batch_size=None)))
print([batch["id"].tolist() for batch in ds.iter_batches(batch_size=5, prefetch_batches=2)])
print(len(list(ds.iter_batches())), [b["id"].dtype.name for b in ds.iter_batches()])
it = ds.iterator()
print(
    [len(b["id"]) for b in it.iter_batches(batch_size=6)],
    [len(b["id"]) for b in it.iter_batches(batch_size=7)],
)
