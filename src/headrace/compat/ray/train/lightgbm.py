"""Ray's ``ray.train.lightgbm``, as far as it predicts."""

from headrace.compat.ray.offered import names_of_headrace

__getattr__ = names_of_headrace("ray.train.lightgbm", ("LightGBMCheckpoint", "LightGBMPredictor"))
