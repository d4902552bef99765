# The calls are those of ray-project/ray, doc/source/ray-core/doc_code/ray-dag.py.
from headrace.compat import ray
from headrace.compat.ray.dag.input_node import InputNode
from headrace.compat.ray.dag.output_node import MultiOutputNode


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


@ray.remote
class Counter:
    def __init__(self, count):
        self.count = count

    def inc(self, by):
        self.count += by

    def get(self):
        return self.count


@ray.remote
def combine(x, y):
    return x + y


first, second = Counter.bind(10), Counter.bind(10)
first.inc.bind(2)
first.inc.bind(4)
second.inc.bind(6)
dag = combine.bind(first.get.bind(), second.get.bind())
assert ray.get(dag.execute()) == 32
assert ray.get(dag.execute()) == 32  # with actors of its own
with InputNode() as given:
    dag = MultiOutputNode([func.bind(given["x"]), func.bind(given["y"])])
assert ray.get(dag.execute({"x": 1, "y": 2})) == [2, 3]
