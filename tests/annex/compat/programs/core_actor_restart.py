"""A method that ends its actor."""

import ray


@ray.remote
class Ends:
    def end(self):
        ray.actor.exit_actor()

    def ping(self):
        return "pong"


actor = Ends.remote()
print(ray.get(actor.ping.remote()))
try:
    ray.get(actor.end.remote())
except ray.exceptions.RayActorError:
    print("RayActorError")
try:
    ray.get(actor.ping.remote())
except ray.exceptions.RayActorError:
    print("RayActorError")
