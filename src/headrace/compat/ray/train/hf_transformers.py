"""Ray's ``ray.train.hf_transformers``, as far as it predicts."""

from headrace.compat.ray.offered import names_of_headrace

__getattr__ = names_of_headrace(
    "ray.train.hf_transformers", ("TransformersCheckpoint", "TransformersPredictor")
)
