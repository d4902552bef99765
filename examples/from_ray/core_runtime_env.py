# The calls are those of ray-project/ray, doc/source/ray-core/handling-dependencies.rst.
import os
import tempfile

from headrace.compat import ray
from headrace.compat.ray.runtime_env import RuntimeEnv

folder = tempfile.mkdtemp()
with open(f"{folder}/hello.txt", "w") as file:
    file.write("Hello World!")
ray.init(runtime_env={"working_dir": folder, "env_vars": {"TF_WARNINGS": "none"}})


@ray.remote
def read():
    return open("hello.txt").read(), os.environ["TF_WARNINGS"]


@ray.remote(runtime_env=RuntimeEnv(env_vars={"OMP_NUM_THREADS": "3", "MINE": "yes"}))
def threads():
    return os.environ["OMP_NUM_THREADS"], os.environ["MINE"]


@ray.remote
class Actor:
    def variable(self):
        return os.environ["A"]


assert ray.get(read.remote()) == ("Hello World!", "none")
assert ray.get(threads.remote()) == ("3", "yes")
actor = Actor.options(runtime_env={"env_vars": {"A": "b"}}).remote()
assert ray.get(actor.variable.remote()) == "b"
assert "MINE" not in os.environ
