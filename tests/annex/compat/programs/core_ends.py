"""How actors end, and begin again."""

import os
import sys
import time

import ray
from ray.exceptions import RayActorError


@ray.remote(max_restarts=1)
class Phoenix:
    def __init__(self):
        self.n = 0

    def add(self):
        self.n += 1
        return self.n

    def leave(self):
        sys.exit(0)

    def leave_politely(self):
        ray.actor.exit_actor()

    def die(self):
        os._exit(1)

    def pid(self):
        return os.getpid()


def answer(ref):
    try:
        return ray.get(ref)
    except RayActorError:
        return "RayActorError"


def until(make, wanted, tries=300):
    for _ in range(tries):
        got = answer(make())
        if got == wanted:
            return got
        time.sleep(0.1)
    return got


actor = Phoenix.remote()
print(ray.get([actor.add.remote(), actor.add.remote()]))
ray.kill(actor, no_restart=False)
print(until(lambda: actor.add.remote(), 1) in (1, 2))
ray.kill(actor)
print(until(lambda: actor.add.remote(), "RayActorError"))

actor = Phoenix.remote()
print(ray.get(actor.add.remote()), answer(actor.die.remote()))
print(until(lambda: actor.add.remote(), 1) >= 1)
print(answer(actor.die.remote()), answer(actor.add.remote()))

for method in ("leave", "leave_politely"):
    actor = Phoenix.options(max_restarts=-1).remote()
    print(ray.get(actor.add.remote()), answer(getattr(actor, method).remote()), answer(actor.add.remote()))

actor = Phoenix.options(max_restarts=-1, max_task_retries=-1).remote()
first = ray.get(actor.pid.remote())
ray.kill(actor, no_restart=False)
print(ray.get(actor.add.remote()), ray.get(actor.pid.remote()) != first)

actor = Phoenix.remote()
waiting = actor.add.remote()
done = actor.__ray_terminate__.remote()
print(ray.get(waiting), answer(actor.add.remote()))
