# The calls are those of ray-project/ray, doc/source/ray-core/doc_code/metrics_example.py.
from headrace.compat import ray
from headrace.compat.ray.util.metrics import Counter, Gauge, Histogram

ray.init(_metrics_export_port=8080)


@ray.remote
class MyActor:
    def __init__(self, name):
        self._curr_count = 0
        self.counter = Counter("num_requests", description="Requests.", tag_keys=("actor_name",))
        self.counter.set_default_tags({"actor_name": name})
        self.gauge = Gauge("curr_count", description="Count.", tag_keys=("actor_name",))
        self.gauge.set_default_tags({"actor_name": name})
        self.histogram = Histogram(
            "latency", description="ms.", boundaries=[0.1, 1], tag_keys=("actor_name",)
        )
        self.histogram.set_default_tags({"actor_name": name})

    def process(self, num):
        self._curr_count += num
        self.counter.inc()
        self.gauge.set(self._curr_count)
        self.histogram.observe(0.5)
        return self._curr_count


actor = MyActor.remote("a")
assert ray.get([actor.process.remote(1) for _ in range(3)]) == [1, 2, 3]
