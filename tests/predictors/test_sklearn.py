from __future__ import annotations

import pickle
import threading
import zlib
from collections.abc import Iterator
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pytest

from headrace.errors import (
    ArgumentError,
    ModelChanged,
    ModelError,
    ModelUnreadable,
    UntrustedPickle,
)
from headrace.plan.fingerprint import fingerprint
from headrace.predictors.sklearn import SklearnPredictor, kind_of
from headrace.testing import PredictorContract
from later import Later

from .tables import FEATURES, digits, ride_columns, rides

make_column_transformer = Later("sklearn.compose:make_column_transformer")
HistGradientBoostingClassifier = Later("sklearn.ensemble:HistGradientBoostingClassifier")
RandomForestClassifier = Later("sklearn.ensemble:RandomForestClassifier")
RandomForestRegressor = Later("sklearn.ensemble:RandomForestRegressor")
TfidfVectorizer = Later("sklearn.feature_extraction.text:TfidfVectorizer")
LinearRegression = Later("sklearn.linear_model:LinearRegression")
LogisticRegression = Later("sklearn.linear_model:LogisticRegression")
GridSearchCV = Later("sklearn.model_selection:GridSearchCV")
MultiOutputClassifier = Later("sklearn.multioutput:MultiOutputClassifier")
KNeighborsClassifier = Later("sklearn.neighbors:KNeighborsClassifier")
MLPClassifier = Later("sklearn.neural_network:MLPClassifier")
make_pipeline = Later("sklearn.pipeline:make_pipeline")
FunctionTransformer = Later("sklearn.preprocessing:FunctionTransformer")
OneHotEncoder = Later("sklearn.preprocessing:OneHotEncoder")
StandardScaler = Later("sklearn.preprocessing:StandardScaler")

skops_io = Later("skops.io")

TREES = ["sklearn.tree._tree.Tree"]
TEXTS = ["good ride", "bad traffic", "good driver", "bad smell", "so good", "very bad", "good", "bad", "why"]


@cache
def forest() -> RandomForestClassifier:
    pixels, labels = digits()
    return RandomForestClassifier(10, max_depth=6, random_state=0, n_jobs=-1).fit(pixels, labels)


@cache
def fares() -> Any:
    columns = make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore"), ["borough"]), (StandardScaler(), list(FEATURES))
    )
    return make_pipeline(columns, LinearRegression()).fit(rides()[["borough", *FEATURES]], rides()["fare"])


@cache
def opinions() -> Any:
    labels = ["good" if "good" in text else "bad" for text in TEXTS]
    return make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(TEXTS, labels)


def images(rows: int = 20) -> dict[str, np.ndarray[Any, Any]]:
    return {"image": digits()[0][:rows].reshape(-1, 8, 8)}


class TestForest(PredictorContract):
    def make(self) -> SklearnPredictor:
        return SklearnPredictor(forest())

    def batch(self) -> Any:
        return images()

    def expected(self) -> Any:
        return forest().predict(digits()[0][:20])

    def bad_batches(self) -> Iterator[tuple[Any, str]]:
        yield (
            {"image": digits()[0][:20, :60]},
            "takes 64 features, but it was given 60: image: float32 (20, 60)",
        )
        yield {"image": np.array(["a", "b"], object)}, "takes 64 features, but it was given 1"
        yield images() | {"label": np.arange(20)}, "but it was given 65"
        yield {f"c{i}": np.array(["no"], object) for i in range(64)}, "could not convert string to float"
        yield {}, "no columns"


class TestProbabilities(TestForest):
    tolerance = 1e-12  # trees are summed in the order in which threads end

    def make(self) -> SklearnPredictor:
        return SklearnPredictor(forest(), method="predict_proba")

    def expected(self) -> Any:
        return forest().predict_proba(digits()[0][:20])


class TestBoostedTrees(TestForest):
    @staticmethod
    @cache
    def model() -> HistGradientBoostingClassifier:
        return HistGradientBoostingClassifier(max_iter=1, random_state=0).fit(
            *(each[:300] for each in digits())
        )

    def make(self) -> SklearnPredictor:
        return SklearnPredictor(self.model())

    def expected(self) -> Any:
        return self.model().predict(digits()[0][:20])


class TestSkopsFile(TestForest):
    def make(self) -> SklearnPredictor:
        if not (file := self.folder / "digits.skops").exists():
            skops_io.dump(forest(), file)
        return SklearnPredictor(file, trusted=TREES)


class TestPickle(TestForest):
    def make(self) -> SklearnPredictor:
        if not (file := self.folder / "digits.pkl").exists():
            file.write_bytes(pickle.dumps(forest()))
        return SklearnPredictor(file, trust_pickle=True)


