# The calls are those of ray-project/ray, doc/source/ray-core/doc_code/cgraph_quickstart.py.
from headrace.compat import ray
from headrace.compat.ray.dag import InputNode, MultiOutputNode


@ray.remote
class Stage:
    def __init__(self, name):
        self.name = name

    def run(self, text):
        return f"{text} {self.name}"


ray.init(num_cpus=4)
first, second = Stage.remote("first"), Stage.remote("second")
with InputNode() as given:
    dag = MultiOutputNode([second.run.bind(first.run.bind(given)), first.run.bind(given)])
assert ray.get(dag.execute("go")) == ["go first second", "go first"]
compiled = dag.experimental_compile()
assert ray.get(compiled.execute("on")) == ["on first second", "on first"]
compiled.teardown()

ray.kill(first)
try:
    ray.get(compiled.execute("again"))
except ray.exceptions.ActorDiedError:
    assert ray.get(second.run.remote("alive")) == "alive second"
