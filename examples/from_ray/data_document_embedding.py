# The calls are those of ray-project/ray, multimodal_inference_benchmarks/document_embedding/ray_data_main.py.
import tempfile

import numpy as np
import pandas as pd

import headrace.compat.ray.data
from headrace.compat import ray
from headrace.compat.ray.data.expressions import download

folder = tempfile.mkdtemp()
for number in range(3):
    with open(f"{folder}/{number}.pdf", "w") as file:
        file.write(f"first page of {number}\fsecond page, which is longer")
pd.DataFrame(
    {
        "file_name": ["0.pdf", "1.pdf", "2.txt"],
        "uploaded_pdf_path": [f"{folder}/{number}.pdf" for number in range(3)],
    }
).to_parquet(f"{folder}/metadata.parquet")


def pages(row):
    text = row.pop("bytes").decode()
    for number, page in enumerate(text.split("\f")):
        row["page_text"] = page
        row["page_number"] = number
        yield row


def chunks(row):
    text = row.pop("page_text")
    for number in range(0, len(text), 10):
        row["chunk"] = text[number : number + 10]
        row["chunk_id"] = number // 10
        yield row


class Embedder:
    def __call__(self, batch):
        batch["embedding"] = np.array([[len(chunk), 1.0] for chunk in batch["chunk"]])
        return batch


(
    ray.data.read_parquet(f"{folder}/metadata.parquet")
    .filter(lambda row: row["file_name"].endswith(".pdf"))
    .with_column("bytes", download("uploaded_pdf_path"))
    .flat_map(pages)
    .flat_map(chunks)
    .map_batches(Embedder, batch_size=3)
    .select_columns(["uploaded_pdf_path", "page_number", "chunk_id", "chunk", "embedding"])
    .write_parquet(f"{folder}/out")
)
rows = headrace.compat.ray.data.read_parquet(f"{folder}/out").take_all()
assert len(rows) == 10 and rows[0]["embedding"].tolist() == [10, 1]
