"""A result that is not there in time."""

import time

import ray


@ray.remote
def slow():
    time.sleep(60)


ref = slow.options(num_cpus=0).remote()
try:
    ray.get(ref, timeout=0.05)
except ray.exceptions.GetTimeoutError as error:
    print("GetTimeoutError", isinstance(error, TimeoutError))
print([len(each) for each in ray.wait([ref], timeout=0)])
ray.cancel(ref, force=True)
