from predictors.conftest import _untried as _untried

collect_ignore = ["keras_classes.py", "quiet_mlflow.py"]  # no doctests, and importing them takes long
