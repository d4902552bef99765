"""Ray's ``ray.train.tensorflow``, as far as it predicts."""

from millrace.compat.ray.offered import names_of_millrace

__getattr__ = names_of_millrace("ray.train.tensorflow", ("TensorflowCheckpoint", "TensorflowPredictor"))
