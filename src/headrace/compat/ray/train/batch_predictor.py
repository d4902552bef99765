"""Ray's ``ray.train.batch_predictor``."""

from headrace.compat.ray.offered import names_of_headrace

__getattr__ = names_of_headrace("ray.train.batch_predictor", ("BatchPredictor",))
