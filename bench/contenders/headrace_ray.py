"""Headrace with its workers on Ray: what the cluster's engine costs where one machine would do, and on nodes."""

from __future__ import annotations

import os

import ray

from bench.contenders.headrace import predictions
from bench.jobs import NODES, WAITING

DEVICES = {"num_gpus": 1, "concurrency": NODES}


def main(job: str, data: str, out: str) -> None:
    start()
    run(job, data, out)


def start() -> None:
    ray.init(address="local", num_cpus=os.cpu_count(), include_dashboard=False, log_to_driver=False)


def run(job: str, data: str, out: str) -> None:
    pool = DEVICES if job in WAITING else {}
    predictions(job, data, **pool).with_options(engine="ray", progress=False).write_parquet(out)
