"""A small valid model of the kinds that are damaged, or read by us."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np


def make(name: str, folder: Path) -> str:
    """Write the model ``name`` into ``folder``, if it is not there, and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    there = sorted(folder.glob(f"{name}.*"))
    if not there:
        MAKERS[name](folder / name)
        there = sorted(folder.glob(f"{name}.*"))
    return str(there[0])


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


MAKERS: dict[str, Callable[[Path], None]] = {
    "onnx": _onnx,
    "onnx-weights": _onnx_weights,
    "xgboost-json": _xgboost(".json"),
    "xgboost-ubj": _xgboost(".ubj"),
    "lightgbm": _lightgbm,
}
