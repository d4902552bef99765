"""The quick starts of the examples, by one worker and by two: the same predictions, in the same order."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace as hr
from headrace.session import engines

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def example(no_template: None, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    return importlib.import_module


@pytest.fixture
def imported_once(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Have workers be forked from what has imported some modules, where each would."""

    def preload(*modules: str) -> None:
        monkeypatch.setattr(engines, "_PRELOAD", (*engines._PRELOAD, *modules))

    return preload


def both(one: hr.Dataset, two: hr.Dataset, *, workers: bool = True) -> list[dict[str, Any]]:
    """Predict here, and, with ``workers``, with two of them and another for what comes before."""
    rows = one.with_options(engine="inline").take_all()
    parallel = two.with_options(engine="local")
    assert "2 workers" in parallel.explain() and "stage 2" in parallel.explain()
    if not workers:
        return rows
    for here, there in zip(rows, parallel.take_all(), strict=True):
        assert here.keys() == there.keys()
        for name, value in here.items():
            if isinstance(value, str):
                assert there[name] == value
            else:
                np.testing.assert_allclose(there[name], value, rtol=1e-5)
    return rows


@pytest.mark.parametrize("library", ["torch", "keras"])
def test_quick_start(
    library: str, example: Any, imported_once: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tensorflow" if library == "keras" else library)
    imported_once("torch")
    module = example(f"quickstart_{library}")
    rows = both(module.predictions(1), module.predictions(2), workers=library == "torch")
    assert len(rows) == 10 and all(row["output"].shape == (1,) for row in rows)
    capsys.readouterr()  # what explain() printed
    module.predictions(1).show(limit=1)
    assert capsys.readouterr().out.startswith("output\nfloat32 (1)")


def test_quick_start_huggingface(example: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    module = example("quickstart_huggingface")
    module.make_model(str(tmp_path))
    rows = both(module.predictions(str(tmp_path), 1), module.predictions(str(tmp_path), 2), workers=False)
    assert [row["data"] for row in rows] == [text.strip().lower() for text in module.TEXTS]
    assert {row["label"] for row in rows} <= {"bad", "fine"}
