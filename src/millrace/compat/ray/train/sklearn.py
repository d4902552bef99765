"""Ray's ``ray.train.sklearn``, as far as it predicts."""

from millrace.compat.ray.offered import names_of_millrace

__getattr__ = names_of_millrace("ray.train.sklearn", ("SklearnCheckpoint", "SklearnPredictor"))
