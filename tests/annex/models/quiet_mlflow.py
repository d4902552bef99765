"""MLflow, imported without what it says and sets on the way, and a model of one's own."""

from __future__ import annotations

import os
import warnings

import numpy as np

os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"  # read when it is imported
with warnings.catch_warnings(record=True):  # recorded, as it sets filters of its own
    warnings.simplefilter("ignore")
    import mlflow
    import mlflow.onnx
    import mlflow.pyfunc
    import mlflow.sklearn
    import mlflow.xgboost

    class Tariff(mlflow.pyfunc.PythonModel):
        """Has two outputs and a parameter."""

        def predict(self, context, model_input, params=None):  # type: ignore[no-untyped-def]
            rate = (params or {})["rate"]
            rows = np.zeros(len(model_input), np.int64)
            return {"price": model_input["distance"].to_numpy() * rate, "rows": rows}
