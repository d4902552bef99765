# The calls are those of ray-project/ray, doc/source/ray-core/doc_code/pattern_pipelining.py.
from headrace.compat import ray


@ray.remote
class WorkQueue:
    def __init__(self):
        self.queue = list(range(10))

    def get_work_item(self):
        return self.queue.pop(0) if self.queue else None


@ray.remote
class Worker:
    def __init__(self, work_queue):
        self.work_queue = work_queue
        self.done = []

    def run(self):
        self.work_item_ref = self.work_queue.get_work_item.remote()
        while True:
            item = ray.get(self.work_item_ref)
            if item is None:
                return self.done
            self.work_item_ref = self.work_queue.get_work_item.remote()
            self.done.append(item)


work_queue = WorkQueue.remote()
worker = Worker.remote(work_queue)
assert ray.get(worker.run.remote()) == list(range(10))
