"""Wrong arguments are refused before anything runs."""

import ray

ds = ray.data.range(3)


class Model:
    def __call__(self, batch):
        return batch


for name, make in {
    "batch_size 0": lambda: ds.map_batches(lambda b: b, batch_size=0),
    "batch_format": lambda: ds.map_batches(lambda b: b, batch_format="csv"),
    "constructor arguments of a function": lambda: ds.map_batches(lambda b: b, fn_constructor_args=[1]),
    "concurrency": lambda: ds.map_batches(Model, concurrency="many"),
    "pool": lambda: ray.data.ActorPoolStrategy(size=0),
    "pool of both": lambda: ray.data.ActorPoolStrategy(size=1, min_size=1),
    "expr and function": lambda: ds.filter(lambda row: True, expr="id > 1"),
    "nothing to filter by": lambda: ds.filter(),
    "limit": lambda: ds.take_all(limit=1),
}.items():
    try:
        make()
        print(name, "passed")
    except Exception as error:
        print(
            name, type(error).__mro__[-3].__name__ if isinstance(error, (ValueError, TypeError)) else "other"
        )
