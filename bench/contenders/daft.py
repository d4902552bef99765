"""Daft on its native runner: the plan is Rust and multithreaded, the model sees its columns only."""

from __future__ import annotations

from typing import Any

import daft
import numpy as np
import pyarrow as pa
from daft import DataType, Series, col

from bench.steps import BLOBS, arrow_column, outputs_of, results, step_class

TYPES = {
    "int64": DataType.int64(),
    "float32": DataType.float32(),
    "list<float32>": DataType.list(DataType.float32()),
}
CHUNK = DataType.struct({"chunk": DataType.int64(), "text": DataType.string()})


def main(job: str, data: str, out: str) -> None:
    predictions(job, data).write_parquet(out)


def first_row(data: str) -> dict[str, Any]:
    return predictions("taxi_mlp", data).limit(1).to_pylist()[0]


def predictions(job: str, data: str) -> daft.DataFrame:
    if job == "documents":
        return embedded(data)
    return classified(job, data) if job in BLOBS else scored(job, data)


def scored(job: str, data: str) -> daft.DataFrame:
    of_job = step_class(job)
    frame = daft.read_parquet(f"{data}/*.parquet").select(*map(col, of_job.columns))
    predicted = model(of_job)().predict(*map(col, of_job.inputs))
    return frame.select(*map(col, of_job.carried), predicted)


def model(of_job: Any, **options: Any) -> Any:
    """A class of Daft's around a step: its columns in, its predictions out."""
    kinds = outputs_of(of_job)
    several = len(kinds) > 1
    types = {name: TYPES[kind] for name, kind in kinds.items()}

    @daft.cls(**options)
    class Model:
        def __init__(self) -> None:
            self.step = of_job()

        @daft.method.batch(
            return_dtype=DataType.struct(types) if several else types["prediction"], unnest=several
        )
        def of_columns(self, *columns: Series) -> Any:
            named = dict(zip(of_job.inputs, map(array, columns), strict=True))
            return made(results(self.step, named), kinds)

        @daft.method.batch(
            return_dtype=DataType.struct(types) if several else types["prediction"],
            unnest=several,
            batch_size=getattr(of_job, "batch_size", None),
        )
        def of_files(self, contents: Series) -> Any:
            return made(self.step(contents.to_pylist()), kinds)

    class Named:
        def predict(self, *columns: Any) -> Any:
            made = Model().of_columns(*columns) if hasattr(of_job, "inputs") else Model().of_files(*columns)
            return made if several else made.alias("prediction")

    return Named


def array(column: Series) -> Any:
    arrow = column.to_arrow()
    text = pa.types.is_string(arrow.type) or pa.types.is_large_string(arrow.type)
    return arrow.to_pylist() if text else np.from_dlpack(arrow)


def made(found: dict[str, Any], kinds: dict[str, str]) -> Any:
    columns = [arrow_column(found[name], kind) for name, kind in kinds.items()]
    return columns[0] if len(columns) == 1 else pa.StructArray.from_arrays(columns, names=list(kinds))


def classified(job: str, data: str) -> daft.DataFrame:
    frame = daft.from_glob_path(f"{data}/*").with_column("bytes", col("path").download())
    return frame.select(col("path"), model(step_class(job), max_concurrency=2)().predict(col("bytes")))


def embedded(data: str) -> daft.DataFrame:
    @daft.func(return_dtype=DataType.list(CHUNK))
    def chunked(pdf: bytes) -> Any:
        from bench.workloads.documents import chunks

        return [{"chunk": number, "text": text} for number, text in enumerate(chunks(pdf))]

    frame = daft.from_glob_path(f"{data}/*").select(col("path"), chunked(col("path").download()).alias("c"))
    frame = frame.explode(col("c")).select(
        col("path"), col("c").get("chunk").alias("chunk"), col("c").get("text").alias("text")
    )
    predicted = model(step_class("text_embedding"), max_concurrency=2)().predict(col("text"))
    return frame.select(col("path"), col("chunk"), col("text"), predicted)
