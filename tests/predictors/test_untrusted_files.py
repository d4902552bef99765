"""Model files that a stranger made: graphs that reach files, weights elsewhere, what inflates or never ends."""

from __future__ import annotations

import json
import os
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.errors import ModelError, ModelUnreadable, UntrustedPickle
from headrace.predictors.keras.predictor import KerasPredictor
from headrace.predictors.keras.saved_models import why_untrusted
from headrace.predictors.mlflow import MLflowPredictor
from headrace.predictors.onnx.predictor import OnnxPredictor
from later import Later

onnx, tensorflow = Later("onnx"), Later("tensorflow")

ROWS = {"x": np.arange(3, dtype=np.float32)}


# ---------------------------------------------------------------- SavedModels


def saved(folder: Path, body: Callable[[Any], Any], **more: Any) -> Path:
    """Save a SavedModel with one signature of a float vector."""
    module = tensorflow.Module()
    module.variable = tensorflow.Variable(2.0)
    for name, value in more.items():
        setattr(module, name, value)
    serving = tensorflow.function(
        lambda x: {"y": body(x) * module.variable},
        input_signature=[tensorflow.TensorSpec((None,), tensorflow.float32, name="x")],
    )
    module.serving = serving
    tensorflow.saved_model.save(module, str(folder), signatures={"serving_default": serving})
    return folder


def _writes(place: str) -> Callable[[Any], Any]:
    def body(x: Any) -> Any:
        with tensorflow.control_dependencies([tensorflow.io.write_file(place, "it ran")]):
            return tensorflow.identity(x)

    return body


def _writes_in_a_branch(place: str) -> Callable[[Any], Any]:
    def body(x: Any) -> Any:
        return tensorflow.cond(tensorflow.reduce_sum(x) > -1.0, lambda: _writes(place)(x), lambda: x)

    return body


def _writes_in_a_called_function(place: str) -> Callable[[Any], Any]:
    return tensorflow.function(tensorflow.function(_writes(place)))


def _prints_to_a_file(place: str) -> Callable[[Any], Any]:
    def body(x: Any) -> Any:
        tensorflow.print("it ran", output_stream=f"file://{place}")
        return tensorflow.identity(x)

    return body


def _reads(place: str) -> Callable[[Any], Any]:
    return lambda x: x + tensorflow.cast(tensorflow.strings.length(tensorflow.io.read_file(place)), x.dtype)


def _lists(place: str) -> Callable[[Any], Any]:
    return lambda x: x + tensorflow.cast(tensorflow.size(tensorflow.io.matching_files("/*")), x.dtype)


def _calls_python(place: str) -> Callable[[Any], Any]:
    return lambda x: tensorflow.ensure_shape(
        tensorflow.numpy_function(lambda value: value, [x], tensorflow.float32), (None,)
    )


def _saves(place: str) -> Callable[[Any], Any]:
    def body(x: Any) -> Any:
        with tensorflow.control_dependencies(
            [tensorflow.raw_ops.SaveV2(prefix=place, tensor_names=["a"], shape_and_slices=[""], tensors=[x])]
        ):
            return tensorflow.identity(x)

    return body


def _maps_a_file(place: str) -> Callable[[Any], Any]:
    return lambda x: (
        x + tensorflow.raw_ops.ImmutableConst(dtype=tensorflow.float32, shape=[1], memory_region_name=place)
    )


ATTACKS = {
    "WriteFile": _writes,
    "WriteFile in a branch": _writes_in_a_branch,
    "WriteFile in a called function": _writes_in_a_called_function,
    "PrintV2": _prints_to_a_file,
    "ReadFile": _reads,
    "MatchingFiles": _lists,
    "PyFunc": _calls_python,
    "SaveV2": _saves,
    "ImmutableConst": _maps_a_file,
}


@pytest.mark.parametrize("name", list(ATTACKS))
def test_a_graph_that_reaches_beyond_the_model_is_refused(tmp_path: Path, name: str) -> None:
    made = saved(tmp_path / "m", ATTACKS[name](str(tmp_path / "file")))
    with pytest.raises(UntrustedPickle, match=rf"{name.split()[0]}\w* \(in the function .*trust_pickle=True"):
        KerasPredictor(made)
    assert not (tmp_path / "file").exists()


