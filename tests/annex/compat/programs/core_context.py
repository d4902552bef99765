"""What code can know of itself."""

import ray


@ray.remote
class Who:
    def me(self):
        context = ray.get_runtime_context()
        return type(
            context.get_worker_id()
        ).__name__, context.get_node_id() == ray.get_runtime_context().get_node_id()

    def handle(self):
        return ray.get_runtime_context().current_actor


@ray.remote
def task_id():
    return ray.get_runtime_context().get_task_id() is not None


who = Who.remote()
print(ray.get(who.me.remote()), ray.get(task_id.remote()), ray.is_initialized())
print(ray.get(ray.get(who.handle.remote()).me.remote())[0])
print(ray.cluster_resources()["CPU"] > 0)
