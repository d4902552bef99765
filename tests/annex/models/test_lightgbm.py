from __future__ import annotations

import pickle
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from headrace.annex.models.lightgbm import LightGBMPredictor, kind_of
from headrace.errors import (
    ArgumentError,
    ModelError,
    ModelUnreadable,
    UntrustedPickle,
)
from headrace.plan.fingerprint import fingerprint
from headrace.testing import PredictorContract
from later import Later
from predictors.tables import FEATURES, digits, ride_columns, rides

lightgbm = Later("lightgbm")

SMALL: dict[str, Any] = {"num_leaves": 7, "verbose": -1, "num_threads": 1}


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@cache
def classifier() -> lightgbm.LGBMClassifier:
    names = np.array([f"class {label}" for label in digits()[1]])
    return lightgbm.LGBMClassifier(n_estimators=3, n_jobs=1, num_leaves=7, verbose=-1).fit(digits()[0], names)


@cache
def fares() -> lightgbm.Booster:
    return lightgbm.train(SMALL, lightgbm.Dataset(rides()[list(FEATURES)], rides()["fare"]), 10)


def ride_matrix() -> np.ndarray[Any, Any]:
    return rides()[list(FEATURES)].to_numpy()[:20]


def predicted(model: Any, batch: Any, **options: Any) -> Any:
    predictor = LightGBMPredictor(model, **options)
    predictor.load()
    return predictor.predict(batch)


class TestBooster(PredictorContract):
    """Its features have names; they come in another order, and with another column."""

    def make(self) -> LightGBMPredictor:
        return LightGBMPredictor(fares())

    def batch(self) -> Any:
        return ride_columns(names=("fare", *reversed(FEATURES)))

    def expected(self) -> Any:
        return fares().predict(ride_matrix())

    def bad_batches(self) -> Iterator[tuple[Any, str]]:
        batch = self.batch()
        batch["minute"] = batch.pop("minutes")
        yield batch, "there is no 'minutes'. Did you mean 'minute'?"
        yield self.batch() | {"hour": np.array(["noon"] * 20, object)}, "'hour' is text"
        yield {"all": np.zeros((20, 3))}, "takes 4 features, but it was given 3: all: float64 (20, 3)"


class TestFile(TestBooster):
    def make(self) -> LightGBMPredictor:
        if not (file := self.folder / "fares.txt").exists():
            fares().save_model(file)
        return LightGBMPredictor(file)


class TestClassifier(PredictorContract):
    def make(self) -> LightGBMPredictor:
        return LightGBMPredictor(classifier())

    def batch(self) -> Any:
        return {"image": digits()[0][:20].reshape(-1, 8, 8)}

    def expected(self) -> Any:
        return classifier().predict(digits()[0][:20])

    def bad_batches(self) -> Iterator[tuple[Any, str]]:
        yield {"image": digits()[0][:, :60]}, "takes 64 features, but it was given 60"
        yield {"name": np.array(["a"] * 9, object)}, "takes numbers, but it was given name: text (9,)"


class TestProbabilities(TestClassifier):
    def make(self) -> LightGBMPredictor:
        return LightGBMPredictor(classifier(), method="predict_proba")

    def expected(self) -> Any:
        return classifier().predict_proba(digits()[0][:20])


class TestClassesOfAFile(TestClassifier):
    def make(self) -> LightGBMPredictor:
        if not (file := self.folder / "digits.model").exists():
            classifier().booster_.save_model(file)
        return LightGBMPredictor(file, method="class")

    def expected(self) -> Any:
        return np.argmax(classifier().predict_proba(digits()[0][:20]), axis=1)


class TestPickle(TestClassifier):
    def make(self) -> LightGBMPredictor:
        if not (file := self.folder / "digits.pkl").exists():
            file.write_bytes(pickle.dumps(classifier()))
        return LightGBMPredictor(file, trust_pickle=True)


