# The calls are those of ray-project/ray, doc/source/ray-core/doc_code/actor_restart.py.
import os

from headrace.compat import ray

ray.init()


@ray.remote(max_restarts=2, max_task_retries=-1)
class Actor:
    def __init__(self):
        self.counter = 0

    def increment_and_possibly_fail(self):
        if self.counter == 3:
            os._exit(0)
        self.counter += 1
        return self.counter

    def restarted(self):
        return ray.get_runtime_context().was_current_actor_reconstructed


actor = Actor.remote()
counts = [ray.get(actor.increment_and_possibly_fail.remote()) for _ in range(9)]
assert counts == [1, 2, 3] * 3
assert ray.get(actor.restarted.remote()) is True
for _ in range(2):
    try:
        ray.get(actor.increment_and_possibly_fail.remote())
        raise AssertionError
    except ray.exceptions.RayActorError:
        pass
