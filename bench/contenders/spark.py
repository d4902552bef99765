"""Spark on local cores: Parquet in the JVM, only the model's columns go to Python, by Arrow."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import arrow_udf, col  # type: ignore[attr-defined]

from bench.steps import BLOBS, arrow_column, outputs_of, results, step_class

TYPES = {"int64": "long", "float32": "float", "list<float32>": "array<float>"}


def main(job: str, data: str, out: str) -> None:
    session = started(job)
    predictions(session, job, data).write.parquet(out)
    session.stop()


def first_row(data: str) -> dict[str, Any]:
    row: dict[str, Any] = predictions(started("taxi_mlp"), "taxi_mlp", data).first().asDict()  # type: ignore[union-attr]
    return row


def started(job: str) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    few = job in BLOBS or job in ("documents", "text_embedding")
    builder: Any = SparkSession.builder
    session: SparkSession = (
        builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "4g")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", 64 if few else 65_536)
        .config("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    return session


def predictions(session: SparkSession, job: str, data: str) -> DataFrame:
    if job == "documents":
        return embedded(session, data)
    return classified(session, job, data) if job in BLOBS else scored(session, job, data)


def scored(session: SparkSession, job: str, data: str) -> DataFrame:
    of_job = step_class(job)
    (kind,) = outputs_of(of_job).values()

    # Spark reads the kind of a function from its annotations: one column or several.
    def of_one(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        return of_several((column,) for column in batches)

    def of_several(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        step = of_job()
        for columns in batches:
            named = dict(zip(step.inputs, map(array, columns), strict=True))
            yield arrow_column(results(step, named)["prediction"], kind)

    predict = of_one if len(of_job.inputs) == 1 else of_several
    prediction = arrow_udf(predict, TYPES[kind])(*map(col, of_job.inputs)).alias("prediction")
    return session.read.parquet(data).select(*map(col, of_job.carried), prediction)


def array(column: Any) -> Any:
    text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
    return column.to_pylist() if text else np.from_dlpack(column)


def classified(session: SparkSession, job: str, data: str) -> DataFrame:
    of_job = step_class(job)
    kinds = outputs_of(of_job)

    def predict(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        step = of_job()
        for batch in batches:
            found = step(batch["content"].to_pylist())
            columns = [arrow_column(found[name], kind) for name, kind in kinds.items()]
            yield pa.RecordBatch.from_arrays([batch["path"], *columns], names=["path", *kinds])

    files = session.read.format("binaryFile").load(data).select("path", "content")
    fields = ", ".join(f"{name} {TYPES[kind]}" for name, kind in kinds.items())
    return files.mapInArrow(predict, f"path string, {fields}")


def embedded(session: SparkSession, data: str) -> DataFrame:
    def chunked(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from bench.workloads.documents import chunk_rows

        for batch in batches:
            pairs = zip(batch["path"].to_pylist(), batch["content"].to_pylist(), strict=True)
            yield pa.RecordBatch.from_pylist([row for path, pdf in pairs for row in chunk_rows(path, pdf)])

    def vectors(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        step = step_class("text_embedding")()
        for batch in batches:
            found = step({"text": batch["text"].to_pylist()})["prediction"]
            yield batch.append_column("prediction", arrow_column(found, "list<float32>"))

    files = session.read.format("binaryFile").load(data).select("path", "content")
    texts = files.mapInArrow(chunked, "path string, chunk long, text string")
    return texts.mapInArrow(vectors, "path string, chunk long, text string, prediction array<float>")
