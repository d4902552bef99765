"""Ray's ``ray.train.huggingface``, as far as it predicts; ``HuggingFace…`` are the names before Ray 2.4."""

from headrace.compat.ray.offered import names_of_headrace

__getattr__ = names_of_headrace(
    "ray.train.huggingface",
    {
        "HuggingFaceCheckpoint": "TransformersCheckpoint",
        "HuggingFacePredictor": "TransformersPredictor",
        "TransformersCheckpoint": "TransformersCheckpoint",
        "TransformersPredictor": "TransformersPredictor",
    },
)
