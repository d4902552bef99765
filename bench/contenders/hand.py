"""The loop an expert would write by hand: the bar.

Two spawned processes take files from a queue; each reads, predicts and writes in one thread. The
parent imports neither numpy nor pyarrow, no process imports pandas, and torch is imported only
where the model is torch. There is no fsync, no journal, no retry.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multiprocessing.queues import SimpleQueue

    Tasks = SimpleQueue[Any]

WORKERS = 2
BATCH_ROWS = 131_072  # or a row group, where that is smaller
IMAGES_PER_TASK = 16


def main(job: str, data: str, out: str, *, dictionary: bool = True) -> None:
    """`dictionary=False` keeps the writer from trying a dictionary on float columns."""
    os.makedirs(out)
    tasks = sorted(entry.path for entry in os.scandir(data))
    if job == "images":
        work: Any = classify
        queued: list[Any] = [tasks[i : i + IMAGES_PER_TASK] for i in range(0, len(tasks), IMAGES_PER_TASK)]
    else:
        work, queued = functools.partial(score, dictionary), list(tasks)
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


def score(dictionary: bool, job: str, tasks: Tasks, out: str, worker: int) -> None:
    """Parquet files in, one Parquet file out for each."""
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile, ParquetWriter

    from bench.steps import TABLE_STEPS, as_arrow

    step = TABLE_STEPS[job]()
    for path in iter(tasks.get, None):
        with ParquetFile(path) as source:
            fields = [source.schema_arrow.field(name) for name in step.carried]
            schema = pa.schema([*fields, pa.field("prediction", pa.type_for_alias(step.dtype))])
            encoded: Any = dictionary or [
                field.name for field in schema if not pa.types.is_floating(field.type)
            ]
            rows = min(BATCH_ROWS, source.metadata.row_group(0).num_rows)
            target = os.path.join(out, os.path.basename(path))
            with ParquetWriter(target, schema, use_dictionary=encoded) as sink:
                for batch in source.iter_batches(rows, columns=list(step.columns), use_threads=False):
                    sink.write_batch(as_arrow(step, batch))


def classify(job: str, tasks: Tasks, out: str, worker: int) -> None:
    """JPEG files in, one Parquet file out for each worker."""
    import numpy as np
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter

    from bench.steps import Resnet

    model = Resnet()
    names: list[bytes] = []
    labels, scores = [np.empty(0, np.int64)], [np.empty(0, np.float32)]
    for paths in iter(tasks.get, None):
        label, score = model([read(path) for path in paths])
        names += map(os.fsencode, paths)
        labels.append(label)
        scores.append(score)

    offsets = np.cumsum([0, *map(len, names)], dtype=np.int32)
    label, score = np.concatenate(labels), np.concatenate(scores)
    n = len(names)
    arrays = [
        pa.StringArray.from_buffers(n, pa.py_buffer(offsets), pa.py_buffer(b"".join(names))),
        pa.Array.from_buffers(pa.int64(), n, [None, pa.py_buffer(label)]),
        pa.Array.from_buffers(pa.float32(), n, [None, pa.py_buffer(score)]),
    ]
    batch = pa.RecordBatch.from_arrays(arrays, names=["path", "label", "prediction"])
    with ParquetWriter(os.path.join(out, f"part-{worker}.parquet"), batch.schema) as sink:
        sink.write_batch(batch)


def read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
