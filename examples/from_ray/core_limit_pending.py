# The calls are those of ray-project/ray, doc/source/ray-core/doc_code/limit_pending_tasks.py.
from headrace.compat import ray


@ray.remote
class Actor:
    async def heavy_compute(self):
        pass


MAX_NUM_PENDING_TASKS = 5
actor = Actor.remote()
result_refs = []
for _ in range(20):
    if len(result_refs) > MAX_NUM_PENDING_TASKS:
        ready_refs, result_refs = ray.wait(result_refs, num_returns=1)
        ray.get(ready_refs)
    result_refs.append(actor.heavy_compute.remote())
ray.get(result_refs)
