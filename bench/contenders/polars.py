"""Polars: a lazy scan, the model as a function over its columns, streamed to one file."""

from __future__ import annotations

import os
from typing import Any

import polars as pl

from bench.steps import outputs_of, results, step_class

TYPES = {"int64": pl.Int64(), "float32": pl.Float32(), "list<float32>": pl.List(pl.Float32())}


def main(job: str, data: str, out: str) -> None:
    os.makedirs(out)
    predictions(job, data).sink_parquet(f"{out}/part.parquet")


def first_row(data: str) -> dict[str, Any]:
    found: dict[str, Any] = predictions("taxi_mlp", data).head(1).collect().to_dicts()[0]
    return found


def predictions(job: str, data: str) -> pl.LazyFrame:
    step = step_class(job)()
    kinds = {name: TYPES[kind] for name, kind in outputs_of(step).items()}

    def predict(frame: pl.DataFrame) -> pl.DataFrame:
        named = {
            name: frame[name].to_list() if frame[name].dtype == pl.String else frame[name].to_numpy()
            for name in step.inputs
        }
        found = results(step, named)
        return frame.select(step.carried).with_columns(
            pl.Series(name, found[name].tolist() if found[name].ndim > 1 else found[name], dtype=kind)
            for name, kind in kinds.items()
        )

    scan = pl.scan_parquet(f"{data}/*.parquet").select(step.columns)
    known = scan.collect_schema()
    schema = pl.Schema({**{name: known[name] for name in step.carried}, **kinds})
    return scan.map_batches(predict, schema=schema, streamable=True)
