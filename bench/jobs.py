"""What can be run: the jobs, the contenders, and which of them this interpreter can run."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Job:
    """A program that every contender writes in its own words."""

    name: str
    dataset: str  # a key of data.MAKERS
    checked: tuple[str, ...]  # numeric columns multiplied with the prediction and summed
    needs: tuple[str, ...] = ()  # modules that the job's own steps import
    label: str = ""


@dataclass(frozen=True, slots=True)
class Contender:
    """An engine, the module it needs, and the jobs it takes part in (none named: all)."""

    name: str
    module: str | None
    distribution: str | None = None
    jobs: tuple[str, ...] = ()


JOBS = {
    job.name: job
    for job in (
        Job("tiny", "tiny", ("fare_amount",), label="100 rows, numpy"),
        Job("taxi_parity", "taxi", ("fare_amount",), label="12 M rows, numpy"),
        Job("taxi_mlp", "taxi", ("fare_amount",), ("torch",), label="12 M rows, torch MLP"),
        Job("wide", "wide", ("f000", "f199"), label="0.8 M rows x 204 columns, numpy"),
        Job("images", "images", (), ("torch", "PIL"), label="1,000 JPEGs, ResNet-18"),
    )
}

CONTENDERS = {
    contender.name: contender
    for contender in (
        Contender("hand", None),
        Contender("hand_tuned", None, jobs=("taxi_parity", "taxi_mlp", "wide")),
        Contender("headrace", "headrace"),
        Contender("headrace_predict", "headrace", jobs=("taxi_parity", "taxi_mlp", "wide")),
        Contender("headrace_stages", "headrace", jobs=("images",)),
        Contender("daft", "daft"),
        Contender("ray", "ray.data", "ray"),
        Contender("headrace_ray", "ray", "ray", jobs=("taxi_parity", "taxi_mlp", "wide", "images")),
        Contender("spark", "pyspark", "pyspark"),
        Contender("dataloader", "torch", "torch", jobs=("images",)),
    )
}


def missing(module: str) -> bool:
    """Whether `module` cannot be imported here. Imports none of it beyond its parents."""
    try:
        return importlib.util.find_spec(module) is None
    except ImportError:
        return True


def why_not(contender: Contender) -> str | None:
    """The reason why a contender cannot run here, or None if it can."""
    if contender.module and missing(contender.module):
        return f"{contender.module} is not installed"
    if contender.name == "spark" and not (shutil.which("java") or os.environ.get("JAVA_HOME")):
        return "there is no Java"
    if contender.name == "spark" and missing("pandas"):
        return "pandas is not installed"
    return None


def version(contender: Contender) -> str | None:
    """The installed version of the engine, if it is a distribution."""
    name = contender.distribution or contender.module
    if name is None:
        return None
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
