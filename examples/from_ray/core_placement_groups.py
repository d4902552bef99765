# The calls are those of ray-project/ray, doc/source/ray-core/doc_code/placement_group_example.py.
from headrace.compat import ray
from headrace.compat.ray.util.placement_group import (
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from headrace.compat.ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

ray.init(num_cpus=2, num_gpus=2)
pg = placement_group([{"CPU": 1, "GPU": 1}])
ray.get(pg.ready(), timeout=10)
ready, unready = ray.wait([pg.ready()], timeout=10)
assert ready and not unready
print(placement_group_table(pg))


@ray.remote(num_cpus=1)
class Actor:
    def ready(self):
        return "ready"


actor = Actor.options(scheduling_strategy=PlacementGroupSchedulingStrategy(placement_group=pg)).remote()
assert ray.get(actor.ready.remote(), timeout=20) == "ready"
second = Actor.options(
    num_cpus=0,
    num_gpus=1,
    scheduling_strategy=PlacementGroupSchedulingStrategy(placement_group=pg, placement_group_bundle_index=0),
).remote()
assert ray.get(second.ready.remote(), timeout=20) == "ready"
remove_placement_group(pg)
pg = placement_group([{"CPU": 1}], strategy="STRICT_PACK", name="global_name")
assert pg.wait(10) and pg.bundle_specs == [{"CPU": 1}]
remove_placement_group(ray.util.get_placement_group("global_name"))
