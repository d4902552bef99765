"""The quick starts of the examples: their predictions, and the workers that they ask for."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

import headrace as hr

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    return importlib.import_module


def predicted(data: hr.Dataset, two: hr.Dataset) -> list[dict[str, Any]]:
    """Predict here; with two workers it would be two, and others for what comes before."""
    told = two.with_options(engine="local").explain()
    assert "2 workers" in told and "stage 2" in told
    return data.with_options(engine="inline").take_all()


@pytest.mark.parametrize("library", ["torch", "keras"])
def test_quick_start(library: str, example: Any, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tensorflow" if library == "keras" else library)
    module = example(f"quickstart_{library}")
    rows = predicted(module.predictions(1), module.predictions(2))
    assert len(rows) == 10 and all(row["output"].shape == (1,) for row in rows)
    capsys.readouterr()  # what explain() printed
    module.predictions(1).show(limit=1)
    assert capsys.readouterr().out.startswith("output\nfloat32 (1)")


def test_quick_start_huggingface(example: Any, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    module = example("quickstart_huggingface")
    module.make_model(str(tmp_path))
    rows = predicted(module.predictions(str(tmp_path), 1), module.predictions(str(tmp_path), 2))
    assert [row["data"] for row in rows] == [text.strip().lower() for text in module.TEXTS]
    assert {row["label"] for row in rows} <= {"bad", "fine"}
