"""Strategies are values."""

import ray

print(ray.data.ActorPoolStrategy(size=2) == ray.data.ActorPoolStrategy(size=2))
print(ray.data.ActorPoolStrategy(size=2) == ray.data.ActorPoolStrategy(size=3))
print(ray.data.TaskPoolStrategy(size=1) == ray.data.TaskPoolStrategy(size=1))
