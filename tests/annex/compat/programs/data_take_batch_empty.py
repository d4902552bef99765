"""take_batch of nothing."""

import ray

try:
    ray.data.range(3).filter(lambda row: False).take_batch()
except ValueError:
    print("ValueError")