class TestEstimatorOfNamedColumns(PredictorContract):
    @staticmethod
    @cache
    def model() -> lightgbm.LGBMRegressor:
        table = rides()[list(FEATURES)]
        return lightgbm.LGBMRegressor(n_estimators=5, n_jobs=1, verbose=-1).fit(table, rides()["fare"])

    def make(self) -> LightGBMPredictor:
        return LightGBMPredictor(self.model())

    def batch(self) -> Any:
        return ride_columns(names=("fare", *reversed(FEATURES)))

    def expected(self) -> Any:
        return self.model().predict(rides()[list(FEATURES)][:20])


class TestCategories(PredictorContract):
    """A file of one is the same; only then does a batch come as a DataFrame."""

    @staticmethod
    @cache
    def model() -> lightgbm.Booster:
        table = rides()[["distance", "borough"]].astype({"borough": "category"})
        return lightgbm.train(SMALL, lightgbm.Dataset(table, rides()["fare"]), 10)

    def make(self) -> LightGBMPredictor:
        if not (file := self.folder / "fares.txt").exists():
            self.model().save_model(file)
        return LightGBMPredictor(file)

    def batch(self) -> Any:
        return rides()[["borough", "fare", "distance"]][:20]

    def expected(self) -> Any:
        return self.model().predict(rides()[["distance", "borough"]].astype({"borough": "category"})[:20])

    def bad_batches(self) -> Iterator[tuple[Any, str]]:
        yield rides()[["borough"]], "there is no 'distance'"
        yield self.batch().assign(distance="far"), "LightGBM refused it: "

    def test_new_values_are_missing_as_in_the_library(self) -> None:
        frame = rides()[["borough", "distance"]][:2].assign(borough=["Mars", None], distance=1.0)
        new, none = predicted(self.model(), frame).tolist()
        assert new == none

    def test_few_categories_in_a_batch_have_the_codes_of_training(self) -> None:
        queens = rides()[rides()["borough"] == "Queens"][:5]
        all_of_them = pd.Categorical(queens["borough"], sorted(set(rides()["borough"])))
        wanted = self.model().predict(queens[["distance"]].assign(borough=all_of_them))
        np.testing.assert_array_equal(predicted(self.model(), queens), wanted)


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        ({"method": "margin", "num_iteration": 4}, {"raw_score": True, "num_iteration": 4}),
        ({"method": "leaf"}, {"pred_leaf": True}),
        ({"method": "contributions"}, {"pred_contrib": True}),
    ],
)
def test_methods_of_a_booster(options: dict[str, Any], asked: dict[str, Any]) -> None:
    made = predicted(fares(), ride_columns(names=("fare", *reversed(FEATURES))), **options)
    np.testing.assert_array_equal(made, fares().predict(ride_matrix(), **asked), strict=True)


def test_binary_classes() -> None:
    booster = lightgbm.train(
        {**SMALL, "objective": "binary"}, lightgbm.Dataset(digits()[0], digits()[1] % 2), 20
    )
    made = predicted(booster, {"image": digits()[0]}, method="class")
    assert made.dtype == np.int64
    assert (made == digits()[1] % 2).mean() > 0.9


def test_names_with_spaces_are_known() -> None:
    table = rides()[["distance"]].set_axis(["the_distance"], axis=1)  # as LightGBM would, with a warning
    booster = lightgbm.train(SMALL, lightgbm.Dataset(table, rides()["fare"]), 2)
    made = predicted(booster, {"other": np.zeros(20), "the distance": ride_matrix()[:, 0]})
    np.testing.assert_array_equal(made, booster.predict(ride_matrix()[:, :1]))


def test_threads_are_those_of_the_worker_and_the_model_is_left_alone() -> None:
    model = lightgbm.LGBMClassifier(n_estimators=1, n_jobs=2, verbose=-1).fit(*digits())
    predicted(model, {"image": digits()[0]})
    assert model.n_jobs == 2


def test_identity_is_in_the_trees_and_the_options() -> None:
    names = np.array([f"class {label}" for label in digits()[1]])
    again = lightgbm.LGBMClassifier(n_estimators=3, n_jobs=1, num_leaves=7, verbose=-1).fit(
        digits()[0], names
    )
    makes = [
        LightGBMPredictor(classifier()),
        LightGBMPredictor(
            lightgbm.LGBMClassifier(n_estimators=3, n_jobs=1, num_leaves=7, verbose=-1).fit(*digits())
        ),
        LightGBMPredictor(classifier(), method="leaf"),
        LightGBMPredictor(classifier(), num_iteration=2),
    ]
    assert len({fingerprint(each.identity()) for each in makes}) == 4
    assert fingerprint(makes[0].identity()) == fingerprint(LightGBMPredictor(again).identity())


