"""Texts and bytes in batches of each form."""

import ray

ds = ray.data.from_items([{"s": "a", "b": b"x"}, {"s": "ü", "b": b"\x00"}], override_num_blocks=1)
for form in ("numpy", "pandas", "pyarrow"):
    batch = ds.take_batch(2, batch_format=form)
    print(
        form,
        list(map(str, batch["s"])),
        [bytes(each) if isinstance(each, bytes) else each.as_py() for each in batch["b"]],
    )
print(ds.map_batches(lambda batch: {"u": [s.upper() for s in batch["s"]]}).take_all())
print(
    ds.map_batches(
        lambda batch: {"n": [len(b) for b in batch["b"]], "dtype": [str(batch["s"].dtype)] * 2}
    ).take_all()
)
