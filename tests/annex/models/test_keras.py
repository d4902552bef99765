from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import cloudpickle
import numpy as np
import pytest

from headrace.annex.models.keras import KerasPredictor, kind_of
from headrace.core.files.artifacts import Artifact
from headrace.errors import (
    ArgumentError,
    BadInput,
    MissingLibrary,
    ModelChanged,
    ModelUnreadable,
    UntrustedPickle,
)
from headrace.testing.predictors import PredictorContract
from later import Later, needs_tensorflow

keras, own = Later("keras"), Later("annex.models.keras_classes")

# Keras saves a TensorFlow variable in a way that numpy 2 calls old.
pytestmark = [
    needs_tensorflow,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]

ROWS = np.random.default_rng(3).normal(size=(11, 4)).astype(np.float32)
IMAGES = np.random.default_rng(4).normal(size=(9, 8, 8, 3)).astype(np.float32)


def dense() -> Any:
    keras.utils.set_random_seed(1)
    layers = [keras.Input((4,)), keras.layers.Dense(8, activation="relu"), keras.layers.Dropout(0.5)]
    return keras.Sequential([*layers, keras.layers.Dense(3, activation="softmax")])


def two_inputs() -> Any:
    keras.utils.set_random_seed(2)
    numbers = keras.Input((2,), name="numbers")
    word = keras.Input((1,), name="word", dtype="int32")
    embedded = keras.layers.Flatten()(keras.layers.Embedding(5, 3)(word))
    joined = keras.layers.Concatenate()([numbers, embedded])
    outputs = [keras.layers.Dense(1, name="price")(joined), keras.layers.Dense(2, name="kind")(joined)]
    return keras.Model([numbers, word], outputs)


def direct(model: Any, inputs: Any) -> Any:
    return keras.tree.map_structure(np.asarray, model(inputs, training=False))


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save a model."""
    folder = tmp_path_factory.mktemp("keras")
    dense().save(folder / "dense.keras")
    return folder


def loaded(model: Any, **options: Any) -> KerasPredictor:
    predictor = KerasPredictor(model, **options)
    predictor.load()
    return predictor


# ---------------------------------------------------------------- the contract


class TestModelObject(PredictorContract):
    batching_tolerance = 1e-6

    def make(self) -> Any:
        return KerasPredictor(dense())

    def batch(self) -> Any:
        return {"features": ROWS.astype(np.float64)}

    def expected(self) -> Any:
        return direct(dense(), ROWS)

    def bad_batches(self) -> Any:
        yield {"features": ROWS[:, :3]}, "takes float32 (any, 4), but it was given float32 (11, 3)"
        yield {"features": ROWS[:, 0]}, "float32 (11,)"
        yield {"features": np.array(["a"] * 11, object)}, "should be float32, but it is text"
        yield dict.fromkeys("abc", ROWS[:, 0]), "but it was given float32 (11, 3)"


class TestColumnsSideBySide(TestModelObject):
    def batch(self) -> Any:
        return {name: ROWS[:, place] for place, name in enumerate(("a", "b", "c", "d"))}


class TestArchive(TestModelObject):
    @pytest.fixture(autouse=True)
    def _models(self, models: Path) -> None:
        self.models = models

    def make(self) -> Any:
        return KerasPredictor(self.models / "dense.keras")


class TestImages(PredictorContract):
    batching_tolerance = 1e-6

    def make(self) -> Any:
        keras.utils.set_random_seed(5)
        layers = [keras.Input((8, 8, 3)), keras.layers.Conv2D(4, 3), keras.layers.GlobalAveragePooling2D()]
        return KerasPredictor(keras.Sequential(layers))

    def batch(self) -> Any:
        return {"image": IMAGES}

    def expected(self) -> Any:
        return direct(self.make()._model, IMAGES)

    def bad_batches(self) -> Any:
        yield (
            {"image": IMAGES.reshape(9, -1)},
            "takes float32 (any, 8, 8, 3), but it was given float32 (9, 192)",
        )


class TestInputsByName(PredictorContract):
    batching_tolerance = 1e-6

    def make(self) -> Any:
        return KerasPredictor(two_inputs())

    def batch(self) -> Any:
        return {"word": np.arange(11, dtype=np.float64) % 5, "numbers": ROWS[:, :2]}

    def expected(self) -> Any:
        price, kind = direct(two_inputs(), [ROWS[:, :2], (np.arange(11, dtype=np.int32) % 5)[:, None]])
        return {"price": price, "kind": kind}

    def bad_batches(self) -> Any:
        batch = self.batch()
        yield (
            {"numbers": batch["numbers"]},
            "there is no 'word'. Give it columns of these names with inputs=[",
        )
        yield {"words": batch["word"], "numbers": batch["numbers"]}, "no 'word'. Did you mean 'words'?"
        yield {**batch, "word": batch["word"] + 0.5}, "'word' should be int32"
        yield {**batch, "numbers": batch["word"]}, "takes float32 (any, 2)"


class TestSubclass(PredictorContract):
    """A model class and a layer class of the user's own, which travel with the model."""

    batching_tolerance = 1e-6

    def model(self) -> Any:
        keras.utils.set_random_seed(6)
        model = own.Subclass()
        model(ROWS[:1])
        return model

    def make(self) -> Any:
        return KerasPredictor(self.model())

    def batch(self) -> Any:
        return {"x": ROWS}

    def expected(self) -> Any:
        return direct(self.model(), ROWS)


