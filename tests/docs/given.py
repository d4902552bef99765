"""What the pages' programs find when they begin: files, names that a page takes for granted, and other words."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image


@dataclass(frozen=True)
class Given:
    """``files`` makes files in a folder; ``names`` is Python that runs first, and ``last`` what runs last.

    ``for_ray`` runs before the programs for Ray; ``instead`` has words of the page that this machine needs others
    for. ``imports`` are modules that the page's processes are forked with, as each of them would import them.
    """

    files: Callable[[Path], None] = lambda folder: None
    names: str = ""
    for_ray: str = ""
    last: str = ""
    instead: Mapping[str, str] = field(default_factory=dict)
    engine: str = "inline"
    workers: int = 1
    imports: str = ""

    def __post_init__(self) -> None:
        for name in ("names", "for_ray", "last"):
            object.__setattr__(self, name, textwrap.dedent(getattr(self, name)))


def trips(folder: Path, rows: int = 2_000) -> None:
    """Two months of trips, with a distance and an hour."""
    (folder / "trips").mkdir()
    for month in (1, 2):
        random = np.random.default_rng(month)
        table = {
            "id": np.arange(rows) + month * rows,
            "distance": random.gamma(2.0, 2.0, rows).astype(np.float32),
            "hour": random.integers(0, 24, rows).astype(np.float32),
        }
        pq.write_table(pa.table(table), folder / "trips" / f"2026-{month:02d}.parquet", row_group_size=500)


def onnx_model(folder: Path) -> None:
    """A linear model of a distance and an hour, as ``fare.onnx``."""
    from onnx import TensorProto, helper, numpy_helper, save

    weights = numpy_helper.from_array(np.array([[2.5], [0.1]], np.float32), "weights")
    taken = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2])
    given = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 1])
    node = helper.make_node("MatMul", ["x", "weights"], ["y"])
    graph = helper.make_graph([node], "fare", [taken], [given], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    save(model, str(folder / "fare.onnx"))


def photos(folder: Path) -> None:
    """Twelve small pictures."""
    (folder / "photos").mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (12, 40, 50, 3), np.uint8)
    for i, each in enumerate(pixels):
        Image.fromarray(each).save(folder / "photos" / f"{i:02d}.png")


def reviews(folder: Path) -> None:
    """Texts, one per line."""
    (folder / "reviews").mkdir()
    lines = [f"  {'Good ' * (i % 4)}work, number {i}" for i in range(500)]
    (folder / "reviews" / "all.txt").write_text("\n".join(lines))


_RAY = """
    import pyarrow.parquet as pq
    import torch

    def augment(batch):
        return batch

    class Net:
        def __call__(self, batch):
            return batch

    class Model:
        def predict(self, trips):
            return 3 + 2 * trips["km"].to_numpy()

    load_model, read, net = Model, pq.read_table, torch.nn.Linear(1, 1)
    data = __import__("headrace").from_items([{"id": i, "x": float(i)} for i in range(10)])

    class _Predictor:
        def __init__(self, model):
            self.model = model

        def predict(self, path):
            return float(self.model.predict(pq.read_table(path)).mean())

    from headrace.compat import ray as _ray

    Predictor = _ray.remote(_Predictor)
    import glob

    class _Paths:
        def __iter__(self):
            return iter(sorted(glob.glob("fares/*.parquet")))

    paths = _Paths()
"""


def _models(folder: Path) -> None:
    trips(folder)
    onnx_model(folder)


_CLUSTER = """
    import numpy as np

    def clean(batch):
        return {"distance": np.abs(batch["distance"]), "hour": batch["hour"]}

    class FareModel:
        def __call__(self, batch):
            return 3 + 2 * batch["distance"]

    net, table, months = FareModel, np.ones(4), range(4)

    class Scorer:
        def __init__(self, weights):
            self.weights = weights

        def score(self, month):
            return self.weights[month]
"""


def _cluster(folder: Path) -> None:
    (folder / "shared").mkdir()
    trips(folder / "shared")
    (folder / "fares.py").write_text(textwrap.dedent(_CLUSTER))


_HERE = {  # what a cluster has and this machine has not
    'engine="ray"': 'engine="local"',
    "/shared/": "shared/",
    "num_gpus=1": "num_cpus=1",
}

# Daft 0.7.26: while the interpreter is taken down (Py_FinalizeEx, in its last garbage collection), a thread of Daft's
# runtime drops the contextvars.Context of a call, without the GIL (Arc::drop_slow, context_tp_dealloc). Now and then,
# one of 25 times on a busy machine, that ends the process with SIGSEGV after its last line. So it ends before.
_END_WITH_DAFT = """
    import os, sys
    sys.stdout.flush()
    os._exit(0)
"""

_SMALL_MODELS = """
    import os

    os.environ["KERAS_BACKEND"] = "torch"  # which is imported anyway
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Pooling, Transformer
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

    words = ["[PAD]", "[UNK]", "Good", "work", ",", "number"]
    plain = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain, pad_token="[PAD]", unk_token="[UNK]")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    BertForSequenceClassification(BertConfig(vocab_size=len(words), **sizes)).save_pretrained("sentiment")
    tokenizer.save_pretrained("sentiment")
    SentenceTransformer(modules=[Transformer("sentiment"), Pooling(16)], device="cpu").save("encoder")
"""


def _for_recipes(folder: Path) -> None:
    _models(folder)
    reviews(folder)


GIVEN = {
    "README.md": Given(engine="local"),
    "coming-from-ray.md": Given(photos, for_ray=_RAY, engine="local"),
    "coming-from-daft.md": Given(trips, last=_END_WITH_DAFT),
    "coming-from-dataloader.md": Given(trips),
    "coming-from-datasets.md": Given(trips, names="import os\n\nos.environ['HF_HUB_OFFLINE'] = '1'"),
    "coming-from-spark.md": Given(trips),
    "cluster.md": Given(_cluster, _CLUSTER, instead=_HERE, engine="local"),
    "command-line.md": Given(),
    "faq.md": Given(engine="local"),
    "files.md": Given(trips),
    "index.md": Given(_models),
    "performance.md": Given(trips, engine="local"),
    "quick-start.md": Given(engine="local", workers=2),
    "fleet.md": Given(trips),
    "production.md": Given(trips, engine="local"),
    "recipes.md": Given(_for_recipes, names=_SMALL_MODELS),
    "report.md": Given(engine="local"),
    "resume.md": Given(trips),
    "incremental.md": Given(trips),
    "memory.md": Given(engine="local"),
    "models.md": Given(_models),
    "tutorial-new-model.md": Given(imports="skops.io sklearn.datasets sklearn.svm"),
    "tutorial.md": Given(imports="skops.io sklearn.datasets sklearn.svm"),
    "stages.md": Given(photos, engine="local"),
    "waiting.md": Given(reviews, engine="local"),
    "language-models.md": Given(reviews),
}
