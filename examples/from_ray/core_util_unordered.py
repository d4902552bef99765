# The calls are those of ray-project/ray, python/ray/util/helpers.py.
from headrace.compat import ray


@ray.remote
def double(x):
    return 2 * x


refs = [double.remote(n) for n in range(6)]
assert sorted(ray.util.as_completed(refs, chunk_size=2)) == [0, 2, 4, 6, 8, 10]
assert sorted(ray.util.map_unordered(double, range(4))) == [0, 2, 4, 6]
assert ray.util.get_node_ip_address()
