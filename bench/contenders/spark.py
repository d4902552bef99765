"""Spark on local cores: Parquet in the JVM, only the model's columns go to Python, by Arrow."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import arrow_udf, col  # type: ignore[attr-defined]

from bench.steps import TABLE_STEPS, Resnet

TYPES = {"int64": "long", "float32": "float"}
CLASS_TYPE = "path string, label long, prediction float"


def main(job: str, data: str, out: str) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "4g")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", 16 if job == "images" else 65_536)
        .config("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    frame = classified(session, data) if job == "images" else scored(session, job, data)
    frame.write.parquet(out)
    session.stop()


def scored(session: SparkSession, job: str, data: str) -> DataFrame:
    step_class = TABLE_STEPS[job]

    # Spark reads the kind of a function from its annotations: one column or several.
    def of_one(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        return of_several((column,) for column in batches)

    def of_several(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        step = step_class()
        for columns in batches:
            arrays = (np.from_dlpack(column) for column in columns)
            yield pa.array(step(dict(zip(step.inputs, arrays, strict=True))))

    predict = of_one if len(step_class.inputs) == 1 else of_several
    model = arrow_udf(predict, TYPES[step_class.dtype])
    prediction = model(*map(col, step_class.inputs)).alias("prediction")
    return session.read.parquet(data).select(*map(col, step_class.carried), prediction)


def classified(session: SparkSession, data: str) -> DataFrame:
    def predict(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        model = Resnet()
        for batch in batches:
            labels, scores = model(batch["content"].to_pylist())
            yield pa.RecordBatch.from_arrays(
                [batch["path"], pa.array(labels), pa.array(scores)],
                names=["path", "label", "prediction"],
            )

    files = session.read.format("binaryFile").load(data).select("path", "content")
    return files.mapInArrow(predict, CLASS_TYPE)
