from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from headrace.core.files.artifacts import Artifact
from headrace.errors import (
    ArgumentError,
    BadInput,
    BadReturn,
    ModelChanged,
    ModelUnreadable,
)
from headrace.predictors.onnx import OnnxPredictor, kind_of
from headrace.testing.predictors import PredictorContract

RNG = np.random.default_rng(7)
W1 = RNG.normal(size=(4, 8)).astype(np.float32)
W2 = RNG.normal(size=(8, 3)).astype(np.float32)
ROWS = RNG.normal(size=(11, 4)).astype(np.float32)
FLOAT, DOUBLE, INT64, STRING = TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT64, TensorProto.STRING


def info(name: str, kind: int, shape: Any) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def model_of(
    nodes: list[Any],
    inputs: list[Any],
    outputs: list[Any],
    weights: dict[str, Any] | None = None,
    opset: int = 17,
    ir: int = 8,
) -> onnx.ModelProto:
    held = [numpy_helper.from_array(value, name) for name, value in (weights or {}).items()]
    graph = helper.make_graph(nodes, "graph", inputs, outputs, held)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=ir)


def mlp(rows: Any = "rows", **options: int) -> onnx.ModelProto:
    """A network of two layers with weights from numpy."""
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("MatMul", ["b", "w2"], ["c"]),
        helper.make_node("Softmax", ["c"], ["scores"], axis=1),
    ]
    weights = {"w1": W1, "w2": W2}
    return model_of(
        nodes, [info("x", FLOAT, [rows, 4])], [info("scores", FLOAT, [rows, 3])], weights, **options
    )


def saved(folder: Path, model: onnx.ModelProto, name: str = "net.onnx") -> str:
    onnx.save(model, folder / name)
    return str(folder / name)


def direct(model: onnx.ModelProto, feed: dict[str, Any]) -> list[Any]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    results: list[Any] = session.run(None, feed)
    return results


def loaded(model: Any, **options: Any) -> OnnxPredictor:
    with tempfile.TemporaryDirectory() as folder:
        path = saved(Path(folder), model) if isinstance(model, onnx.ModelProto) else model
        predictor = OnnxPredictor(path, **options)
        predictor.load()
    return predictor


# ---------------------------------------------------------------- the contract


class TestFile(PredictorContract):
    """A file; one column of float64, which the model's float32 wants cast."""

    def make(self) -> Any:
        return OnnxPredictor(saved(self.folder, mlp()))

    def batch(self) -> Any:
        return {"features": ROWS.astype(np.float64)}

    def expected(self) -> Any:
        return direct(mlp(), {"x": ROWS})[0]

    def bad_batches(self) -> Any:
        yield {"features": ROWS[:, :3]}, "takes float32 (any, 4), but it was given float32 (11, 3)"
        yield {"features": ROWS[:, 0]}, "float32 (11,)"
        yield {"features": np.array(["a"] * 11, object)}, "should be float32, but it is text"
        yield {"features": ROWS.astype("datetime64[s]")}, "datetime64[s]"
        yield dict.fromkeys("abc", ROWS[:, 0]), "takes float32 (any, 4), but it was given float32 (11, 3)"


class TestColumnsSideBySide(TestFile):
    def batch(self) -> Any:
        return {name: ROWS[:, place] for place, name in enumerate(("a", "b", "c", "d"))}


class TestFixedRows(TestFile):
    """Exported for four rows: eleven rows are two pieces and a padded one."""

    def make(self) -> Any:
        return OnnxPredictor(saved(self.folder, mlp(rows=4)))

    def bad_batches(self) -> Any:
        yield {"features": ROWS[:, :3]}, "takes float32 (4, 4), but it was given float32 (11, 3)"


class TestOneFixedRow(TestFixedRows):
    def make(self) -> Any:
        return OnnxPredictor(saved(self.folder, mlp(rows=1)))

    def bad_batches(self) -> Any:
        return ()


