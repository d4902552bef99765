# The calls are those of ray-project/ray, doc/source/ray-core/patterns/limit-running-tasks.rst.
import os
import tempfile

from headrace.compat import ray

ray.init(num_cpus=4)


@ray.remote
def process(file):
    return os.path.getsize(file)


with tempfile.NamedTemporaryFile() as file:
    file.write(b"12345")
    file.flush()
    refs = [process.options(memory=100 * 1024 * 1024).remote(file.name) for _ in range(6)]
    assert ray.get(refs) == [5] * 6
    assert ray.get(process.options(num_cpus=2).remote(file.name)) == 5
