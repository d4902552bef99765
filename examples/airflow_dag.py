"""A run as a task of Airflow: each day's trips, and their fares.

A task that was killed goes on where it stopped when Airflow tries it again. One that is not as required is not
published, and fails at once: another try would find the same.

    pip install apache-airflow
    cp examples/airflow_dag.py "$AIRFLOW_HOME/dags/"
"""

import os
from collections.abc import Callable
from datetime import datetime
from typing import Any

from airflow.sdk import DAG, BaseOperator
from airflow.sdk.exceptions import AirflowFailException

import headrace as hr

PLACE = os.environ.get("FARES", "fares")


class HeadraceOperator(BaseOperator):
    """Runs ``job(source, out)``, which writes an output and returns its result."""

    template_fields = ("source", "out")

    def __init__(
        self, *, job: Callable[[str, str], hr.Result], source: str, out: str, **options: Any
    ) -> None:
        super().__init__(**options)
        self.job, self.source, self.out = job, source, out

    def execute(self, context: Any) -> dict[str, Any]:
        """Return what later tasks get: rows, metrics, and where output and report are."""
        try:
            result = self.job(self.source, self.out)
        except hr.errors.RequirementNotMet as error:
            raise AirflowFailException(str(error)) from error
        return {
            "rows": result.rows,
            "rejected": result.rejected,
            "metrics": dict(result.metrics),
            "output": str(result.path),
            "report": str(result.report),
        }


def fare(batch: dict[str, Any]) -> Any:
    return 3.0 + 2.5 * batch["km"]


def predict_fares(inputs: str, output: str) -> hr.Result:
    data = hr.read_parquet(inputs).predict(fare, inputs=["km"], output="fare")
    data = data.accumulate(mean=hr.Mean("fare")).require(mean=hr.between(5, 50))
    return data.write_parquet(output)


with DAG("fares", schedule="@daily", start_date=datetime(2026, 11, 1), catchup=False) as dag:
    HeadraceOperator(
        task_id="predict",
        job=predict_fares,
        source=f"{PLACE}/trips/{{{{ ds }}}}",
        out=f"{PLACE}/fares/{{{{ ds }}}}",
        retries=2,
    )
