"""Daft with its workers on Ray, on the cores of this machine."""

from __future__ import annotations

import os
from typing import Any


def main(job: str, data: str, out: str) -> None:
    start()
    from bench.contenders import daft

    daft.main(job, data, out)


def first_row(data: str) -> dict[str, Any]:
    start()
    from bench.contenders import daft

    return daft.first_row(data)


def start() -> None:
    import daft
    import ray

    ray.init(address="local", num_cpus=os.cpu_count(), include_dashboard=False, log_to_driver=False)
    daft.set_runner_ray(noop_if_initialized=True)
