"""Damaged model files end in an error of ours, also where their library would end the process or never end itself."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.annex.models.lightgbm import LightGBMPredictor
from headrace.annex.models.xgboost import XGBoostPredictor
from headrace.core.files import artifacts
from headrace.core.files.artifacts import Artifact, NotReadable
from headrace.errors import ModelUnreadable, WorkerDied
from predictors import seeds
from predictors.fuzzing import damaged

pytestmark = pytest.mark.tried


class Hostile:
    """A predictor whose file does to the process what it says."""

    def __init__(self, does: str) -> None:
        self.does = does

    def load(self) -> None:
        if self.does == "die":
            os.abort()
        if self.does == "hang":
            while True:
                pass
        if self.does == "fill":
            self.held = bytearray(1 << 40)
        if self.does == "raise":
            raise ValueError("what the library says")
        if self.does == "refuse":
            print("what the library prints", flush=True)
            raise ModelUnreadable("m cannot be read") from ValueError("what the library says")

    def predict_one_row(self) -> None:
        if self.does == "die later":
            os.abort()


@pytest.mark.parametrize(
    ("does", "words"),
    [
        ("die", "was ended by SIGABRT"),
        ("die later", "was ended by SIGABRT"),
        ("hang", "did not end within (1 seconds of CPU time|4 seconds)"),  # a busy machine gives it no CPU
        ("fill", "needed more than 4"),
    ],
)
def test_what_ends_the_child_is_an_error_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, does: str, words: str
) -> None:
    (tmp_path / "m").write_bytes(b"m")
    monkeypatch.setattr(artifacts, "TRIAL_SECONDS", 1 if does == "hang" else 60)
    with pytest.raises(NotReadable, match=words):
        artifacts.try_elsewhere(Hostile(does), Artifact(str(tmp_path / "m")), errors_count=True)


def test_what_the_library_cannot_read_there_is_not_read_here(tmp_path: Path) -> None:
    (tmp_path / "m").write_bytes(b"m")
    artifact = Artifact(str(tmp_path / "m"))
    with pytest.raises(NotReadable, match=r"^what the library says$"):
        artifacts.try_elsewhere(Hostile("refuse"), artifact, errors_count=True)
    artifacts.try_elsewhere(Hostile("refuse"), artifact, errors_count=False)


def test_other_errors_are_left_to_this_process(tmp_path: Path) -> None:
    (tmp_path / "m").write_bytes(b"m")
    artifacts.try_elsewhere(Hostile("raise"), Artifact(str(tmp_path / "m")), errors_count=True)


def test_a_file_is_tried_once_for_each_content(tmp_path: Path) -> None:
    (tmp_path / "m").write_bytes(b"m")
    artifact = Artifact(str(tmp_path / "m"))
    artifacts.try_elsewhere(Hostile(""), artifact, errors_count=True)
    artifacts.try_elsewhere(Hostile("die"), artifact, errors_count=True)
    (tmp_path / "m").write_bytes(b"n")
    with pytest.raises(NotReadable):
        artifacts.try_elsewhere(Hostile("die"), artifact, errors_count=True)


def in_a_circle(tmp_path: Path) -> Path:
    """Return a model of XGBoost whose first tree has no leaf on the way of any row."""
    path = Path(seeds.make("xgboost-json", tmp_path))
    model = json.loads(path.read_text())
    tree = model["learner"]["gradient_booster"]["model"]["trees"][0]
    tree["left_children"][1:3] = tree["right_children"][1:3] = [1, 2]
    path.write_text(json.dumps(model))
    return path


def test_a_tree_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifacts, "TRIAL_SECONDS", 2)
    with pytest.raises(
        ModelUnreadable,
        match=r"did not end within (2 seconds of CPU time|8 seconds)|was ended by|cannot be read",
    ):
        XGBoostPredictor(in_a_circle(tmp_path)).load()


@pytest.mark.parametrize(
    ("name", "make"), [("xgboost-ubj", XGBoostPredictor), ("lightgbm", LightGBMPredictor)]
)
def test_damaged_files_end_no_process(tmp_path: Path, name: str, make: Any) -> None:
    whole = Path(seeds.make(name, tmp_path)).read_bytes()
    path = tmp_path / "damaged.bin"
    path.write_bytes(damaged(whole, random.Random(0)))
    try:
        make(path).load()
    except ModelUnreadable as error:
        assert str(path) in str(error)


def test_a_worker_that_a_model_ends_is_reported(tmp_path: Path) -> None:
    path = Path(seeds.make("lightgbm", tmp_path))
    text = path.read_bytes()
    middle = text.index(b"Tree=1")
    path.write_bytes(text[:middle] + text[middle + 9 :])
    data = hr.range(10).map_batches(lambda b: {"x": b["id"][:, None].repeat(3, 1).astype(float)})
    with pytest.raises(WorkerDied, match="load"):
        data.predict(str(path), inputs=["x"], output="y").with_options(
            engine="local", progress=False
        ).write_parquet(tmp_path / "out")
