"""No more than so many calls under way: the pattern with ray.wait."""

import ray


@ray.remote
def work(i):
    return i * i


results, under_way = [], []
for i in range(12):
    if len(under_way) >= 3:
        done, under_way = ray.wait(under_way, num_returns=1)
        results += ray.get(done)
    under_way.append(work.remote(i))
results += ray.get(under_way)
print(sorted(results))
