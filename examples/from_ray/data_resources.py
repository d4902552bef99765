# The calls are those of ray-project/ray, doc/source/data/performance-tips.rst.
from headrace.compat import ray
from headrace.compat.ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

ray.init(num_cpus=2, resources={"fast_disk": 4})


def add(batch):
    batch["id"] = batch["id"] + 1
    return batch


class Model:
    def __call__(self, batch):
        return {"y": batch["id"] * 2}


ds = ray.data.range(50, override_num_blocks=4).map_batches(add, resources={"fast_disk": 1})
ds = ds.map_batches(
    Model,
    concurrency=1,
    num_cpus=0.5,
    max_restarts=2,
    max_task_retries=2,
    scheduling_strategy="SPREAD",
    ray_remote_args={"max_retries": 1},
)
assert ds.max("y") == 100
local = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
assert ray.data.range(5).map(lambda row: row, scheduling_strategy=local).count() == 5
