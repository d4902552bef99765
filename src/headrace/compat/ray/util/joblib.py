"""Ray's ``ray.util.joblib``: joblib's calls run on the executor."""

from __future__ import annotations

from typing import Any

from headrace.compat.ray.remote import RemoteFunction
from headrace.compat.ray.session import cluster_resources


def register_ray() -> None:
    """Let ``joblib.parallel_backend("ray")`` use the executor.

    >>> register_ray()
    """
    import joblib
    from joblib._parallel_backends import ParallelBackendBase

    class RayBackend(ParallelBackendBase):  # type: ignore[misc]
        supports_retrieve_callback = True
        supports_timeout = True

        def effective_n_jobs(self, n_jobs: int) -> int:
            cores = max(1, int(cluster_resources().get("CPU", 1)))
            return cores if n_jobs is None or n_jobs < 0 else max(1, min(n_jobs, cores))

        def submit(self, func: Any, callback: Any = None) -> Any:
            future = RemoteFunction(_call, {}).remote(func).future()
            if callback is not None:
                future.add_done_callback(callback)
            return future

        def retrieve_result_callback(self, out: Any) -> Any:
            return out.result()

    joblib.register_parallel_backend("ray", RayBackend)


def _call(function: Any) -> Any:
    return function()
