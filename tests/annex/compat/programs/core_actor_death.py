"""Actors that end, and what is raised by calls to them."""

import ray


@ray.remote
class Fragile:
    def __init__(self, fail=False):
        if fail:
            raise ValueError("constructor")

    def ping(self):
        return "pong"


one = Fragile.remote()
print(ray.get(one.ping.remote()))
ray.kill(one)
try:
    ray.get(one.ping.remote())
except ray.exceptions.RayActorError:
    print("RayActorError")
try:
    ray.get(Fragile.remote(fail=True).ping.remote())
except ray.exceptions.RayActorError as error:
    print("RayActorError", "constructor" in str(error))
except ValueError as error:
    print("ValueError", "constructor" in str(error))
gone = Fragile.remote()
ray.get(gone.ping.remote())
gone.__ray_terminate__.remote()
try:
    while True:
        ray.get(gone.ping.remote())
except ray.exceptions.RayActorError:
    print("ended")
