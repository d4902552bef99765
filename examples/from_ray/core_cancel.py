# The calls are those of ray-project/ray, doc/source/ray-core/doc_code/actors.py.
import asyncio
import time

from headrace.compat import ray


@ray.remote
def blocking():
    while True:
        time.sleep(0.01)


ref = blocking.remote()
ray.cancel(ref)
try:
    ray.get(ref)
    raise AssertionError
except ray.exceptions.TaskCancelledError:
    pass


@ray.remote
class Actor:
    async def f(self):
        await asyncio.sleep(60)


@ray.remote
class SyncActor:
    def __init__(self):
        self.is_canceled = False

    def long_running_method(self):
        for _ in range(500):
            if ray.get_runtime_context().is_canceled():
                self.is_canceled = True
                return "canceled"
            time.sleep(0.01)
        return "completed"

    def get_cancel_status(self):
        return self.is_canceled


actor = Actor.remote()
ref = actor.f.remote()
time.sleep(0.3)
ray.cancel(ref)
try:
    ray.get(ref)
    raise AssertionError
except (ray.exceptions.RayTaskError, ray.exceptions.TaskCancelledError):
    pass
sync = SyncActor.remote()
assert not ray.get(sync.get_cancel_status.remote())
ref = sync.long_running_method.remote()
time.sleep(0.5)
ray.cancel(ref)
try:
    ray.get(ref)
    raise AssertionError
except ray.exceptions.TaskCancelledError:
    pass
assert ray.get(sync.get_cancel_status.remote())
