"""Pools of actors: of a size, with bounds, by concurrency."""

import ray


class Double:
    def __call__(self, batch):
        return {"x": batch["id"] * 2}


ds = ray.data.range(20)
for arguments in (
    {"compute": ray.data.ActorPoolStrategy(size=1)},
    {"compute": ray.data.ActorPoolStrategy(min_size=1, max_size=2)},
    {"compute": ray.data.ActorPoolStrategy()},
    {"concurrency": 1},
    {"concurrency": (1, 2)},
    {"compute": ray.data.ActorPoolStrategy(size=1), "num_cpus": 0.5},
):
    print(
        sorted(row["x"] for row in ds.map_batches(Double, batch_size=5, **arguments).take_all())
        == list(range(0, 40, 2))
    )
print(ds.map_batches(lambda b: {"x": b["id"]}, compute=ray.data.TaskPoolStrategy(size=1)).sum("x"))
