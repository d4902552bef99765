# The calls are those of ray-project/ray, doc/source/data/examples/huggingface_vit_batch_prediction.ipynb.
import tempfile

import numpy as np
from PIL import Image

from headrace.compat import ray

folder = tempfile.mkdtemp()
for number in range(5):
    Image.new("RGB", (6, 6), (50 * number,) * 3).save(f"{folder}/{number}.jpg")


class ImageClassifier:
    def __init__(self):
        self.classifier = lambda images, top_k, batch_size: [
            {"score": float(np.mean(image)) / 255, "label": "light"} for image in images
        ]

    def __call__(self, batch):
        outputs = self.classifier([Image.fromarray(each) for each in batch["image"]], top_k=1, batch_size=2)
        batch["score"] = [output["score"] for output in outputs]
        batch["label"] = [output["label"] for output in outputs]
        return batch


ds = ray.data.read_images(folder, mode="RGB")
predictions = ds.map_batches(ImageClassifier, concurrency=2, batch_size=2)
batch = predictions.take_batch(3)
for image, label in zip(batch["image"], batch["label"], strict=True):
    assert label == "light" and image.shape == (6, 6, 3)
