# The calls are those of ray-project/ray, doc/source/ray-core/doc_code/scheduling.py.
from headrace.compat import ray
from headrace.compat.ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy


@ray.remote
def default_function():
    return 1


@ray.remote(scheduling_strategy="SPREAD")
def spread_function():
    return 2


@ray.remote
def node_function():
    return ray.get_runtime_context().node_id


assert ray.get(default_function.options(scheduling_strategy="DEFAULT").remote()) == 1
assert ray.get([spread_function.remote() for i in range(10)]) == [2] * 10
here = ray.get_runtime_context().get_node_id()
local = NodeAffinitySchedulingStrategy(node_id=here, soft=False)
assert ray.get(node_function.options(scheduling_strategy=local).remote()) == here
soft = NodeAffinitySchedulingStrategy(node_id=ray.get(node_function.remote()), soft=True)
assert ray.get(node_function.options(scheduling_strategy=soft).remote()) == here
nodes = ray.nodes()
assert len(nodes) == 1 and nodes[0]["Alive"] and nodes[0]["NodeID"] == here
assert nodes[0]["Resources"]["CPU"] >= 1
