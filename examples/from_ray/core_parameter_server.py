# The calls are those of ray-project/ray, doc/source/ray-core/examples/plot_parameter_server.ipynb.
import numpy as np

from headrace.compat import ray


@ray.remote
class ParameterServer:
    def __init__(self, size):
        self.weights = np.zeros(size)

    def apply_gradients(self, *gradients):
        self.weights = self.weights - 0.5 * np.stack(gradients).mean(axis=0)
        return self.weights

    def get_weights(self):
        return self.weights


@ray.remote
class DataWorker:
    def compute_gradients(self, weights):
        return 2 * (weights - 1.0)


ray.init(ignore_reinit_error=True)
ps = ParameterServer.remote(4)
workers = [DataWorker.remote() for _ in range(2)]
current = ps.get_weights.remote()
for _ in range(3):
    gradients = [worker.compute_gradients.remote(current) for worker in workers]
    current = ps.apply_gradients.remote(*gradients)
assert np.allclose(ray.get(current), 1.0)
pending = {worker.compute_gradients.remote(current): worker for worker in workers}
for _ in range(4):
    ready, _ = ray.wait(list(pending))
    worker = pending.pop(ready[0])
    current = ps.apply_gradients.remote(ready[0])
    pending[worker.compute_gradients.remote(current)] = worker
ray.shutdown()
