"""Calls that are not wanted any more."""

import time

import ray


@ray.remote(max_retries=0)
def sleeps():
    for _ in range(6000):
        time.sleep(0.01)


@ray.remote
def quick():
    return 1


running = sleeps.remote()
forced = sleeps.remote()
ray.cancel(running)
ray.cancel(forced, force=True)
try:
    ray.get(running)
except ray.exceptions.TaskCancelledError:
    print("TaskCancelledError")
try:
    ray.get(forced)
except (ray.exceptions.TaskCancelledError, ray.exceptions.WorkerCrashedError):
    print("ended")  # by which of the two depends on whether it had begun
finished = quick.remote()
ray.get(finished)
ray.cancel(finished)
print(ray.get(finished))
