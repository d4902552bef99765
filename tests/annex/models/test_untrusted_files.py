"""Model files that a stranger made: weights elsewhere, what inflates or never ends."""

from __future__ import annotations

import json
import os
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.annex.models.keras import KerasPredictor
from headrace.errors import ModelUnreadable, UntrustedPickle
from headrace.predictors.onnx import OnnxPredictor
from later import Later

onnx = Later("onnx")

# ---------------------------------------------------------------- Keras' own files


def archive(path: Path, config: Any, **more: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as opened:
        opened.writestr("config.json", config if isinstance(config, str) else json.dumps(config))
        opened.writestr("metadata.json", "{}")
        for name, value in more.items():
            opened.writestr(name, value)
    return path


def _deep(layer: dict[str, Any], depth: int = 400) -> dict[str, Any]:
    for _ in range(depth):
        layer = {"class_name": "TimeDistributed", "config": {"layer": layer}}
    return layer


@pytest.mark.parametrize(
    ("layer", "said"),
    [
        ({"class_name": "TFSMLayer", "config": {"filepath": "/somewhere"}}, "TFSMLayer"),
        ({"class_name": "TorchModuleWrapper", "config": {"module": "gASV"}}, "TorchModuleWrapper"),
        ({"class_name": "StringLookup", "config": {"vocabulary": "/etc/passwd"}}, "vocabulary from the file"),
        (
            _deep({"class_name": "Lambda", "config": {"function": {"class_name": "__lambda__"}}}),
            "Lambda layer",
        ),
    ],
)
def test_layers_that_bring_code_or_read_files_are_refused_in_the_driver(
    tmp_path: Path, layer: dict[str, Any], said: str
) -> None:
    path = archive(tmp_path / "m.keras", {"class_name": "Sequential", "config": {"layers": [layer]}})
    with pytest.raises(UntrustedPickle, match=said):
        KerasPredictor(path)


@pytest.mark.parametrize("place", ["config.json", "model.weights.h5"])
def test_an_archive_that_inflates_does_not_fill_the_drivers_memory(tmp_path: Path, place: str) -> None:
    path = tmp_path / "m.keras"
    archive(path, "{}" if place != "config.json" else '{"a": "')
    with (
        zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as opened,
        opened.open("bomb" if place == "config.json" else place, "w", force_zip64=True) as file,
    ):
        for _ in range(300):
            file.write(b" " * (1 << 20))
    assert path.stat().st_size < 1 << 20
    tracemalloc.start()
    try:
        with pytest.raises(ModelUnreadable, match="inflate"):
            KerasPredictor(path)
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()


def test_a_configuration_that_nests_without_end_is_unreadable(tmp_path: Path) -> None:
    with pytest.raises(ModelUnreadable, match="nests too deep"):
        KerasPredictor(archive(tmp_path / "m.keras", "[" * 200_000))


# ---------------------------------------------------------------- ONNX


def relu(location: str, *, inner: bool = False) -> Any:
    """Make a model whose weights lie in ``location``; ``inner``: in a branch of its graph."""
    helper, kinds = onnx.helper, onnx.TensorProto
    weights = kinds(name="w", data_type=kinds.FLOAT, dims=[1], data_location=kinds.EXTERNAL)
    weights.external_data.add(key="location", value=location)
    x, y = (helper.make_tensor_value_info(name, kinds.FLOAT, [None]) for name in "xy")
    nodes = [helper.make_node("Add", ["x", "w"], ["y"])]
    if not inner:
        graph = helper.make_graph(nodes, "g", [x], [y], [weights])
    else:
        branch = helper.make_graph(nodes, "b", [], [y], [weights])
        true = helper.make_node("Constant", [], ["c"], value=helper.make_tensor("c", kinds.BOOL, [], [True]))
        chosen = helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)
        graph = helper.make_graph([true, chosen], "g", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.timeout(30)
@pytest.mark.parametrize("inner", [False, True])
@pytest.mark.parametrize(
    "location", ["../../../../../../dev/zero", "/dev/zero", "a/../../secret", "../secret"]
)
def test_weights_outside_of_the_folder_are_neither_read_nor_hashed(
    tmp_path: Path, location: str, inner: bool
) -> None:
    (tmp_path / "secret").write_bytes(bytes(4))
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "m.onnx").write_bytes(relu(location, inner=inner).SerializeToString())
    with pytest.raises(ModelUnreadable, match="outside of its folder"):
        OnnxPredictor(tmp_path / "m" / "m.onnx").identity()


@pytest.mark.timeout(30)
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_weights_that_are_no_file_are_not_waited_for(tmp_path: Path, kind: str) -> None:
    if kind == "pipe":
        os.mkfifo(tmp_path / "w")
    else:
        (tmp_path / "w").symlink_to("/dev/zero")
    (tmp_path / "m.onnx").write_bytes(relu("w").SerializeToString())
    with pytest.raises(ModelUnreadable, match="not a regular file"):
        OnnxPredictor(tmp_path / "m.onnx").identity()


def test_the_identity_holds_weights_of_branches_too(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(relu("w", inner=True).SerializeToString())
    with pytest.raises(ModelUnreadable, match="is not there"):
        OnnxPredictor(tmp_path / "m.onnx")
    digests = []
    for value in (1.0, 2.0):
        np.array([value], np.float32).tofile(tmp_path / "w")
        digests.append(OnnxPredictor(tmp_path / "m.onnx").identity())
    assert digests[0] != digests[1]