@pytest.mark.filterwarnings("ignore:When providing `inputs` as a dict:UserWarning")
def test_inputs_in_a_dict_go_by_its_keys() -> None:
    first, second = keras.Input((1,), name="one"), keras.Input((1,), name="two")
    model = keras.Model({"a": first, "b": second}, {"difference": first - second})
    made = loaded(model).predict({"b": np.arange(3), "a": np.arange(3) * 3})
    assert list(made) == ["difference"]
    assert made["difference"].tolist() == [[0], [2], [4]]


def test_texts_go_in_as_they_are() -> None:
    lookup = keras.layers.StringLookup(vocabulary=["cat", "dog"])
    model = keras.Sequential([keras.Input((1,), dtype="string"), lookup])
    predictor = loaded(model)
    assert predictor.predict({"word": np.array(["dog", "owl"], object)}).tolist() == [[2], [0]]
    with pytest.raises(BadInput, match="row 1 of the batch is a null"):
        predictor.predict({"word": np.array(["dog", None], object)})
    worker = cloudpickle.loads(cloudpickle.dumps(KerasPredictor(model)))
    worker.load()
    assert worker.predict({"word": np.array(["dog", "owl"], object)}).tolist() == [[2], [0]]


def test_bfloat16_comes_out_as_float32() -> None:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Activation("relu", dtype="bfloat16")])
    made = loaded(model).predict({"x": ROWS})
    assert made.dtype == np.float32
    assert np.allclose(made, np.maximum(ROWS, 0), atol=0.02)


@pytest.fixture
def by_value() -> Iterator[None]:
    """Send the classes of this module as those of a user's script are sent."""
    from annex.models import keras_classes

    cloudpickle.register_pickle_by_value(keras_classes)
    yield
    cloudpickle.unregister_pickle_by_value(keras_classes)


SCRIPT = """
import os, sys, pickle, numpy as np
with open(sys.argv[1], "rb") as file:
    predictor, batch, expected = pickle.load(file)
predictor.load()
made = predictor.predict(batch)
np.testing.assert_allclose(made, expected, rtol=0, atol=float(sys.argv[2]))
import keras
print(keras.backend.backend(), os.environ["TF_CPP_MIN_LOG_LEVEL"])
if keras.backend.backend() == "tensorflow":
    import tensorflow as tf
    threading = tf.config.threading
    print(threading.get_intra_op_parallelism_threads(), threading.get_inter_op_parallelism_threads())
"""


def in_a_fresh_process(folder: Path, predictor: Any, tolerance: float, **environment: str) -> str:
    with open(folder / "sent.pkl", "wb") as file:
        cloudpickle.dump((predictor, {"x": ROWS}, direct(TestSubclass().model(), ROWS)), file)
    inherited = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder / "sent.pkl"), str(tolerance)],
        env=inherited | environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize(
    ("backend", "said"),
    [
        pytest.param("tensorflow", "tensorflow 3\n1 1\n", marks=pytest.mark.soak),
        ("torch", "torch 3\n"),
    ],
)
def test_a_fresh_process_and_another_backend(tmp_path: Path, by_value: None, backend: str, said: str) -> None:
    predictor = KerasPredictor(TestSubclass().model())
    assert in_a_fresh_process(tmp_path, predictor, 1e-6, KERAS_BACKEND=backend, OMP_NUM_THREADS="1") == said


# ---------------------------------------------------------------- files and arguments


def test_python_code_in_a_file_is_refused_unless_trusted(tmp_path: Path) -> None:
    path = tmp_path / "code.keras"
    keras.Sequential([keras.Input((4,)), keras.layers.Lambda(lambda x: x * 2)]).save(path)
    with pytest.raises(UntrustedPickle, match=r"Lambda layer.*trust_pickle=True"):
        KerasPredictor(path)
    assert np.array_equal(loaded(path, trust_pickle=True).predict({"x": ROWS}), ROWS * 2)


def test_code_as_keras_2_wrote_it_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "old.keras"
    layer = {
        "class_name": "Lambda",
        "config": {"function": ["4wEAAA==", None, None], "function_type": "lambda"},
    }
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("config.json", json.dumps({"config": {"layers": [layer]}}))
        archive.writestr("metadata.json", "{}")
    with pytest.raises(UntrustedPickle):
        KerasPredictor(path)


