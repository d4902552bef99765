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
for ref in (running, forced):
    try:
        ray.get(ref)
    except ray.exceptions.TaskCancelledError:
        print("TaskCancelledError")
    except ray.exceptions.WorkerCrashedError:
        print("WorkerCrashedError")
finished = quick.remote()
ray.get(finished)
ray.cancel(finished)
print(ray.get(finished))
