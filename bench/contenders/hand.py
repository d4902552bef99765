"""The loop an expert would write by hand: the bar.

Two spawned processes take files from a queue; each reads, predicts and writes in one thread. The
parent imports neither numpy nor pyarrow, no process imports pandas, and torch is imported only
where the model is torch. There is no fsync, no journal, no retry.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import tarfile
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multiprocessing.queues import SimpleQueue

    Tasks = SimpleQueue[Any]

WORKERS = 2
BATCH_ROWS = 131_072  # or a row group, where that is smaller
FILES_AT_ONCE = {"images": 16, "audio": 8, "small_images": 64}


def main(job: str, data: str, out: str, *, dictionary: bool = True) -> None:
    """`dictionary=False` keeps the writer from trying a dictionary on float columns."""
    os.makedirs(out, exist_ok=True)
    tasks = sorted(entry.path for entry in os.scandir(data))
    queued: list[Any] = list(tasks)
    work: Any = functools.partial(score, dictionary)
    if job in FILES_AT_ONCE:
        size = FILES_AT_ONCE[job]
        work, queued = classify, [tasks[i : i + size] for i in range(0, len(tasks), size)]
    elif job in ("small_images_tar", "documents"):
        work = classify if job.endswith("_tar") else embed
    if job == "resume_after_kill":
        queued = [path for path in tasks if not os.path.exists(os.path.join(out, os.path.basename(path)))]
    count = min(WORKERS, len(queued))

    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    workers = [context.Process(target=work, args=(job, queue, out, i)) for i in range(count)]
    for worker in workers:
        worker.start()
    for task in [*queued, *[None] * count]:
        queue.put(task)
    for worker in workers:
        worker.join()
    if any(worker.exitcode for worker in workers):
        raise SystemExit("a worker failed")


def first_row(data: str) -> dict[str, Any]:
    """What one would type to see a row: the first rows of the first file through the model."""
    from pyarrow.parquet import ParquetFile

    from bench.steps import as_arrow, step_class

    step = step_class("taxi_mlp")()
    with ParquetFile(min(entry.path for entry in os.scandir(data))) as source:
        batch = next(source.iter_batches(1024, columns=list(step.columns), use_threads=False))
    row: dict[str, Any] = as_arrow(step, batch).slice(0, 1).to_pylist()[0]
    return row


def score(dictionary: bool, job: str, tasks: Tasks, out: str, worker: int) -> None:
    """Parquet files in, one Parquet file out for each, under its name once it is whole."""
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile, ParquetWriter

    from bench.steps import arrow_type, as_arrow, outputs_of, step_class

    step = step_class(job)()
    for path in iter(tasks.get, None):
        with ParquetFile(path) as source:
            fields = [source.schema_arrow.field(name) for name in step.carried]
            added = [pa.field(name, arrow_type(kind)) for name, kind in outputs_of(step).items()]
            schema = pa.schema([*fields, *added])
            encoded: Any = dictionary or [
                field.name for field in schema if not pa.types.is_floating(field.type)
            ]
            rows = min(BATCH_ROWS, source.metadata.row_group(0).num_rows)
            target = os.path.join(out, os.path.basename(path))
            with ParquetWriter(f"{target}.part", schema, use_dictionary=encoded) as sink:
                for batch in source.iter_batches(rows, columns=list(step.columns), use_threads=False):
                    sink.write_batch(as_arrow(step, batch))
        os.rename(f"{target}.part", target)


def classify(job: str, tasks: Tasks, out: str, worker: int) -> None:
    """Files in, one Parquet file out for each worker."""
    from bench.steps import outputs_of, step_class

    step = step_class(job)()
    names: list[str] = []
    found: list[Any] = []
    for task in iter(tasks.get, None):
        for paths, contents in in_batches(members(task)) if isinstance(task, str) else [loose(task)]:
            names += paths
            found.append(step(contents))
    write(out, worker, {"path": names}, found, outputs_of(step))


def embed(job: str, tasks: Tasks, out: str, worker: int) -> None:
    """PDF files in, a row for each chunk of their texts out."""
    from bench.workloads.documents import chunk_rows
    from bench.workloads.texts import Embedder

    step = Embedder()
    rows = [row for path in iter(tasks.get, None) for row in chunk_rows(path, read(path))]
    columns = {name: [row[name] for row in rows] for name in ("path", "chunk", "text")}
    write(out, worker, columns, [step(columns)] if rows else [], step.outputs)


def write(out: str, worker: int, columns: dict[str, Any], found: list[Any], kinds: dict[str, str]) -> None:
    import numpy as np
    import pyarrow as pa
    from pyarrow.parquet import write_table

    from bench.steps import arrow_column

    if found:
        joined = {name: np.concatenate([each[name] for each in found]) for name in kinds}
        made = {name: arrow_column(joined[name], kind) for name, kind in kinds.items()}
        write_table(pa.table({**columns, **made}), os.path.join(out, f"part-{worker}.parquet"))


def loose(paths: list[str]) -> tuple[list[str], list[bytes]]:
    return paths, [read(path) for path in paths]


def read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def members(tar: str) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(tar, "r:") as archive:
        for member in archive:
            file = archive.extractfile(member)
            assert file is not None
            yield member.name, file.read()


def in_batches(files: Iterable[tuple[str, bytes]], size: int = 64) -> Iterator[tuple[list[str], list[bytes]]]:
    every = list(files)
    for at in range(0, len(every), size):
        names, contents = zip(*every[at : at + size], strict=True)
        yield list(names), list(contents)