def test_a_graph_that_is_trusted_runs_as_a_whole(tmp_path: Path) -> None:
    predictor = KerasPredictor(saved(tmp_path / "m", _writes(str(tmp_path / "file"))), trust_pickle=True)
    predictor.load()
    assert predictor.predict(ROWS).tolist() == [0.0, 2.0, 4.0]
    assert (tmp_path / "file").read_text() == "it ran"


def test_a_table_that_is_filled_from_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "words").write_text("a\nb\n")
    lookup = tensorflow.lookup
    filled = lookup.TextFileInitializer(
        str(tmp_path / "words"),
        tensorflow.string,
        lookup.TextFileIndex.WHOLE_LINE,
        tensorflow.int64,
        lookup.TextFileIndex.LINE_NUMBER,
    )
    table = lookup.StaticHashTable(filled, -1)
    body: Any = lambda x: x + tensorflow.cast(table.lookup(tensorflow.constant(["b"])), x.dtype)  # noqa: E731
    with pytest.raises(UntrustedPickle, match="InitializeTableFromTextFileV2"):
        KerasPredictor(saved(tmp_path / "m", body, table=table))


def test_ordinary_graphs_are_not_refused(tmp_path: Path) -> None:
    lookup = tensorflow.lookup
    table = lookup.StaticHashTable(lookup.KeyValueTensorInitializer(["a"], [5.0]), 0.0)

    def body(x: Any) -> Any:
        for _ in tensorflow.range(3):
            x = tensorflow.where(x > 1, x, x + tensorflow.random.uniform(()) * 0)
        tensorflow.debugging.assert_all_finite(x, "finite")
        return tensorflow.linalg.matvec(tensorflow.eye(tensorflow.size(x)), x) + table.lookup(
            tensorflow.constant("a")
        )

    predictor = KerasPredictor(saved(tmp_path / "m", body, table=table))
    predictor.load()
    assert predictor.predict(ROWS).tolist() == [10.0, 12.0, 14.0]


def test_models_that_cannot_be_looked_into_are_refused(tmp_path: Path) -> None:
    made = saved(tmp_path / "m", lambda x: x)
    text = tmp_path / "text"
    text.mkdir()
    (text / "saved_model.pbtxt").write_text("")
    assert why_untrusted(str(made)) is None
    assert "stored as text" in str(why_untrusted(str(text)))
    graph = (made / "saved_model.pb").read_bytes()
    (made / "saved_model.pb").write_bytes(graph * 2)  # two of them: TensorFlow takes it for one of version 1
    assert "TensorFlow 1" in str(why_untrusted(str(made)))


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


# ---------------------------------------------------------------- MLflow


FLAVOUR = "flavors:\n  python_function:\n    loader_module: mlflow.onnx\n    data: model.onnx\n"


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    "content",
    [
        "a: &a [x, x, x, x, x, x, x, x, x, x]\n"
        + "".join(
            f"{b}: &{b} [{', '.join([f'*{a}'] * 10)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
        )
        + FLAVOUR.replace("model.onnx", "*i"),
        "a: &a [*a, *a]\n" + FLAVOUR.replace("model.onnx", "*a"),
        "a: " + "[" * 100_000,
        FLAVOUR + "signature:\n  inputs: '" + "[" * 100_000 + "'\n",
        FLAVOUR + 'signature:\n  inputs: \'[{"type": "tensor"}]\'\n',
        FLAVOUR + "signature: 3\n",
        "flavors: 3",
        "flavors:\n  python_function: 3\n",
        FLAVOUR + "  onnx: 3\n",
        "#" * (5 << 20) + "\n" + FLAVOUR,
    ],
)
def test_an_mlmodel_file_without_end_is_unreadable(tmp_path: Path, content: str) -> None:
    (tmp_path / "MLmodel").write_text(content)
    with pytest.raises(ModelError, match="MLmodel"):
        MLflowPredictor(tmp_path)


@pytest.mark.parametrize(
    "more",
    ["providers: [[TensorrtExecutionProvider, {}]]", "onnx_session_options: {extra_session_config: {a: b}}"],
)
def test_options_of_an_mlmodel_file_that_reach_further_are_refused(tmp_path: Path, more: str) -> None:
    (tmp_path / "MLmodel").write_text(f"{FLAVOUR}  onnx:\n    {more}\n")
    with pytest.raises(UntrustedPickle, match="flavour onnx"):
        MLflowPredictor(tmp_path)
