"""Daft on its native runner: the plan is Rust and multithreaded, the model sees two columns."""

from __future__ import annotations

from typing import Any

import daft
import numpy as np
import pyarrow as pa
from daft import DataType, Series, col

from bench.steps import TABLE_STEPS, Resnet

TYPES = {"int64": DataType.int64(), "float32": DataType.float32()}


def main(job: str, data: str, out: str) -> None:
    frame = classified(data) if job == "images" else scored(job, data)
    frame.write_parquet(out)


def scored(job: str, data: str) -> daft.DataFrame:
    step_class = TABLE_STEPS[job]

    @daft.cls
    class Model:
        def __init__(self) -> None:
            self.step = step_class()

        @daft.method.batch(return_dtype=TYPES[step_class.dtype])
        def predict(self, *columns: Series) -> Any:
            arrays = (np.from_dlpack(column.to_arrow()) for column in columns)
            return self.step(dict(zip(self.step.inputs, arrays, strict=True)))

    frame = daft.read_parquet(f"{data}/*.parquet").select(*map(col, step_class.columns))
    prediction = Model().predict(*map(col, step_class.inputs))  # type: ignore[arg-type]
    return frame.with_column("prediction", prediction).select(
        *map(col, step_class.carried), col("prediction")
    )


def classified(data: str) -> daft.DataFrame:
    @daft.cls(max_concurrency=2)
    class Model:
        def __init__(self) -> None:
            self.model = Resnet()

        @daft.method.batch(
            return_dtype=DataType.struct({"label": DataType.int64(), "prediction": DataType.float32()}),
            batch_size=Resnet.batch_size,
            unnest=True,
        )
        def predict(self, images: Series) -> Any:
            labels, scores = self.model(images.to_pylist())
            return pa.StructArray.from_arrays(
                [pa.array(labels), pa.array(scores)], names=["label", "prediction"]
            )

    frame = daft.from_glob_path(f"{data}/*.jpg").with_column("bytes", col("path").download())
    return frame.select(col("path"), Model().predict(col("bytes")))  # type: ignore[arg-type]
