"""A small valid model of every kind that is read from a file, for the fuzzer to damage."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROWS = np.arange(12, dtype=np.float32).reshape(4, 3) / 10


def make(name: str, folder: Path) -> str:
    """Write the model ``name`` into ``folder``, if it is not there, and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    there = sorted(folder.glob(f"{name}.*"))
    if not there:
        MAKERS[name](folder / name)
        there = sorted(folder.glob(f"{name}.*"))
    return str(there[0])


def predictor(name: str, path: str) -> Any:
    """Make the predictor as ``load_model`` does."""
    import headrace as hr

    return hr.load_model(path, **({"architecture": _net} if name == "safetensors" else {}))


def batch(name: str, predictor: Any) -> Any:
    if name in ("transformers", "sentence-transformers"):
        return {"text": np.array(["the game was won", "rain"], object)}
    if predictor.batch_format == "pandas":
        import pandas

        return pandas.DataFrame(ROWS, columns=list("abc"))
    return {"x": ROWS}


def _net() -> Any:
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2)).eval()


def _onnx_model() -> Any:
    import onnx
    from onnx import numpy_helper

    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [None, 3])
    y = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [None, 2])
    weights = numpy_helper.from_array(np.ones((3, 2), np.float32), "w")
    nodes = [onnx.helper.make_node("MatMul", ["x", "w"], ["h"]), onnx.helper.make_node("Relu", ["h"], ["y"])]
    graph = onnx.helper.make_graph(nodes, "g", [x], [y], [weights])
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)


def _onnx(path: Path) -> None:
    path.with_suffix(".onnx").write_bytes(_onnx_model().SerializeToString())


def _onnx_weights(path: Path) -> None:
    import onnx

    folder = path.with_suffix(".folder")
    folder.mkdir()
    options = {"save_as_external_data": True, "location": "w", "size_threshold": 0}
    onnx.save(_onnx_model(), str(folder / "m.onnx"), **options)


def _xgboost(suffix: str) -> Callable[[Path], None]:
    def maker(path: Path) -> None:
        import xgboost

        rows = np.random.default_rng(0).normal(size=(50, 3))
        booster = xgboost.train({"max_depth": 2, "nthread": 1}, xgboost.DMatrix(rows, rows[:, 0] > 0), 3)
        booster.save_model(path.with_suffix(suffix))

    return maker


def _lightgbm(path: Path) -> None:
    import lightgbm

    rows = np.random.default_rng(0).normal(size=(200, 3))
    data = lightgbm.Dataset(rows, rows[:, 0] > 0, params={"verbose": -1})
    lightgbm.train({"verbose": -1, "num_threads": 1}, data, 3).save_model(path.with_suffix(".txt"))


def _skops(path: Path) -> None:
    import skops.io
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(ROWS, [0, 1, 0, 1])
    skops.io.dump(model, path.with_suffix(".skops"))


def _safetensors(path: Path) -> None:
    from safetensors.torch import save_file

    save_file(_net().state_dict(), path.with_suffix(".safetensors"))


def _keras_model() -> Any:
    import keras

    keras.utils.set_random_seed(0)
    layers = [
        keras.layers.Dense(4, activation="relu"),
        keras.layers.BatchNormalization(),
        keras.layers.Dense(2),
    ]
    return keras.Sequential([keras.Input((3,)), *layers])


def _keras(suffix: str) -> Callable[[Path], None]:
    return lambda path: _keras_model().save(path.with_suffix(suffix))


def _pt2(path: Path) -> None:
    import torch

    rows = torch.export.Dim("rows")
    program = torch.export.export(_net(), (torch.from_numpy(ROWS),), dynamic_shapes=({0: rows},))
    torch.export.save(program, path.with_suffix(".pt2"))


def _torchscript(path: Path) -> None:
    import torch

    torch.jit.trace(_net(), torch.from_numpy(ROWS)).save(str(path.with_suffix(".pt")))


def _bert(folder: Path, head: str) -> None:
    import torch
    import transformers

    from .news import tokenizer

    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    config = transformers.BertConfig(vocab_size=len(tokenizer()), max_position_embeddings=64, **sizes)
    getattr(transformers, head)(config).save_pretrained(folder)
    tokenizer().save_pretrained(folder)


def _transformers(path: Path) -> None:
    _bert(path.with_suffix(".folder"), "BertForSequenceClassification")


def _sentence_transformers(path: Path) -> None:
    import sentence_transformers
    from sentence_transformers.models import Pooling, Transformer

    _bert(path.with_name("bert"), "BertModel")
    modules = [Transformer(str(path.with_name("bert"))), Pooling(8)]
    model = sentence_transformers.SentenceTransformer(modules=modules, device="cpu")
    model.save(str(path.with_suffix(".folder")), create_model_card=False)


def _mlflow(path: Path) -> None:
    folder = path.with_suffix(".folder")
    _skops(path.with_name("inner"))
    folder.mkdir()
    shutil.move(path.with_name("inner.skops"), folder / "model.skops")
    signature = (
        '[{"name": "a", "type": "float"}, {"name": "b", "type": "float"}, {"name": "c", "type": "float"}]'
    )
    (folder / "MLmodel").write_text(
        "flavors:\n  python_function:\n    loader_module: mlflow.sklearn\n    model_path: model.skops\n"
        "    data: model.skops\n  sklearn:\n    pickled_model: model.skops\n    serialization_format: skops\n"
        f"mlflow_version: 3.11.0\nmodel_uuid: m\nsignature:\n  inputs: '{signature}'\n"
    )


MAKERS: dict[str, Callable[[Path], None]] = {
    "onnx": _onnx,
    "onnx-weights": _onnx_weights,
    "xgboost-json": _xgboost(".json"),
    "xgboost-ubj": _xgboost(".ubj"),
    "lightgbm": _lightgbm,
    "skops": _skops,
    "safetensors": _safetensors,
    "keras": _keras(".keras"),
    "h5": _keras(".h5"),
    "pt2": _pt2,
    "torchscript": _torchscript,
    "transformers": _transformers,
    "sentence-transformers": _sentence_transformers,
    "mlflow": _mlflow,
}
