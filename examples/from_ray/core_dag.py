# The calls are those of ray-project/ray, doc/source/ray-core/doc_code/ray-dag.py.
from headrace.compat.ray.dag import InputNode

from headrace.compat import ray


@ray.remote
def func(src, inc=1):
    return src + inc


@ray.remote
class Adder:
    def __init__(self, init):
        self.init = init

    def add(self, x):
        self.init += x
        return self.init


a_ref = func.bind(1, inc=2)
assert ray.get(a_ref.execute()) == 3
assert ray.get(func.bind(a_ref, 3).execute()) == 6
with InputNode() as dag_input:
    adder = Adder.bind(10)
    dag = func.bind(adder.add.bind(dag_input))
assert ray.get(dag.execute(5)) == 16
