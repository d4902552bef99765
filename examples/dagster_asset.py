"""An output as an asset of Dagster: its rows, metrics and report are the asset's metadata.

A run that was killed goes on where it stopped when Dagster tries the asset again. One that is not as required is not
published, and not tried again: the asset that consumers see stays as it was.

    pip install dagster
    FARES=/data/fares dagster dev -f examples/dagster_asset.py
"""

import os
from pathlib import Path
from typing import Any

import dagster as dg

import headrace as hr

PLACE = Path(os.environ.get("FARES", "fares"))


def fare(batch: dict[str, Any]) -> Any:
    return 3.0 + 2.5 * batch["km"]


def materialized(result: hr.Result) -> dg.MaterializeResult:
    """Return what Dagster shows of a run."""
    metadata: dict[str, Any] = {
        "dagster/row_count": result.rows,
        "rejected": result.rejected,
        "seconds": result.seconds,
        "report": dg.MetadataValue.path(str(result.report)),
        **{name: value for name, value in result.metrics.items() if value is not None},
    }
    return dg.MaterializeResult(metadata=metadata, data_version=dg.DataVersion(result.runs[-1]["run"]))


@dg.asset(retry_policy=dg.RetryPolicy(max_retries=2))
def fares() -> dg.MaterializeResult:
    data = hr.read_parquet(str(PLACE / "trips")).predict(fare, inputs=["km"], output="fare")
    data = data.accumulate(mean=hr.Mean("fare")).require(mean=hr.between(5, 50))
    try:
        return materialized(data.write_parquet(PLACE / "fares"))
    except hr.errors.RequirementNotMet as error:
        raise dg.Failure(str(error), allow_retries=False) from error


defs = dg.Definitions(assets=[fares])