class TestPipelineOfNamedColumns(PredictorContract):
    """Columns come in another order than the one that it was fitted with, and one is not for it."""

    tolerance = 1e-9

    def make(self) -> SklearnPredictor:
        return SklearnPredictor(fares())

    def batch(self) -> Any:
        return rides()[["fare", *reversed(FEATURES), "borough"]][:20]

    def expected(self) -> Any:
        return fares().predict(rides()[["borough", *FEATURES]][:20])

    def bad_batches(self) -> Iterator[tuple[Any, str]]:
        lacking = rides().rename(columns={"distance": "distanse"})[:20]
        yield lacking, "there is no 'distance'. Did you mean 'distanse'?"
        yield rides()[:20].assign(hour="noon"), "could not convert string to float"


class TestPipelineOfTexts(PredictorContract):
    def make(self) -> SklearnPredictor:
        return SklearnPredictor(opinions())

    def batch(self) -> Any:
        return {"text": np.array(TEXTS, object)}

    def expected(self) -> Any:
        return opinions().predict(TEXTS)

    def bad_batches(self) -> Iterator[tuple[Any, str]]:
        yield {"text": np.array(["good", None], object)}, "row 1 of the batch is a null"
        yield self.batch() | {"id": np.arange(9)}, "takes one column, but it was given text: text (9,), id"


class TestSingleNumber(PredictorContract):
    tolerance = 1e-9

    @cached_property
    def model(self) -> Any:
        return LinearRegression().fit([[1.0], [2.0]], [2.0, 4.0])

    def make(self) -> SklearnPredictor:
        return SklearnPredictor(self.model)

    def batch(self) -> Any:
        return {"x": np.arange(8)}

    def expected(self) -> Any:
        return self.model.predict(np.arange(8).reshape(-1, 1))

    def bad_batches(self) -> Iterator[tuple[Any, str]]:
        yield {"x": np.array([1.0, np.nan])}, "Input X contains NaN"


class TestSeveralColumns(PredictorContract):
    tolerance = 1e-9

    @cached_property
    def model(self) -> Any:
        return LinearRegression().fit(rides()[list(FEATURES)].to_numpy(), rides()["fare"])

    def make(self) -> SklearnPredictor:
        return SklearnPredictor(self.model)

    def batch(self) -> Any:
        return ride_columns()

    def expected(self) -> Any:
        return self.model.predict(rides()[list(FEATURES)].to_numpy()[:20])


def predicted(model: Any, batch: Any, **options: Any) -> Any:
    predictor = SklearnPredictor(model, **options)
    predictor.load()
    return predictor.predict(batch)


def test_several_outputs_have_names() -> None:
    pixels, labels = digits()
    both = np.stack([labels, labels % 2], axis=1)
    model = MultiOutputClassifier(LogisticRegression(max_iter=500)).fit(pixels[:300], both[:300])
    made = predicted(model, images(), method="predict_proba")
    assert {name: array.shape for name, array in made.items()} == {"output_0": (20, 10), "output_1": (20, 2)}


def test_sparse_results_become_dense() -> None:
    made = predicted(TfidfVectorizer().fit(TEXTS), {"text": np.array(TEXTS, object)}, method="transform")
    assert isinstance(made, np.ndarray)
    assert made.shape[0] == len(TEXTS)


def test_objects_side_by_side_for_an_estimator_of_objects() -> None:
    values = np.array([["a", 1], ["b", 2], ["a", 2]], object)
    encoder = OneHotEncoder(sparse_output=False).fit(values)
    made = predicted(encoder, {"x": values[:, 0], "y": np.array([1, 2, 2])}, method="transform")
    np.testing.assert_array_equal(made, encoder.transform(values))


@pytest.mark.parametrize(
    "model",
    [KNeighborsClassifier(), MLPClassifier((16,), tol=1.0, n_iter_no_change=2, random_state=0)],
    ids=["neighbours", "network"],
)
def test_works_on_memory_that_it_may_not_write(model: Any) -> None:
    pixels, labels = digits()
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(
        SklearnPredictor(model.fit(pixels[:300], labels[:300])), 5, buffer_callback=buffers.append
    )
    worker = pickle.loads(data, buffers=[buffer.raw().tobytes() for buffer in buffers])
    worker.load()
    np.testing.assert_array_equal(worker.predict(images()), model.predict(pixels[:20]))


class Nosy:
    """Remembers which threads were at work."""

    n_features_in_ = 64

    def predict(self, X: Any) -> Any:
        self.seen_ = set(joblib.Parallel(n_jobs=4)(joblib.delayed(threading.get_ident)() for _ in range(64)))
        return np.zeros(len(X))


