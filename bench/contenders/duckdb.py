"""DuckDB: SQL with the model as a function over Arrow columns; Python runs in one thread at a time."""

from __future__ import annotations

import inspect
import os
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from bench.steps import arrow_column, outputs_of, results, step_class

TYPES = {"int64": "BIGINT", "float32": "FLOAT", "list<float32>": "FLOAT[]"}


def main(job: str, data: str, out: str) -> None:
    os.makedirs(out)
    connection, query = predictions(job, data)
    connection.execute(f"COPY ({query}) TO '{out}/part.parquet' (FORMAT parquet)")


def first_row(data: str) -> dict[str, Any]:
    connection, query = predictions("taxi_mlp", data)
    found: dict[str, Any] = connection.execute(f"{query} LIMIT 1").to_arrow_table().to_pylist()[0]
    return found


def predictions(job: str, data: str) -> tuple[Any, str]:
    step = step_class(job)()
    (kind,) = outputs_of(step).values()
    connection = duckdb.connect()
    connection.execute("SET preserve_insertion_order = false")

    def predict(*columns: Any) -> Any:
        given = dict(zip(step.inputs, map(array, columns), strict=True))
        return pa.chunked_array([arrow_column(results(step, given)["prediction"], kind)])

    # DuckDB counts a function's parameters by its signature.
    named = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY) for name in step.inputs]
    predict.__signature__ = inspect.Signature(named)  # type: ignore[attr-defined]
    types = connection.execute(
        f"SELECT column_name, column_type FROM (DESCRIBE SELECT * FROM '{data}/*.parquet')"
    )
    known = dict(types.fetchall())
    inputs = [known[name] for name in step.inputs]
    connection.create_function("predict", predict, inputs, TYPES[kind], type="arrow", side_effects=False)
    names = ", ".join(step.carried)
    return (
        connection,
        f"SELECT {names}, predict({', '.join(step.inputs)}) AS prediction FROM '{data}/*.parquet'",
    )


def array(column: Any) -> Any:
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    whole = whole.chunk(0) if isinstance(whole, pa.ChunkedArray) else whole
    text = pa.types.is_string(whole.type) or pa.types.is_large_string(whole.type)
    return whole.to_pylist() if text else np.asarray(whole.fill_null(0))
