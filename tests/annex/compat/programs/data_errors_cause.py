import ray

try:
    ray.data.range(3).map(lambda row: 1 / 0).materialize()
except ray.exceptions.RayTaskError as error:
    print(isinstance(error.cause, ray.exceptions.UserCodeException))
