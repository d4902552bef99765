from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from headrace.annex.models.mlflow import MLflowPredictor, kind_of
from headrace.errors import (
    ArgumentError,
    BadInput,
    ModelUnreadable,
    UntrustedPickle,
)
from headrace.testing import PredictorContract
from later import Later
from predictors.tables import digits, rides

mlflow, Tariff = Later("annex.models.quiet_mlflow:mlflow"), Later("annex.models.quiet_mlflow:Tariff")
infer_signature = Later("mlflow.models:infer_signature")
LinearRegression = Later("sklearn.linear_model:LinearRegression")

NUMBERS = ["distance", "minutes"]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of MLflow's may land where the tests are run from."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def quietly(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Log a model without what MLflow says about it, and without asking which packages it needs."""
    if function.__module__ == "mlflow.sklearn":
        options = {
            "serialization_format": "skops"
        } | options  # older releases write pickles if nothing is asked for
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*args, pip_requirements=["scikit-learn"], **options)


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save what the tests read, once."""
    folder = tmp_path_factory.mktemp("models")
    table, fares = rides()[NUMBERS], rides()["fare"]
    named = LinearRegression().fit(table, fares)
    signature = infer_signature(table, fares)
    save = mlflow.sklearn.save_model
    quietly(save, named, folder / "columns", signature=signature)
    quietly(save, named, folder / "bare")
    quietly(save, named, folder / "pickled", signature=signature, serialization_format="cloudpickle")
    pixels, labels = digits()
    images = pixels.astype(np.float64)
    quietly(
        save,
        LinearRegression().fit(images, labels),
        folder / "tensor",
        signature=infer_signature(images, labels),
    )
    quietly(
        mlflow.pyfunc.save_model,
        folder / "object",
        python_model=Tariff(),
        signature=infer_signature(table, fares, params={"rate": 2.0}),
    )
    return folder


def line() -> Any:
    return LinearRegression().fit(rides()[NUMBERS], rides()["fare"])


class FromFolder(PredictorContract):
    name = ""
    params: dict[str, Any] | None = None

    @pytest.fixture(autouse=True)
    def _models(self, models: Path) -> None:
        self.models = models

    def make(self) -> MLflowPredictor:
        return MLflowPredictor(self.models / self.name, params=self.params, trust_pickle=True)


class TestColumns(FromFolder):
    """They come in another order than in the signature, and one is not for it."""

    name = "columns"
    tolerance = 1e-9

    def batch(self) -> Any:
        return rides()[["fare", *reversed(NUMBERS)]][:20]

    def expected(self) -> Any:
        return line().predict(rides()[NUMBERS][:20])

    def bad_batches(self) -> Iterator[tuple[Any, str]]:
        yield (
            rides()[["distance"]],
            "MLflow refused it: Model is missing inputs ['minutes']. It was given distance: ",
        )
        far = rides()[NUMBERS].assign(distance="far")
        yield far, "Incompatible input types for column distance. Can not safely convert"


class TestPickle(TestColumns):
    name = "pickled"


class TestWithoutSignature(TestColumns):
    name = "bare"

    def batch(self) -> Any:
        return rides()[NUMBERS][:20]

    def bad_batches(self) -> Iterator[tuple[Any, str]]:
        return iter(())


class TestTensor(FromFolder):
    """Its dtype is float64, and pixels are float32."""

    name = "tensor"
    tolerance = 1e-9

    def batch(self) -> Any:
        return {"image": digits()[0][:20].reshape(-1, 8, 8)}

    def expected(self) -> Any:
        pixels = digits()[0].astype(np.float64)
        return LinearRegression().fit(pixels, digits()[1]).predict(pixels[:20])

    def bad_batches(self) -> Iterator[tuple[Any, str]]:
        yield (
            {"image": digits()[0][:, :60]},
            "Shape of input (1797, 60) does not match expected shape (-1, 64)",
        )
        yield {"image": np.array(["a"] * 9, object)}, "does not match expected"


class TestPythonModel(FromFolder):
    name = "object"
    params = {"rate": 3.0}  # noqa: RUF012 - only read

    def batch(self) -> Any:
        return rides()[[*NUMBERS]][:20]

    def expected(self) -> Any:
        return {"price": rides()["distance"].to_numpy()[:20] * 3.0, "rows": np.zeros(20, np.int64)}


class TestBooster(FromFolder):
    @pytest.fixture(autouse=True)
    def _saved(self, tmp_path: Path) -> None:
        import xgboost

        self.booster = xgboost.XGBRegressor(n_estimators=3, n_jobs=1).fit(rides()[NUMBERS], rides()["fare"])
        quietly(mlflow.xgboost.save_model, self.booster, tmp_path / "model")

    def make(self) -> MLflowPredictor:
        return MLflowPredictor(self.folder / "model", trust_pickle=True)

    def batch(self) -> Any:
        return rides()[NUMBERS][:20]

    def expected(self) -> Any:
        return self.booster.predict(rides()[NUMBERS][:20])


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Log and register a model; give the tracking URI, and the run."""
    folder = tmp_path_factory.mktemp("registry")
    uri = f"file://{folder}/store"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
        patch.setenv("MLFLOW_TRACKING_URI", uri)
        patch.chdir(folder)
        with mlflow.start_run() as run:
            quietly(
                mlflow.sklearn.log_model,
                line(),
                name="fare",
                signature=infer_signature(rides()[NUMBERS], rides()["fare"]),
                registered_model_name="fare",
            )
        mlflow.MlflowClient().set_registered_model_alias("fare", "champion", 1)
    return uri, run.info.run_id