class TestWeightsBesideTheFile(TestFile):
    def make(self) -> Any:
        if not (self.folder / "big.onnx").exists():
            beside = {"save_as_external_data": True, "location": "big.data", "size_threshold": 0}
            onnx.save(mlp(), self.folder / "big.onnx", **beside)
        return OnnxPredictor(self.folder / "big.onnx")

    def test_the_folder_is_the_model_too_and_pins_all_of_it(self) -> None:
        self.make()
        digest = Artifact(str(self.folder)).digest()
        made = loaded(self.folder, sha256=digest)
        assert np.array_equal(made.predict(self.batch()), self.expected())

    def test_weights_are_part_of_the_identity(self) -> None:
        before = self.make().identity()
        data = self.folder / "big.data"
        data.write_bytes(b"\0" + data.read_bytes()[1:])
        assert OnnxPredictor(self.folder / "big.onnx").identity() != before

    def test_a_file_of_weights_that_is_missing_is_named(self) -> None:
        self.make()
        os.remove(self.folder / "big.data")
        with pytest.raises(ModelUnreadable, match=r"keeps its weights in 'big.data'"):
            OnnxPredictor(self.folder / "big.onnx")


def named(first: Any = "rows") -> onnx.ModelProto:
    """Inputs by name, of three kinds, as sklearn's converters make them; and two outputs."""
    nodes = [
        helper.make_node("Cast", ["count"], ["counted"], to=FLOAT),
        helper.make_node("Add", ["fare", "counted"], ["sum"]),
        helper.make_node("Equal", ["word", "yes"], ["is_yes"]),
    ]
    inputs = [
        info("fare", FLOAT, [first, 1]),
        info("count", INT64, [first, 1]),
        info("word", STRING, [first]),
    ]
    outputs = [info("sum", FLOAT, [first, 1]), info("is_yes", TensorProto.BOOL, [first])]
    yes = {"yes": np.array(["yes"], dtype=object)}
    return model_of(nodes, inputs, outputs, yes, opset=19, ir=9)


class TestInputsByName(PredictorContract):
    words = np.array(["yes", "no", "yes", "maybe", "", "yes", "ÿes", "yes", "no"], object)
    rows = "rows"

    def make(self) -> Any:
        return OnnxPredictor(saved(self.folder, named(self.rows)))

    def batch(self) -> Any:
        return {"word": self.words, "count": np.arange(9, dtype=np.float64), "fare": np.arange(9) / 4}

    def expected(self) -> Any:
        numbers = (np.arange(9) / 4 + np.arange(9)).astype(np.float32)
        return {"sum": numbers[:, None], "is_yes": self.words == "yes"}

    def bad_batches(self) -> Any:
        batch = self.batch()
        yield {"word": batch["word"], "count": batch["count"]}, "there is no 'fare'. Give it columns of these"
        renamed = {"word": batch["word"], "count": batch["count"], "fair": batch["fare"]}
        yield renamed, "fair: float64 (9,): there is no 'fare'. Did you mean 'fair'?"
        yield {**batch, "count": batch["fare"]}, "'count' should be int64"
        yield {**batch, "count": np.full(9, np.nan)}, "values that do not fit"
        yield {**batch, "word": np.array(["a"] * 8 + [None], object)}, "row 8 of the batch is a null"
        yield {**batch, "word": np.arange(9)}, "'word' should hold texts"


class TestInputsAmongOtherColumns(TestInputsByName):
    def batch(self) -> Any:
        return {"id": np.arange(9), **super().batch()}

    def bad_batches(self) -> Any:
        batch = super().batch()
        yield {**batch, "count": batch["fare"]}, "'count' should be int64"


class TestOneInputAmongOtherColumns(TestFile):
    """A column with the input's name that is the whole input; a feature of that name is one of the matrix."""

    def batch(self) -> Any:
        return {"id": np.arange(11), "x": ROWS}

    def bad_batches(self) -> Any:
        yield {"id": np.arange(11), "x": ROWS[:, :2]}, "Choose columns with inputs=[…]"
        yield (
            {"x": ROWS[:, 0], "y": ROWS[:, 1]},
            "was given float32 (11, 2) (x: float32 (11,), y: float32 (11,))",
        )
        yield {"x": np.array(["a"] * 11, object), "y": ROWS}, "'x' is text"


class TestInputsByNameInPieces(TestInputsByName):
    rows = 2