def test_what_is_no_trained_model() -> None:
    with pytest.raises(ModelError, match="LGBMClassifier is not fitted yet"):
        LightGBMPredictor(lightgbm.LGBMClassifier())
    with pytest.raises(ArgumentError, match="LGBMClassifier is not a trained model"):
        LightGBMPredictor(lightgbm.LGBMClassifier)
    with pytest.raises(ArgumentError, match="dict is not a trained model"):
        LightGBMPredictor({})


def test_options_are_checked_at_once(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"method='margins' is not known. Did you mean 'margin'"):
        LightGBMPredictor(fares(), method="margins")
    with pytest.raises(ArgumentError, match=r"Booster has no method='predict_proba': .* gives probabilities"):
        LightGBMPredictor(fares(), method="predict_proba")
    with pytest.raises(ArgumentError, match="LGBMRegressor is no classifier"):
        LightGBMPredictor(TestEstimatorOfNamedColumns.model(), method="predict_proba")
    with pytest.raises(ArgumentError, match="it was trained for 'regression'"):
        LightGBMPredictor(fares(), method="class")
    fares().save_model(tmp_path / "m.txt")
    with pytest.raises(ArgumentError, match=r"m.txt has no method='predict_proba'"):
        LightGBMPredictor(tmp_path / "m.txt", method="predict_proba")
    for bad in (0, -1, "3", True):
        with pytest.raises(ArgumentError, match="num_iteration="):
            LightGBMPredictor(fares(), num_iteration=bad)  # type: ignore[arg-type]


@pytest.mark.parametrize("keep", [500, 9000])
def test_a_truncated_file(tmp_path: Path, keep: int) -> None:
    data = classifier().booster_.model_to_string().encode()
    (tmp_path / "m.txt").write_bytes(data[:keep])
    with pytest.raises(ModelUnreadable, match=r"m.txt cannot be read: its end is missing"):
        LightGBMPredictor(tmp_path / "m.txt").load()


@pytest.mark.tried
def test_a_file_with_bytes_lost_or_of_another_kind(tmp_path: Path) -> None:
    def refused(name: str, data: bytes, words: str) -> None:
        (tmp_path / name).write_bytes(data)
        with pytest.raises(ModelUnreadable, match=words):
            LightGBMPredictor(tmp_path / name, trust_pickle=True).load()

    whole = fares().model_to_string().encode()
    middle = whole.index(b"Tree=5")
    refused(
        "m.txt",
        whole[:middle] + whole[middle + 9 :],
        "m.txt cannot be read: a trial in a process of its own was ended by SIG",
    )
    refused("m.txt", whole[:middle] + b"\0" * 200 + whole[middle + 200 :], "holds bytes that are not text")
    refused("m.txt", b"hello", "is no LightGBM model")
    refused("m.model", b"{}", "is no LightGBM model")
    refused("d.pkl", pickle.dumps({}), "dict is not a trained model of LightGBM")
    with pytest.raises(ModelUnreadable, match="There is no model"):
        LightGBMPredictor(tmp_path / "none.txt")


def test_pickles_are_refused(tmp_path: Path) -> None:
    (tmp_path / "m.pkl").write_bytes(pickle.dumps(classifier()))
    with pytest.raises(UntrustedPickle, match=r"save_model\('model.txt'\)"):
        LightGBMPredictor(tmp_path / "m.pkl")


def test_kinds(tmp_path: Path) -> None:
    fares().save_model(tmp_path / "m")
    assert kind_of(str(tmp_path / "m")) == "text"
    (tmp_path / "m").write_bytes(b"a tree\nversion=v4")
    assert kind_of(str(tmp_path / "m")) is None
    assert kind_of(str(tmp_path)) is None
