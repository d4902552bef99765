"""Values that a categorical feature did not have in training."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from headrace.annex.models.lightgbm import LightGBMPredictor
from headrace.annex.models.xgboost import XGBoostPredictor
from headrace.errors import ArgumentError, BadInput

TABLE = pd.DataFrame({"borough": pd.Categorical(["Bronx", "Queens", "Soho"] * 40), "x": np.arange(120.0)})
TARGET = np.arange(120) % 3


def xgboost_predictor(**options: Any) -> XGBoostPredictor:
    xgboost = pytest.importorskip("xgboost", minversion="3.0")
    model = xgboost.XGBRegressor(n_estimators=3, n_jobs=1, enable_categorical=True).fit(TABLE, TARGET)
    predictor = XGBoostPredictor(model, **options)
    predictor.load()
    return predictor


def lightgbm_predictor(**options: Any) -> LightGBMPredictor:
    lightgbm = pytest.importorskip("lightgbm")
    model = lightgbm.LGBMRegressor(n_estimators=3, n_jobs=1, verbose=-1).fit(TABLE, TARGET)
    predictor = LightGBMPredictor(model, **options)
    predictor.load()
    return predictor


def batch(*values: Any) -> dict[str, Any]:
    return {"borough": np.array(values, object), "x": np.zeros(len(values))}


def test_xgboost_refuses_them_as_the_library_does() -> None:
    predictor = xgboost_predictor()
    with pytest.raises(BadInput, match=r"'borough' has categories .*'Harlem'.*unknown_categories='missing'"):
        predictor.predict(batch("Bronx", "Harlem", None))
    frame = pd.DataFrame({"borough": pd.Categorical(["Bronx", "Soho", None]), "x": np.zeros(3)})
    assert predictor.predict(batch("Bronx", "Soho", None)) == pytest.approx(predictor._loaded.predict(frame))
    assert len(predictor.predict(batch("Bronx", float("nan")))) == 2


def test_xgboost_counts_them_as_missing_if_told() -> None:
    predictor = xgboost_predictor(unknown_categories="missing")
    known, new, none = predictor.predict(batch("Bronx", "Harlem", None)).tolist()
    assert new == none != known


def test_lightgbm_counts_them_as_missing_as_the_library_does_unless_told() -> None:
    frame = pd.DataFrame(batch("Bronx", "Harlem", None))
    _, new, none = lightgbm_predictor().predict(frame).tolist()
    assert new == none
    strict = lightgbm_predictor(unknown_categories="error")
    with pytest.raises(BadInput, match=r"'borough' has categories .*'Harlem'"):
        strict.predict(frame)
    assert len(strict.predict(frame[frame["borough"] != "Harlem"])) == 2


@pytest.mark.parametrize("make", [xgboost_predictor, lightgbm_predictor])
def test_the_option_is_one_of_two_words_and_part_of_the_identity(make: Any) -> None:
    with pytest.raises(ArgumentError, match="'error'"):
        make(unknown_categories="ignore")
    one, other = make(unknown_categories="error"), make(unknown_categories="missing")
    assert one.identity() != other.identity()