def classifier(rows: Any = "rows") -> onnx.ModelProto:
    """Labels and a list of maps, as sklearn's classifiers are exported by default."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["scores"]),
        helper.make_node("ArgMax", ["scores"], ["label"], axis=1, keepdims=0),
        helper.make_node(
            "ZipMap", ["scores"], ["maps"], domain="ai.onnx.ml", classlabels_strings=["cat", "dog", "owl"]
        ),
    ]
    maps = helper.make_value_info(
        "maps", helper.make_sequence_type_proto(helper.make_map_type_proto(STRING, FLOAT_PROTO))
    )
    outputs = [info("label", INT64, [rows]), maps]
    return model_of(nodes, [info("x", FLOAT, [rows, 4])], outputs, {"w": W1[:, :3].copy()})


FLOAT_PROTO = helper.make_tensor_type_proto(FLOAT, [])


class TestMaps(PredictorContract):
    rows: Any = "rows"

    def make(self) -> Any:
        return OnnxPredictor(saved(self.folder, classifier(self.rows)))

    def batch(self) -> Any:
        return {"x": ROWS}

    def expected(self) -> Any:
        label, maps = direct(classifier(), {"x": ROWS})
        return {
            "label": label,
            **{f"maps_{key}": np.array([m[key] for m in maps], np.float32) for key in ("cat", "dog", "owl")},
        }


class TestMapsInPieces(TestMaps):
    rows = 4


# ---------------------------------------------------------------- outputs and options


def test_outputs_are_chosen_in_order() -> None:
    batch = {"x": ROWS}
    assert list(loaded(classifier(), outputs=["label"]).predict(batch).shape) == [11]
    batch = TestInputsByName().batch()
    assert list(loaded(named(), outputs=["is_yes", "sum"]).predict(batch)) == ["is_yes", "sum"]


def test_an_unknown_output_is_refused_with_the_nearest() -> None:
    with pytest.raises(ArgumentError, match=r"has 'scores'\. Did you mean 'scores'"):
        loaded(mlp(), outputs=["score"])


def test_an_output_without_rows_is_refused() -> None:
    mean = helper.make_node("ReduceMean", ["x"], ["mean"], keepdims=0)
    model = model_of([mean], [info("x", FLOAT, ["n", 4])], [info("mean", FLOAT, [])])
    with pytest.raises(BadReturn, match=r"'mean' has the shape \(\), which is not one result for each of 11"):
        loaded(model).predict({"x": ROWS})


def test_an_output_of_another_kind_is_refused_at_load() -> None:
    split = helper.make_node("SplitToSequence", ["x"], ["parts"], axis=0)
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(FLOAT, None))
    same = helper.make_node("Identity", ["x"], ["same"])
    outputs = [helper.make_value_info("parts", kind), info("same", FLOAT, ["n", 4])]
    model = model_of([split, same], [info("x", FLOAT, ["n", 4])], outputs)
    with pytest.raises(ModelUnreadable, match=r"has no rows. Choose .* outputs=\['same'\]"):
        loaded(model)
    assert np.array_equal(loaded(model, outputs=["same"]).predict({"x": ROWS}), ROWS)


def test_float16_and_bool_inputs() -> None:
    where = helper.make_node("Where", ["flag", "x", "zero"], ["y"])
    half = TensorProto.FLOAT16
    inputs = [info("flag", TensorProto.BOOL, ["n"]), info("x", half, ["n"])]
    model = model_of([where], inputs, [info("y", half, ["n"])], {"zero": np.zeros(1, np.float16)})
    made = loaded(model).predict({"flag": np.array([1.0, 0.0]), "x": np.array([1.5, 2.5])})
    assert made.dtype == np.float16
    assert made.tolist() == [1.5, 0.0]


def test_session_options() -> None:
    options = {"graph_optimization_level": "ORT_DISABLE_ALL", "session.intra_op.allow_spinning": "0"}
    assert np.allclose(
        loaded(mlp(), session_options=options).predict({"x": ROWS}), direct(mlp(), {"x": ROWS})[0]
    )
    with pytest.raises(ArgumentError, match="Did you mean 'enable_profiling'"):
        loaded(mlp(), session_options={"enable_profilin": True})
    with pytest.raises(ArgumentError, match="cannot set intra_op_num_threads to 'two'"):
        loaded(mlp(), session_options={"intra_op_num_threads": "two"})


def test_a_missing_provider_is_an_error() -> None:
    for provider in ("CUDAExecutionProvider", ("CUDAExecutionProvider", {"device_id": 0})):
        with pytest.raises(ArgumentError, match="asks for 'CUDAExecutionProvider'"):
            loaded(mlp(), providers=[provider])
    assert loaded(mlp(), providers=["CPUExecutionProvider"]).predict({"x": ROWS}).shape == (11, 3)


@pytest.mark.parametrize("options", [{"outputs": "scores"}, {"outputs": []}, {"providers": "CPU"}])
def test_options_of_the_wrong_kind_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError):
        loaded(mlp(), **options)


def test_a_session_is_refused_with_the_way_out() -> None:
    session = onnxruntime.InferenceSession(mlp().SerializeToString(), providers=["CPUExecutionProvider"])
    for model in (session, mlp(), {}):
        with pytest.raises(ArgumentError, match=r"is the path of a file, not \w+: write it with onnx\.save"):
            OnnxPredictor(model)


def test_an_index_out_of_range_is_a_bad_input() -> None:
    node = helper.make_node("Gather", ["w", "x"], ["y"], axis=0)
    model = model_of([node], [info("x", INT64, ["n"])], [info("y", FLOAT, ["n", 8])], {"w": W1})
    with pytest.raises(BadInput, match=r"cannot use the batch \(x: int64 \(1,\)\).*indices"):
        loaded(model).predict({"x": np.array([9])})


def test_threads_are_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert loaded(mlp())._session.get_session_options().intra_op_num_threads == 3
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert loaded(mlp())._session.get_session_options().intra_op_num_threads == 0


def test_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    made = loaded(mlp(rows=1))
    made.predict({"x": ROWS})
    with pytest.raises(ModelUnreadable):
        loaded(mlp(opset=99))
    assert capfd.readouterr() == ("", "")


# ---------------------------------------------------------------- files that are not models


@pytest.mark.parametrize("version", [{"opset": 99}, {"ir": 99}])
def test_versions_that_are_too_new_say_what_to_do(tmp_path: Path, version: dict[str, int]) -> None:
    path = saved(tmp_path, mlp(**version))
    with pytest.raises(ModelUnreadable, match=r"net.onnx: .* 99.*Install a newer onnxruntime") as refused:
        loaded(path)
    assert "/onnxruntime_src/" not in str(refused.value)


@pytest.mark.parametrize("keep", [0, 1, 60, 200, -1])
def test_a_file_that_is_cut_off(tmp_path: Path, keep: int) -> None:
    whole = mlp().SerializeToString()
    path = tmp_path / "net.onnx"
    path.write_bytes(whole[:keep])
    with pytest.raises(ModelUnreadable, match=r"net.onnx.*Copy or export it again"):
        loaded(path)


def test_a_file_of_another_kind(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_text("hello, this is not a model")
    with pytest.raises(ModelUnreadable, match=r"cannot read the model .*net.onnx"):
        loaded(path)


def test_a_graph_that_makes_no_sense(tmp_path: Path) -> None:
    nodes = [helper.make_node("NoSuchOperator", ["x"], ["y"])]
    path = saved(tmp_path, model_of(nodes, [info("x", FLOAT, ["n"])], [info("y", FLOAT, ["n"])]))
    with pytest.raises(ModelUnreadable, match=r"NoSuchOperator.*operators that this build does not have"):
        loaded(path)


def test_a_missing_file_and_an_ambiguous_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelUnreadable, match="There is no model"):
        OnnxPredictor(tmp_path / "nope.onnx")
    with pytest.raises(ModelUnreadable, match="it has none"):
        OnnxPredictor(tmp_path)
    for name in ("a.onnx", "b.onnx"):
        saved(tmp_path, mlp(), name)
    with pytest.raises(ModelUnreadable, match=r"it has 2: a.onnx, b.onnx. Name the file"):
        OnnxPredictor(tmp_path)


def test_the_pin_is_checked_in_the_driver_and_at_load(tmp_path: Path) -> None:
    path = Path(saved(tmp_path, mlp()))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    with pytest.raises(ModelChanged):
        OnnxPredictor(path, sha256="0" * 64)
    predictor = OnnxPredictor(path, sha256=digest)
    onnx.save(mlp(rows=1), path)
    with pytest.raises(ModelChanged):
        predictor.load()


def test_identity_is_the_model_and_what_is_asked_of_it(tmp_path: Path) -> None:
    path = saved(tmp_path, mlp())
    assert OnnxPredictor(path).identity() != OnnxPredictor(path, outputs=["scores"]).identity()
    assert OnnxPredictor(path).identity() != OnnxPredictor(saved(tmp_path, mlp(rows=1), "1.onnx")).identity()


def test_kinds_are_found_by_name(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    assert kind_of(str(tmp_path / "m")) is None
    assert kind_of(saved(tmp_path / "m", mlp())) == "onnx"
    assert kind_of(str(tmp_path / "m")) == "onnx"
    assert kind_of(str(tmp_path / "m.bin")) is None
