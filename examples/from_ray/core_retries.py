# The calls are those of ray-project/ray, doc/source/ray-core/doc_code/tasks_fault_tolerance.py.
import os
import tempfile

from headrace.compat import ray

folder = tempfile.mkdtemp()


class RandomError(Exception):
    pass


def first_time(name):
    path = os.path.join(folder, name)
    if os.path.exists(path):
        return False
    open(path, "w").close()
    return True


@ray.remote(max_retries=1)
def crashes(name):
    if first_time(name):
        os._exit(0)
    return 0


@ray.remote(max_retries=1, retry_exceptions=True)
def fails(name, probability=1.0):
    if probability < 0:
        raise ValueError(probability)
    if first_time(name):
        raise RandomError("Failed!")
    return 0


assert ray.get(crashes.remote("a")) == 0
assert ray.get(fails.remote("b")) == 0
listed = fails.options(retry_exceptions=[RandomError])
assert ray.get(listed.remote("c")) == 0
try:
    ray.get(listed.remote("d", -1))
    raise AssertionError
except ValueError:
    pass


@ray.remote(max_restarts=1, max_task_retries=2)
class Actor:
    @ray.method(max_task_retries=3, retry_exceptions=[RandomError])
    def work(self, name):
        if first_time(name):
            raise RandomError
        return "done"


assert ray.get(Actor.remote().work.remote("e")) == "done"
