"""Calls that are cancelled."""

import asyncio
import contextlib
import time

import ray
from ray.exceptions import GetTimeoutError, TaskCancelledError, WorkerCrashedError


@ray.remote
def sleeps(seconds=60):
    for _ in range(int(seconds * 100)):
        time.sleep(0.01)
    return "slept"


@ray.remote
def after(x):
    return x


@ray.remote
def parent():
    return ray.get(sleeps.remote())


@ray.remote(max_retries=3)
def stubborn():
    while True:
        with contextlib.suppress(BaseException):
            time.sleep(60)


def told(ref):
    try:
        return ray.get(ref, timeout=60)
    except TaskCancelledError:
        return "TaskCancelledError"
    except WorkerCrashedError:
        return "WorkerCrashedError"
    except GetTimeoutError:
        return "GetTimeoutError"


ref = sleeps.remote()
time.sleep(1)
ray.cancel(ref)
print(told(ref))
running = sleeps.remote()
queued = after.remote(running)
ray.cancel(queued)
print(told(queued))
ray.cancel(running)
print(told(running))
ref = parent.remote()
time.sleep(1)
ray.cancel(ref)
print(told(ref))
ref = stubborn.remote()
time.sleep(1)
ray.cancel(ref, force=True)
print(told(ref) in ("TaskCancelledError", "WorkerCrashedError"))
ref = after.remote(3)
print(ray.get(ref))
ray.cancel(ref)
print(ray.get(ref))
try:
    ray.get(sleeps.remote(3), timeout=0.2)
except GetTimeoutError as error:
    print("GetTimeoutError", isinstance(error, TimeoutError))
ready, rest = ray.wait([sleeps.remote(2)], timeout=0.1)
print(len(ready), len(rest))


@ray.remote
class Sleeper:
    async def sleep(self):
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            self.cancelled = True
            raise

    async def was_cancelled(self):
        return self.cancelled


actor = Sleeper.remote()
ray.get(actor.__ray_ready__.remote())
ref = actor.sleep.remote()
time.sleep(1)
ray.cancel(ref)
print(told(ref), ray.get(actor.was_cancelled.remote()))
