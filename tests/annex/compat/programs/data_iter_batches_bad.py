"""Wrong arguments of iter_batches."""

import ray

ds = ray.data.range(4)
for arguments in ({"batch_format": "polar"}, {"prefetch_batches": -1}):
    try:
        list(ds.iter_batches(**arguments))
        print(arguments, "passed")
    except Exception as error:
        print(arguments, isinstance(error, ValueError))