class TestRegistered(TestColumns):
    @pytest.fixture(autouse=True)
    def _registry(self, registry: tuple[str, str]) -> None:
        self.registry = registry

    def make(self) -> MLflowPredictor:
        return MLflowPredictor("models:/fare/1", tracking_uri=self.registry[0], trust_pickle=True)


def test_uris_of_aliases_runs_and_files(
    registry: tuple[str, str],
    models: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    where, run = registry
    frame, wanted = rides()[NUMBERS][:20], line().predict(rides()[NUMBERS][:20])
    monkeypatch.setenv("MLFLOW_TRACKING_URI", where)
    for uri in ("models:/fare@champion", f"runs:/{run}/fare", f"file://{models}/columns"):
        predictor = MLflowPredictor(uri, trust_pickle=True)
        predictor.load()
        np.testing.assert_allclose(predictor.predict(frame), wanted)
        predictor.close()
    assert capfd.readouterr() == ("", "")
    registered = MLflowPredictor("models:/fare/1", trust_pickle=True)
    assert registered.identity() == ("mlflow", "models:/fare/1", where, None, None)


def test_what_was_downloaded_is_deleted(registry: tuple[str, str]) -> None:
    predictor = MLflowPredictor("models:/fare/1", tracking_uri=registry[0], trust_pickle=True)
    predictor.load()
    folder = predictor._downloaded.name
    assert os.listdir(folder)
    predictor.close()
    assert not os.path.exists(folder)


@pytest.mark.parametrize("uri", ["models:/none/1", "models:/fare/9", "models:/fare@none", "runs:/abc/fare"])
def test_a_model_that_nobody_registered(registry: tuple[str, str], uri: str) -> None:
    with pytest.raises(ModelUnreadable, match=f"MLflow cannot read the model {uri}: .*not found") as refused:
        MLflowPredictor(uri, tracking_uri=registry[0], trust_pickle=True).load()
    assert "\n" not in str(refused.value)


def test_without_a_signature_all_columns_are_given(models: Path, tmp_path: Path) -> None:
    shutil.copytree(models / "columns", tmp_path / "m")
    described = yaml.safe_load((tmp_path / "m" / "MLmodel").read_text())
    del described["signature"]
    (tmp_path / "m" / "MLmodel").write_text(yaml.safe_dump(described))
    predictor = MLflowPredictor(tmp_path / "m", trust_pickle=True)
    predictor.load()
    batch = pd.DataFrame({name: [1.0, 2.0] for name in (*NUMBERS, "id")})
    assert len(predictor.predict(batch[NUMBERS])) == 2
    with pytest.raises(
        BadInput, match=r"without a signature.* distance: float64, .*\. Choose its columns with inputs="
    ):
        predictor.predict(batch)


@pytest.mark.parametrize("place", ["columns", "models:/fare/1"])
def test_a_model_has_to_be_trusted(models: Path, place: str) -> None:
    with pytest.raises(
        UntrustedPickle, match=r"may bring pickles and code.*\.load_model\('.*', trust_pickle=True\)"
    ):
        MLflowPredictor(models / place if place == "columns" else place)


def test_parameters_that_the_signature_does_not_have(models: Path) -> None:
    with pytest.raises(ArgumentError, match=r"no parameter 'rates'. Did you mean 'rate'"):
        MLflowPredictor(models / "object", params={"rates": 1.0}, trust_pickle=True).load()
    with pytest.raises(ArgumentError, match="There are: none"):
        MLflowPredictor(models / "columns", params={"x": 1.0}, trust_pickle=True).load()
    with pytest.raises(ArgumentError, match="should be a dict"):
        MLflowPredictor(models / "columns", params=[1])  # type: ignore[arg-type]


def test_folders_that_are_no_model(models: Path, tmp_path: Path) -> None:
    def refused(text: str | None, words: str) -> None:
        if text is not None:
            (tmp_path / "MLmodel").write_text(text)
        with pytest.raises(ModelUnreadable, match=words):
            MLflowPredictor(tmp_path, trust_pickle=True).load()

    refused(None, "there is no file MLmodel in it")
    refused("flavors: [", "cannot be read: ")
    refused("hello", "cannot be read: ")
    refused("flavors: {spark: {}}", "has no 'python_function'")
    refused((models / "columns" / "MLmodel").read_text(), "MLflow cannot read the model .*model.skops")
    with pytest.raises(ModelUnreadable, match="There is no model at"):
        MLflowPredictor("nowhere")
    with pytest.raises(ArgumentError, match="LinearRegression is not a path or URI"):
        MLflowPredictor(line())  # type: ignore[arg-type]
    with pytest.raises(
        ArgumentError, match=r"PyFuncModel is not a path or URI .* model_uri that log_model gave"
    ):
        MLflowPredictor(mlflow.pyfunc.load_model(str(models / "columns")))


def test_kinds(models: Path, tmp_path: Path) -> None:
    assert kind_of(str(models / "columns")) == "mlflow"
    assert kind_of("runs:/abc/model") == "mlflow"
    assert kind_of(str(tmp_path)) is None
    assert kind_of(str(tmp_path / "none")) is None
