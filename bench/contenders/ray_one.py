"""Ray Data with one actor that has a CPU of its own, and the other CPU for reading and writing."""

from bench.contenders import ray


def main(job: str, data: str, out: str) -> None:
    ray.main(job, data, out, ray.ONE)
