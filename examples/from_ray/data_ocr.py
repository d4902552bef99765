# The calls are those of ray-project/ray, doc/source/data/examples/ocr_example.ipynb.
import io
import tempfile

import numpy as np
from PIL import Image

from headrace.compat import ray

folder = tempfile.mkdtemp()
for number in range(4):
    Image.new("L", (6, 6), 60 * number).save(f"{folder}/{number}.png")

ds = ray.data.read_binary_files(paths=folder, include_paths=True)


def recognise(batch):
    def text_of(binary, path):
        image = Image.open(io.BytesIO(binary))
        return {"text": f"page of {int(np.array(image).mean())}", "path": path}

    rows = [text_of(binary, path) for binary, path in zip(batch["bytes"], batch["path"], strict=True)]
    return {"text": [row["text"] for row in rows], "path": [row["path"] for row in rows]}


results = ds.map_batches(recognise)
for row in results.iter_rows():
    assert row["text"].startswith("page")
with_scores = results.add_column("score", lambda df: df["text"].str.len() / 100)
best = with_scores.filter(lambda row: row["score"] > 0.0)
assert best.take(1)[0].keys() == {"text", "path", "score"}
best.write_parquet(f"{tempfile.mkdtemp()}/texts")
