# The calls are those of ray-project/ray, doc/source/ray-core/doc_code/actor-queue.py.
from headrace.compat import ray
from headrace.compat.ray.util.queue import Empty, Full, Queue

ray.init()
queue = Queue(maxsize=100)


@ray.remote
def consumer(id, queue):
    got = []
    try:
        while True:
            got.append(queue.get(block=True, timeout=1))
    except Empty:
        pass
    return got


[queue.put(i) for i in range(10)]
results = ray.get([consumer.remote(id, queue) for id in range(2)])
assert sorted(results[0] + results[1]) == list(range(10))
assert queue.empty() and queue.qsize() == 0
small = Queue(maxsize=1, actor_options={"num_cpus": 0})
small.put("a")
try:
    small.put_nowait("b")
    raise AssertionError
except Full:
    pass
assert small.full() and small.get_nowait() == "a"
small.put_nowait_batch(["x"])
assert small.get_nowait_batch(1) == ["x"]
small.shutdown()
