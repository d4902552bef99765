# The calls are those of ray-project/ray, release/nightly_tests/dataset/model_inference_pipeline_benchmark.py.
import tempfile

import numpy as np
import pandas as pd

from headrace.compat import ray
from headrace.compat.ray.data import ActorPoolStrategy, Dataset

folder = tempfile.mkdtemp()
pd.DataFrame(
    {"key": range(200), "quantity": np.arange(200.0), "flag": ["A", "N"] * 100, "unused": 0}
).to_parquet(f"{folder}/part.parquet")


def prepare(batch: pd.DataFrame, metadata: list, features: list, prefix: str = "metadata_") -> pd.DataFrame:
    made = {f"{prefix}{name}": batch[name] for name in metadata}
    for name in features:
        values = pd.to_numeric(batch[name], errors="coerce").values
        made[f"feature_{name}"] = (values - np.nanmean(values)) / (np.nanstd(values) + 1e-8)
    made["text"] = batch["flag"].fillna("").astype(str)
    return pd.DataFrame(made)


class Inference:
    def __init__(self, extra, device="cpu"):
        self.extra = extra

    def __call__(self, batch: pd.DataFrame) -> pd.DataFrame:
        made = {name: batch[name].values for name in batch.columns if name.startswith("metadata_")}
        made["embeddings"] = [[float(len(text)), 1.0] for text in batch["text"]]
        for name, value in self.extra.items():
            made[name] = np.full(len(batch), value)
        return pd.DataFrame(made)


def prepared(dataset: Dataset) -> Dataset:
    made = dataset.map_batches(
        prepare,
        fn_kwargs=dict(metadata=["key"], features=["quantity"], prefix="metadata_"),
        batch_format="pandas",
        batch_size="auto",
        num_cpus=1.0,
    )
    made._set_name("prepared")
    return made


ds = ray.data.read_parquet(folder, columns=["key", "quantity", "flag"]).limit(150)
ds._set_name("input")
out = prepared(ds).map_batches(
    Inference,
    fn_constructor_kwargs=dict(extra={"model_version": "v1.0.0"}),
    batch_format="pandas",
    batch_size=64,
    compute=ActorPoolStrategy(min_size=1, max_size=2),
    num_cpus=1.0,
    num_gpus=0,
)
out._set_name("output")
rows = 0
for batch in out.iter_batches(batch_size=None, batch_format="pandas"):
    rows += len(batch)
assert rows == 150
