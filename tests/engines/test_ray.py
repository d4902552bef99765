"""Workers on a Ray cluster; `make test-ray` runs these, `make test` does not."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator

import pytest

from millrace.core.ports import Engine
from millrace.testing import EngineContract

if importlib.util.find_spec("ray") is None:
    pytest.skip("Ray is not installed", allow_module_level=True)

pytestmark = [
    pytest.mark.ray,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    """A Ray of this machine, with more cores than there may be: what is tested waits more than it works."""
    import ray

    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    ray.init(address="local", num_cpus=8, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


class TestRay(EngineContract):
    def make(self) -> Engine:
        from millrace.engines.ray.engine import RayEngine

        return RayEngine(pool_timeout=30)
