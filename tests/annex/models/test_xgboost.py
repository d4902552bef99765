from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from headrace.annex.models.xgboost import XGBoostPredictor, kind_of
from headrace.errors import (
    ArgumentError,
    BadInput,
    ModelError,
    ModelUnreadable,
    UntrustedPickle,
)
from headrace.plan.fingerprint import fingerprint
from headrace.testing import PredictorContract
from later import Later
from predictors.tables import FEATURES, digits, ride_columns, rides

xgboost = Later("xgboost")


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@cache
def classifier() -> xgboost.XGBClassifier:
    return xgboost.XGBClassifier(n_estimators=5, max_depth=3, n_jobs=1).fit(*digits())


@cache
def fares() -> xgboost.Booster:
    data = xgboost.DMatrix(rides()[list(FEATURES)], rides()["fare"])
    return xgboost.train({"max_depth": 4, "nthread": 1}, data, 10)


def pixels(rows: int = 20) -> np.ndarray[Any, Any]:
    return digits()[0][:rows]


def predicted(model: Any, batch: Any, **options: Any) -> Any:
    predictor = XGBoostPredictor(model, **options)
    predictor.load()
    return predictor.predict(batch)


class TestBooster(PredictorContract):
    """Its features have names; they come in another order, and with another column."""

    def make(self) -> XGBoostPredictor:
        return XGBoostPredictor(fares())

    def batch(self) -> Any:
        return ride_columns(names=("fare", *reversed(FEATURES)))

    def expected(self) -> Any:
        return fares().predict(xgboost.DMatrix(rides()[list(FEATURES)][:20]))

    def bad_batches(self) -> Iterator[tuple[Any, str]]:
        batch = self.batch()
        batch["minute"] = batch.pop("minutes")
        yield batch, "there is no 'minutes'. Did you mean 'minute'?"
        yield self.batch() | {"hour": np.array(["noon"] * 20, object)}, "'hour' is text"
        yield {"all": np.zeros((20, 3))}, "takes 4 features, but it was given 3: all: float64 (20, 3)"


class TestMatrixForNames(TestBooster):
    def batch(self) -> Any:
        return {"features": rides()[list(FEATURES)].to_numpy()[:20]}

    def bad_batches(self) -> Iterator[tuple[Any, str]]:
        yield {"features": rides()["fare"].to_numpy()[:20]}, "there is no 'distance', 'minutes'"


class TestFile(TestBooster):
    suffix = "ubj"

    def make(self) -> XGBoostPredictor:
        if not (file := self.folder / f"fares.{self.suffix}").exists():
            fares().save_model(file)
        return XGBoostPredictor(file)


class TestJsonFile(TestFile):
    suffix = "json"


class TestFileUnderAnotherName(TestBooster):
    def make(self) -> XGBoostPredictor:
        (self.folder / "fares.model").write_bytes(fares().save_raw("json"))
        return XGBoostPredictor(self.folder / "fares.model")


class TestClassifier(PredictorContract):
    def make(self) -> XGBoostPredictor:
        return XGBoostPredictor(classifier())

    def batch(self) -> Any:
        return {"image": pixels().reshape(-1, 8, 8)}

    def expected(self) -> Any:
        return classifier().predict(pixels())

    def bad_batches(self) -> Iterator[tuple[Any, str]]:
        yield {"image": pixels()[:, :60]}, "takes 64 features, but it was given 60"
        yield {"name": np.array(["a"] * 9, object)}, "takes numbers, but it was given name: text (9,)"


class TestProbabilities(TestClassifier):
    def make(self) -> XGBoostPredictor:
        return XGBoostPredictor(classifier(), method="predict_proba")

    def expected(self) -> Any:
        return classifier().predict_proba(pixels())


class TestClassesOfAFile(TestClassifier):
    def make(self) -> XGBoostPredictor:
        if not (file := self.folder / "digits.ubj").exists():
            classifier().save_model(file)
        return XGBoostPredictor(file, method="class")


class TestPickle(TestClassifier):
    def make(self) -> XGBoostPredictor:
        if not (file := self.folder / "digits.pkl").exists():
            file.write_bytes(pickle.dumps(classifier()))
        return XGBoostPredictor(file, trust_pickle=True)


class TestLinear(PredictorContract):
    """It cannot predict in place."""

    @staticmethod
    @cache
    def model() -> xgboost.XGBRegressor:
        estimator = xgboost.XGBRegressor(booster="gblinear", n_estimators=5, updater="coord_descent")
        return estimator.fit(rides()[list(FEATURES)], rides()["fare"])

    def make(self) -> XGBoostPredictor:
        return XGBoostPredictor(self.model())

    def batch(self) -> Any:
        return ride_columns()

    def expected(self) -> Any:
        return self.model().predict(rides()[list(FEATURES)][:20])


