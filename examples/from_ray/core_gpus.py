# The calls are those of ray-project/ray, doc/source/ray-core/doc_code/gpus.py.
import os

from headrace.compat import ray

ray.init(num_gpus=2)


@ray.remote(num_gpus=1)
class GPUActor:
    def ping(self):
        return ray.get_runtime_context().get_accelerator_ids()["GPU"], os.environ["CUDA_VISIBLE_DEVICES"]


@ray.remote(num_gpus=1)
def gpu_task():
    return ray.get_runtime_context().get_accelerator_ids()["GPU"]


actor = GPUActor.remote()
ids, visible = ray.get(actor.ping.remote())
assert ids == [visible]
assert len(ray.get(gpu_task.remote())) == 1


@ray.remote(num_gpus=0.25)
def shared():
    return ray.get_gpu_ids()


assert all(len(ids) == 1 for ids in ray.get([shared.remote() for _ in range(4)]))
