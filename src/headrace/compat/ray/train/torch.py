"""Ray's ``ray.train.torch``, as far as it predicts."""

from headrace.compat.ray.offered import names_of_headrace

__getattr__ = names_of_headrace("ray.train.torch", ("TorchCheckpoint", "TorchPredictor"))
