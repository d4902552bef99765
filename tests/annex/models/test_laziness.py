"""What a driver must not pay for: libraries that only workers need."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from annex.models.test_lightgbm import fares as light_fares
from annex.models.test_xgboost import fares as x_fares
from predictors.test_sklearn import forest


@pytest.fixture
def script(script: Callable[..., Any]) -> Callable[..., Any]:
    """What is imported is looked at, so a script is a new interpreter."""
    return partial(script, fresh=True)


def test_files_are_looked_at_without_their_libraries(tmp_path: Path, script: Callable[..., object]) -> None:
    import skops.io

    skops.io.dump(forest(), tmp_path / "m.skops")
    x_fares().save_model(tmp_path / "m.ubj")
    light_fares().save_model(tmp_path / "m.txt")
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "MLmodel").write_text(
        "flavors: {python_function: {loader_module: mlflow.xgboost, data: model.ubj}, xgboost: {}}"
    )
    ended = script(
        """
        import pickle, sys
        from headrace.annex.models.lightgbm import LightGBMPredictor
        from headrace.annex.models.mlflow import MLflowPredictor
        from headrace.predictors.sklearn import SklearnPredictor
        from headrace.annex.models.xgboost import XGBoostPredictor
        made = [
            LightGBMPredictor("m.txt"), MLflowPredictor("m", trust_pickle=True),
            SklearnPredictor("m.skops"), XGBoostPredictor("m.ubj"),
        ]
        assert len(pickle.dumps(made)) < 4000
        heavy = {"joblib", "lightgbm", "mlflow", "pandas", "scipy", "sklearn", "skops", "xgboost"}
        print(sorted(heavy & set(sys.modules)))
        """
    )
    assert (ended.out, ended.err) == ("[]\n", "")


@pytest.mark.soak  # three libraries that are imported anew take ten seconds
def test_nothing_is_said_in_a_worker(tmp_path: Path, script: Callable[..., object]) -> None:
    import skops.io

    skops.io.dump(forest(), tmp_path / "m.skops")
    x_fares().save_model(tmp_path / "m.ubj")
    light_fares().save_model(tmp_path / "m.txt")
    ended = script(
        """
        import warnings
        import numpy as np
        from headrace.annex.models.lightgbm import LightGBMPredictor
        from headrace.predictors.sklearn import SklearnPredictor
        from headrace.annex.models.xgboost import XGBoostPredictor
        image = np.zeros((8, 8, 8), np.float32)
        for made, batch in (
            (LightGBMPredictor("m.txt"), image[0, :, :4]),
            (SklearnPredictor("m.skops", trusted=["sklearn.tree._tree.Tree"]), image),
            (XGBoostPredictor("m.ubj"), image[0, :, :4]),
        ):
            made.load()
            made.predict({"features": batch})
            made.close()
        """,
        env={"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "default"},
    )
    assert (ended.code, ended.out, ended.err) == (0, "", "")
