"""Checkpoints of transformers, and programs for Ray AIR's predictor of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import transformers

import headrace as hr
from annex.models.test_transformers import bert
from headrace.compat.ray.train.batch_predictor import BatchPredictor
from headrace.compat.ray.train.huggingface import TransformersCheckpoint, TransformersPredictor
from headrace.errors import ArgumentError, UnknownArgument
from predictors.news import TEXTS, tokenizer

FRAME = pd.DataFrame({"text": list(TEXTS[:7]), "id": range(7)}, index=range(10, 17))


@pytest.fixture(scope="module")
def model() -> Any:
    return bert()


@pytest.fixture(scope="module")
def wanted(model: Any) -> list[dict[str, Any]]:
    pipe = transformers.pipeline("text-classification", model=model, tokenizer=tokenizer(), device="cpu")
    return list(pipe(list(TEXTS[:7])))


@pytest.mark.parametrize("form", ["memory", "classes"])
def test_predictions_are_the_pipelines(form: str, model: Any, wanted: Any) -> None:
    checkpoint: Any = TransformersCheckpoint.from_model(model, tokenizer())
    options: dict[str, Any] = {"task": "text-classification"}
    if form == "classes":
        options = {
            "pipeline_cls": transformers.TextClassificationPipeline,
            "model_cls": transformers.AutoModelForSequenceClassification,
        }
    predictor = BatchPredictor.from_checkpoint(checkpoint, TransformersPredictor, **options)
    made = predictor.predict(FRAME, feature_columns=["text"], keep_columns=["id"], max_scoring_workers=1)
    assert list(made.columns) == ["id", "label", "score"] and list(made.index) == list(FRAME.index)
    assert made["label"].tolist() == [each["label"] for each in wanted]
    assert np.allclose(made["score"], [each["score"] for each in wanted])
    if form == "memory":
        best = predictor.predict(
            hr.from_pandas(FRAME).with_options(engine="inline"),
            feature_columns="text",
            top_k=2,
            function_to_apply="none",
        ).take(1)
        assert len(best[0]["label"]) == 2 and best[0]["label"][0] == wanted[0]["label"]
        alone = TransformersPredictor.from_checkpoint(checkpoint).predict(FRAME[["text"]])
        assert alone["label"].tolist() == made["label"].tolist() and list(alone.index) == list(FRAME.index)


def test_what_is_missing_is_told(model: Any) -> None:
    bare = TransformersCheckpoint.from_model(model)
    with pytest.raises(ArgumentError, match="has no tokenizer, and a pipeline needs one"):
        BatchPredictor.from_checkpoint(bare, TransformersPredictor)
    other = BatchPredictor.from_checkpoint(bare, TransformersPredictor, tokenizer=tokenizer())
    assert "label" in other.predict(FRAME[["text"]], max_scoring_workers=1)
    with pytest.raises(
        ArgumentError, match=r"takes a transformers\.PreTrainedModel, not BertTokenizer|not \w+"
    ):
        TransformersCheckpoint.from_model(tokenizer())
    with pytest.raises(ArgumentError, match="is for TransformersPredictor"):
        BatchPredictor.from_checkpoint(bare, hr.TorchPredictor)
    assert bare.get_model() is model
    whole = TransformersCheckpoint.from_model(model, tokenizer())
    with pytest.raises(ArgumentError, match="Did you mean 'text-classification'"):
        BatchPredictor.from_checkpoint(whole, TransformersPredictor, task="text-clasification")
    with pytest.raises(UnknownArgument, match=r"pipeline=3: the pipeline is the first argument, model="):
        TransformersPredictor(pipeline=3)
