"""Ray's ``ray.train.batch_predictor``."""

from millrace.compat.ray.offered import names_of_millrace

__getattr__ = names_of_millrace("ray.train.batch_predictor", ("BatchPredictor",))
