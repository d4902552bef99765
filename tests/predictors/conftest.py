from __future__ import annotations

collect_ignore = ["keras_classes.py", "quiet_mlflow.py"]  # no doctests, and importing them takes long
