"""Hugging Face datasets: files become an Arrow cache, ``map`` in two processes makes another, which is written."""

from __future__ import annotations

import functools
import os
import tempfile
from typing import Any

from bench.steps import arrow_type, outputs_of, step_class


@functools.cache
def step_of(job: str) -> Any:
    return step_class(job)()


def predict(job: str, table: Any) -> Any:
    from bench.steps import as_arrow

    return as_arrow(step_of(job), table)


def main(job: str, data: str, out: str) -> None:
    os.makedirs(out)
    with tempfile.TemporaryDirectory(dir=os.path.dirname(out)) as cache:
        os.environ["HF_HOME"] = cache
        from datasets import Features, load_dataset
        from datasets.utils.logging import disable_progress_bar

        disable_progress_bar()
        of_job = step_class(job)
        files = sorted(entry.path for entry in os.scandir(data))
        rows = load_dataset("parquet", data_files=files, split="train", columns=list(of_job.columns))
        schema = rows.features.arrow_schema
        fields = [schema.field(name) for name in of_job.carried]
        import pyarrow as pa

        added = [pa.field(name, arrow_type(kind)) for name, kind in outputs_of(of_job).items()]
        rows = rows.with_format("arrow").map(
            functools.partial(predict, job),
            batched=True,
            batch_size=256 if job == "text_embedding" else 131_072,
            num_proc=2,
            remove_columns=rows.column_names,
            features=Features.from_arrow_schema(pa.schema([*fields, *added])),
        )
        rows.to_parquet(os.path.join(out, "part-0.parquet"))
