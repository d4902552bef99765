from predictors.conftest import _untried as _untried
from predictors.conftest import pytest_collection_modifyitems as pytest_collection_modifyitems

collect_ignore = ["keras_classes.py", "quiet_mlflow.py"]  # no doctests, and importing them takes long