@pytest.mark.parametrize(("threads", "most"), [("1", 1), ("2", 2)])
def test_starts_no_more_threads_than_the_worker_has(
    monkeypatch: pytest.MonkeyPatch, threads: str, most: int
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    model = Nosy()
    predicted(model, images())
    assert 1 <= len(model.seen_) <= most


def test_the_model_keeps_its_number_of_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    predicted(forest(), images())
    assert forest().n_jobs == -1


def test_texts_have_the_same_identity_whatever_the_address_of_their_stop_words() -> None:
    print_of = fingerprint(SklearnPredictor(opinions()).identity())
    other = pickle.loads(pickle.dumps(opinions()))
    other[0]._stop_words_id += 1
    assert fingerprint(SklearnPredictor(other).identity()) == print_of
    other[0].lowercase = False
    assert fingerprint(SklearnPredictor(other).identity()) != print_of


def test_identity_tells_models_and_methods_apart() -> None:
    pixels, labels = digits()
    again = RandomForestClassifier(10, max_depth=6, random_state=0, n_jobs=-1).fit(pixels, labels)
    other = RandomForestClassifier(10, max_depth=6, random_state=1, n_jobs=-1).fit(pixels, labels)
    mine, same, differs = (
        fingerprint(SklearnPredictor(model).identity()) for model in (forest(), again, other)
    )
    assert mine == same != differs
    assert mine != fingerprint(SklearnPredictor(forest(), method="apply").identity())


def test_a_search_is_what_it_found_however_long_it_took() -> None:
    def search() -> GridSearchCV:
        pixels, labels = digits()
        return GridSearchCV(LogisticRegression(max_iter=500), {"C": [0.1]}, cv=2).fit(
            pixels[:200], labels[:200]
        )

    assert len({fingerprint(SklearnPredictor(search()).identity()) for _ in range(2)}) == 1


def test_an_estimator_that_is_not_fitted() -> None:
    with pytest.raises(ModelError, match="RandomForestRegressor is not fitted yet"):
        SklearnPredictor(RandomForestRegressor())


def test_a_class_is_no_estimator() -> None:
    with pytest.raises(ArgumentError, match="LinearRegression is a class"):
        SklearnPredictor(type(LinearRegression()))


def test_methods_are_checked_at_once() -> None:
    with pytest.raises(ArgumentError, match="Did you mean 'predict_proba'"):
        SklearnPredictor(forest(), method="predict_probs")
    with pytest.raises(ArgumentError, match=r"no method 'decision_function'. It has: predict, predict_proba"):
        SklearnPredictor(forest(), method="decision_function")
    with pytest.raises(ArgumentError, match=r"int has no method 'predict'. It has: none"):
        SklearnPredictor(3)
    with pytest.raises(ArgumentError, match=r"has no argument 'metod'. Did you mean 'method'"):
        SklearnPredictor(forest(), metod="predict")  # type: ignore[call-arg]


def test_a_file_without_the_method(tmp_path: Path) -> None:
    skops_io.dump(LinearRegression().fit([[0.0], [1.0]], [0.0, 1.0]), tmp_path / "m.skops")
    words = r"^m.skops holds a LinearRegression, which has no method 'predict_proba'. It has: predict\.$"
    with pytest.raises(ArgumentError, match=words):
        SklearnPredictor(tmp_path / "m.skops", method="predict_proba").load()


def test_pickles_are_refused_and_skops_is_named(tmp_path: Path) -> None:
    for file in (tmp_path / "m.pkl", tmp_path / "m.joblib", tmp_path / "m"):
        joblib.dump(forest(), file)
        call = rf"hr\.load_model\('.*{file.name}', trust_pickle=True\)"
        with pytest.raises(UntrustedPickle, match=r"skops\.io\.dump.*" + call):
            SklearnPredictor(file)


def test_a_compressed_joblib_file(tmp_path: Path) -> None:
    joblib.dump(forest(), tmp_path / "m.joblib", compress=3)
    made = predicted(tmp_path / "m.joblib", images(), trust_pickle=True)
    np.testing.assert_array_equal(made, forest().predict(digits()[0][:20]))


def test_types_that_skops_does_not_know_are_listed(tmp_path: Path) -> None:
    file = tmp_path / "m.skops"
    skops_io.dump(make_pipeline(FunctionTransformer(print), forest()), file)
    with pytest.raises(
        UntrustedPickle, match=r"can crash the process.* trusted=\['builtins.print', 'skl.*'\]"
    ):
        SklearnPredictor(file).load()
    call = r"hr\.load_model\('.*m.skops', trusted=\['.*', 'builtins.print'\]\)\."
    with pytest.raises(UntrustedPickle, match=call):
        SklearnPredictor(file, trusted=TREES).load()
    SklearnPredictor(file, trusted=["builtins.print", *TREES]).load()
    SklearnPredictor(file, trust_pickle=True).load()
    with pytest.raises(UntrustedPickle, match=r"trusted=\['print', "):
        SklearnPredictor(file, trusted="print").load()


@pytest.mark.parametrize("damage", ["truncated", "overwritten", "empty"])
@pytest.mark.parametrize("suffix", ["skops", "pkl"])
def test_a_damaged_file(tmp_path: Path, suffix: str, damage: str) -> None:
    file = tmp_path / f"m.{suffix}"
    if suffix == "skops":
        skops_io.dump(forest(), file)
    else:
        file.write_bytes(pickle.dumps(forest()))
    data = file.read_bytes()
    file.write_bytes({"truncated": data[: len(data) // 2], "overwritten": bytes(500), "empty": b""}[damage])
    with pytest.raises(ModelUnreadable, match=f"m.{suffix} cannot be read: "):
        SklearnPredictor(file, trust_pickle=True).load()


def test_a_file_of_another_kind(tmp_path: Path) -> None:
    (tmp_path / "m.txt").write_text("hello")
    with pytest.raises(ModelUnreadable, match="neither a file of skops nor a pickle"):
        SklearnPredictor(tmp_path / "m.txt")
    with pytest.raises(ModelUnreadable, match="There is no model at"):
        SklearnPredictor(tmp_path / "none.skops")
    (tmp_path / "d.pkl").write_bytes(pickle.dumps({"model": 1}))
    with pytest.raises(ModelUnreadable, match="holds no estimator, but a dict"):
        SklearnPredictor(tmp_path / "d.pkl", trust_pickle=True).load()


def test_a_file_can_be_pinned(tmp_path: Path) -> None:
    file = tmp_path / "m.skops"
    skops_io.dump(forest(), file)
    with pytest.raises(ModelChanged, match="not the one that was pinned"):
        SklearnPredictor(file, sha256="0" * 64)
    digest = SklearnPredictor(file).identity()[1]
    predictor = SklearnPredictor(file, sha256=digest, trusted=TREES)
    predictor.load()
    predictor.close()
    file.write_bytes(file.read_bytes() + b"x")
    with pytest.raises(ModelChanged):
        predictor.load()


def test_a_pickle_of_another_version_says_so_once(tmp_path: Path) -> None:
    data = pickle.dumps(LinearRegression().fit([[1.0], [2.0]], [2.0, 4.0]))
    version = f"{__import__('sklearn').__version__}".encode()
    (tmp_path / "m.pkl").write_bytes(data.replace(version, b"0" * len(version)))
    from sklearn.exceptions import InconsistentVersionWarning

    with pytest.warns(InconsistentVersionWarning) as warned:
        made = predicted(tmp_path / "m.pkl", {"x": np.array([3.0])}, trust_pickle=True)
    assert made == pytest.approx([6.0])
    assert len(warned) == 1


def test_a_file_fitted_with_names_wants_data_frames(tmp_path: Path) -> None:
    model = LinearRegression().fit(rides()[list(FEATURES)], rides()["fare"])
    skops_io.dump(model, tmp_path / "m.skops")
    predictor = SklearnPredictor(tmp_path / "m.skops")
    predictor.load()
    assert predictor.batch_format == "pandas"
    frame: pd.DataFrame = rides()[:20]
    np.testing.assert_allclose(predictor.predict(frame), model.predict(frame[list(FEATURES)]))


@pytest.mark.parametrize("compress", [0, "zlib", "gzip", "bz2", "xz", "lzma"])
def test_kinds_by_content(tmp_path: Path, compress: Any) -> None:
    joblib.dump(forest(), tmp_path / "m", compress=(compress, 3) if compress else 0)
    assert kind_of(str(tmp_path / "m")) == "pickle"


def test_kinds_by_name_and_of_others(tmp_path: Path) -> None:
    def kind(name: str, data: bytes) -> Any:
        (tmp_path / name).write_bytes(data)
        return kind_of(str(tmp_path / name))

    skops_io.dump(forest(), tmp_path / "anything.bin")
    assert kind_of(str(tmp_path / "anything.bin")) == "skops"
    assert kind("m.pkl", b"(dp0\n.") == "pickle"
    assert kind("m.skops", b"damaged") == "skops"
    assert kind("m.onnx", b"\x08\x07\x12\x07pytorch") is None
    assert kind("m.zip", b"PK\x03\x04 damaged") is None
    assert kind("m.gz", zlib.compress(b"something else")) is None
    assert kind("m.pt", b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.") is None
    assert kind_of(str(tmp_path)) is None
    assert kind_of(str(tmp_path / "none.pkl")) is None