class TestCategories(PredictorContract):
    @staticmethod
    def table() -> pd.DataFrame:
        table = rides()[["distance", "borough", "hour", "fare"]]
        return table.astype({"borough": "category", "hour": "category"})

    @staticmethod
    @cache
    def model() -> xgboost.XGBRegressor:
        table = TestCategories.table()
        return xgboost.XGBRegressor(n_estimators=5, n_jobs=1, enable_categorical=True).fit(
            table.drop(columns="fare"), table["fare"]
        )

    def make(self) -> XGBoostPredictor:
        return XGBoostPredictor(self.model())

    def batch(self) -> Any:
        return {
            "hour": rides()["hour"].to_numpy()[:20],
            "borough": rides()["borough"].to_numpy(object)[:20],
            "distance": rides()["distance"].to_numpy()[:20],
        }

    def expected(self) -> Any:
        return self.model().predict(self.table().drop(columns="fare")[:20])

    def test_codes_are_taken_as_well(self) -> None:
        batch = self.batch() | {"borough": self.table()["borough"].cat.codes.to_numpy()[:20]}
        np.testing.assert_array_equal(predicted(self.model(), batch), self.expected())

    def test_nulls_are_missing_and_new_values_are_refused(self) -> None:
        batch = self.batch() | {"borough": np.array([None] * 20, object)}
        frame = self.table().drop(columns="fare")[:20].assign(borough=pd.Categorical([None] * 20, ["Bronx"]))
        np.testing.assert_array_equal(predicted(self.model(), batch), self.model().predict(frame))
        with pytest.raises(BadInput, match=r"'borough' has categories .*Mars.*make nulls of such values"):
            predicted(self.model(), self.batch() | {"borough": np.array(["Mars", None] * 10, object)})


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        ({"method": "margin", "iteration_range": (2, 6)}, {"output_margin": True, "iteration_range": (2, 6)}),
        ({"method": "leaf"}, {"pred_leaf": True}),
        ({"method": "contributions"}, {"pred_contribs": True}),
    ],
)
def test_methods_of_a_booster(options: dict[str, Any], asked: dict[str, Any]) -> None:
    made = predicted(fares(), ride_columns(names=("fare", *reversed(FEATURES))), **options)
    wanted = fares().predict(xgboost.DMatrix(rides()[list(FEATURES)][:20]), **asked)
    np.testing.assert_array_equal(made, wanted, strict=True)


@pytest.mark.parametrize("objective", ["binary:logistic", "multi:softprob", "multi:softmax"])
def test_classes_of_boosters(objective: str) -> None:
    values, labels = digits()
    labels = labels % 2 if objective.startswith("binary") else labels
    extra = {} if objective.startswith("binary") else {"num_class": 10}
    booster = xgboost.train(
        {"objective": objective, "max_depth": 3, "nthread": 1, **extra}, xgboost.DMatrix(values, labels), 3
    )
    made = predicted(booster, {"image": values}, method="class")
    assert made.dtype == np.int64
    assert (made == labels).mean() > 0.8


def test_an_estimator_that_stopped_early_uses_its_best_rounds() -> None:
    some = np.random.default_rng(0)
    x, y = some.normal(size=(400, 3)), some.normal(size=400)
    model = xgboost.XGBRegressor(n_estimators=30, n_jobs=1, early_stopping_rounds=2)
    model.fit(x[:200], y[:200], eval_set=[(x[200:], y[200:])], verbose=False)
    assert model.best_iteration + 1 < model.get_booster().num_boosted_rounds()
    np.testing.assert_array_equal(predicted(model, {"x": x}), model.predict(x))
    np.testing.assert_array_equal(
        predicted(model, {"x": x}, method="margin"), model.predict(x, output_margin=True)
    )
    np.testing.assert_array_equal(
        predicted(model.get_booster(), {"x": x}), model.get_booster().predict(xgboost.DMatrix(x))
    )


def test_the_users_own_model_keeps_its_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    for model in (copy.deepcopy(classifier()), fares()):
        booster = model if isinstance(model, xgboost.Booster) else model.get_booster()
        before = booster.save_config()
        predictor = XGBoostPredictor(model)
        predictor.load()
        assert '"nthread":"3"' in predictor._booster.save_config()
        assert booster.save_config() == before


def test_identity_is_in_the_trees_and_the_options() -> None:
    again = xgboost.XGBClassifier(n_estimators=5, max_depth=3, n_jobs=1).fit(*digits())
    makes = [
        XGBoostPredictor(classifier()),
        XGBoostPredictor(xgboost.XGBClassifier(n_estimators=5, max_depth=2, n_jobs=1).fit(*digits())),
        XGBoostPredictor(classifier(), method="leaf"),
        XGBoostPredictor(classifier(), iteration_range=(0, 3)),
    ]
    assert len({fingerprint(each.identity()) for each in makes}) == 4
    assert makes[0].identity() == XGBoostPredictor(again).identity()