def test_custom_classes_of_a_file_are_named(tmp_path: Path) -> None:
    model = keras.Sequential([keras.Input((4,)), own.Doubled()])
    model.save(tmp_path / "own.keras")
    config = zipfile.ZipFile(tmp_path / "own.keras")
    with config, zipfile.ZipFile(tmp_path / "other.keras", "w") as other:
        for name in config.namelist():
            other.writestr(name, config.read(name).replace(b"Doubled", b"Tripled"))
    with pytest.raises(ModelUnreadable, match=r"Tripled.*custom_objects="):
        loaded(tmp_path / "other.keras")
    made = loaded(tmp_path / "other.keras", custom_objects={"Tripled": own.Doubled}).predict({"x": ROWS})
    assert np.array_equal(made, ROWS * 2)


@pytest.mark.parametrize("keep", [0, 5, 2000, -100])
def test_a_file_that_is_cut_off(models: Path, tmp_path: Path, keep: int) -> None:
    (tmp_path / "cut.keras").write_bytes((models / "dense.keras").read_bytes()[:keep])
    with pytest.raises(ModelUnreadable, match=r"cut.keras.*again"):
        loaded(tmp_path / "cut.keras")


def test_a_damaged_archive(models: Path, tmp_path: Path) -> None:
    path = tmp_path / "bad.keras"
    with zipfile.ZipFile(models / "dense.keras") as good, zipfile.ZipFile(path, "w") as bad:
        for name in good.namelist():
            bad.writestr(name, good.read(name)[: 3000 if name.endswith(".h5") else None])
    with pytest.raises(ModelUnreadable, match=r"bad.keras.*again"):
        loaded(path)


def test_other_objects_and_paths_are_refused(models: Path, tmp_path: Path) -> None:
    import tensorflow

    with pytest.raises(ArgumentError, match="not Dense"):
        KerasPredictor(keras.layers.Dense(2))
    with pytest.raises(ArgumentError, match="class of your own"):
        KerasPredictor(tensorflow.Module())
    with pytest.raises(ArgumentError, match="sha256= pins a file"):
        KerasPredictor(dense(), sha256="ab")
    with pytest.raises(ModelUnreadable, match="There is no model"):
        KerasPredictor(tmp_path / "nope.keras")
    os.symlink(models / "dense.keras", tmp_path / "model.zip")
    for path in (tmp_path, tmp_path / "model.zip"):
        with pytest.raises(ModelUnreadable, match=r"not a whole model of Keras 3, .* \.h5 .* SavedModel"):
            KerasPredictor(path)


def test_the_pin_is_checked(models: Path) -> None:
    path = models / "dense.keras"
    KerasPredictor(path, sha256=Artifact(str(path)).digest())
    with pytest.raises(ModelChanged):
        KerasPredictor(path, sha256="0" * 64)


def test_a_missing_library_is_named(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "keras" else found(name))
    with pytest.raises(MissingLibrary, match=r"needs keras.*\.\[keras\]"):
        KerasPredictor(models / "dense.keras")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name == "keras" or None)
    with pytest.raises(MissingLibrary, match="needs a backend"):
        KerasPredictor(models / "dense.keras")


def test_a_model_without_classes_of_its_own_imports_nothing_when_it_arrives(tmp_path: Path) -> None:
    (tmp_path / "sent.pkl").write_bytes(cloudpickle.dumps(KerasPredictor(dense())))
    script = "import pickle, sys; pickle.load(open(sys.argv[1], 'rb')); print({'keras', 'h5py'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "sent.pkl")], capture_output=True, text=True, check=True
    )
    assert done.stdout == "set()\n"


def test_identity_is_the_wiring_too() -> None:
    def model(swapped: bool) -> Any:
        keras.utils.set_random_seed(1)
        tensor = keras.Input((4,))
        first, second = keras.layers.Activation("relu"), keras.layers.Activation("tanh")
        left, right = (second, first) if swapped else (first, second)
        return keras.Model(tensor, keras.layers.Subtract()([left(tensor), right(tensor)]))

    assert KerasPredictor(model(False)).identity() == KerasPredictor(model(False)).identity()
    assert KerasPredictor(model(False)).identity() != KerasPredictor(model(True)).identity()


def test_identity_is_the_weights_and_not_the_time() -> None:
    model = dense()
    before = KerasPredictor(model).identity()
    model.layers[0].set_weights([each + 1 for each in model.layers[0].get_weights()])
    assert KerasPredictor(model).identity() != before
    assert KerasPredictor(dense()).label == "Sequential"


def test_kinds_are_found_by_content(models: Path, tmp_path: Path) -> None:
    assert kind_of(str(models / "dense.keras")) == "keras"
    (tmp_path / "b.keras").write_bytes(b"PK\x03\x04")
    assert kind_of(str(tmp_path / "b.keras")) is None
    assert kind_of(str(tmp_path)) is None
    assert kind_of(str(tmp_path / "nope")) is None
