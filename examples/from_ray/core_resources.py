# The calls are those of ray-project/ray, doc/source/ray-core/doc_code/resources.py.
from headrace.compat import ray

ray.init(num_cpus=3, num_gpus=4, resources={"special_hardware": 1, "custom_label": 1})


@ray.remote(resources={"special_hardware": 1})
def f():
    return 1


@ray.remote(resources={"special_hardware": 1e-2})
class Actor:
    def ready(self):
        return True


@ray.remote(num_gpus=0.5, num_cpus=0.5)
def g():
    return ray.get_gpu_ids()


assert ray.get([f.remote() for _ in range(3)]) == [1] * 3
assert ray.get(Actor.remote().ready.remote())
assert len(ray.get(g.remote())) == 1
total = ray.cluster_resources()
assert total["CPU"] == 3 and total["GPU"] == 4 and total["special_hardware"] == 1
assert "custom_label" in ray.available_resources()