def test_what_is_no_trained_model() -> None:
    with pytest.raises(ModelError, match="XGBClassifier is not fitted yet"):
        XGBoostPredictor(xgboost.XGBClassifier())
    with pytest.raises(ArgumentError, match="XGBClassifier is not a trained model"):
        XGBoostPredictor(xgboost.XGBClassifier)
    with pytest.raises(ArgumentError, match="dict is not a trained model"):
        XGBoostPredictor({})


def test_options_are_checked_at_once(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"method='margins' is not known. Did you mean 'margin'"):
        XGBoostPredictor(fares(), method="margins")
    with pytest.raises(ArgumentError, match=r"Booster has no method='predict_proba': .* gives probabilities"):
        XGBoostPredictor(fares(), method="predict_proba")
    fares().save_model(tmp_path / "m.ubj")
    with pytest.raises(ArgumentError, match=r"m.ubj has no method='predict_proba'"):
        XGBoostPredictor(tmp_path / "m.ubj", method="predict_proba")
    with pytest.raises(ArgumentError, match="XGBRegressor is no classifier"):
        XGBoostPredictor(TestLinear.model(), method="class")
    with pytest.raises(ArgumentError, match="it was trained for 'reg:squarederror'"):
        XGBoostPredictor(fares(), method="class").load()
    for bad in ((1, 2, 3), 5, (3, 1), ("a", 2)):
        with pytest.raises(ArgumentError, match="iteration_range="):
            XGBoostPredictor(fares(), iteration_range=bad)  # type: ignore[arg-type]


@pytest.mark.tried  # xgboost may crash on such a file
@pytest.mark.parametrize("form", ["json", "ubj"])
@pytest.mark.parametrize("keep", [100, 7000])
def test_a_truncated_file(tmp_path: Path, form: str, keep: int) -> None:
    file = tmp_path / f"m.{form}"
    file.write_bytes(bytes(fares().save_raw(form))[:keep])
    with pytest.raises(ModelUnreadable, match=rf"m.{form} cannot be read: (?!.*Stack trace)"):
        XGBoostPredictor(file).load()


@pytest.mark.tried
def test_files_of_other_kinds(tmp_path: Path) -> None:
    def refused(name: str, data: bytes, words: str) -> None:
        (tmp_path / name).write_bytes(data)
        with pytest.raises(ModelUnreadable, match=words):
            XGBoostPredictor(tmp_path / name).load()

    refused("m.json", b'{"model_config": {}}', "is no XGBoost model")
    refused("m.ubj", b"", "m.ubj cannot be read")
    refused("m.model", b"binf" + bytes(500), "cannot be read")
    with pytest.raises(ModelUnreadable, match="There is no model"):
        XGBoostPredictor(tmp_path / "none.ubj")
    (tmp_path / "d.pkl").write_bytes(pickle.dumps({}))
    with pytest.raises(ModelUnreadable, match="dict is not a trained model of XGBoost"):
        XGBoostPredictor(tmp_path / "d.pkl", trust_pickle=True).load()


def test_pickles_are_refused(tmp_path: Path) -> None:
    (tmp_path / "m.pkl").write_bytes(pickle.dumps(classifier()))
    with pytest.raises(UntrustedPickle, match=r"save_model\('model.ubj'\)"):
        XGBoostPredictor(tmp_path / "m.pkl")


def test_kinds(tmp_path: Path) -> None:
    for form in ("json", "ubj"):
        (tmp_path / "m").write_bytes(fares().save_raw(form))
        assert kind_of(str(tmp_path / "m")) == form
    (tmp_path / "m").write_bytes(b"binf\0\0")
    assert kind_of(str(tmp_path / "m")) == "binary"
    (tmp_path / "m").write_bytes(b"tree\nversion=v4\n")
    assert kind_of(str(tmp_path / "m")) is None
    assert kind_of(str(tmp_path)) is None


def test_a_copy_in_one_process_leaves_the_users_model_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    model = xgboost.XGBClassifier(n_jobs=1, n_estimators=2).fit(np.arange(8.0)[:, None], np.arange(8) > 3)
    copied = copy.copy(XGBoostPredictor(model))
    copied.load()
    assert copied.predict({"x": np.array([0.0, 7.0])}).tolist() == [0, 1]
    assert model.n_jobs == 1


def test_a_hint_names_no_column_that_is_taken_already() -> None:
    names = ["dropoff_longitude", "dropoff_latitude"]
    data = xgboost.DMatrix(np.arange(8.0).reshape(4, 2), np.arange(4.0), feature_names=names)
    predictor = XGBoostPredictor(xgboost.train({"nthread": 1}, data, 1))
    predictor.load()
    given = {"dropoff_longitude": np.zeros(2)}
    with pytest.raises(BadInput, match="there is no 'dropoff_latitude'") as refused:
        predictor.predict(given)
    assert "Did you mean" not in str(refused.value)
    with pytest.raises(BadInput, match=r"Did you mean 'dropoff_lat'\?$"):
        predictor.predict({**given, "dropoff_lat": np.zeros(2)})
