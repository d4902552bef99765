"""Texts are judged as SQuAD's own script judges them, structured answers field by field."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from crossed import few
from later import Later

torchmetrics = Later("torchmetrics.functional.text")

words = st.sampled_from(["a", "The", "red", "Red!", "wheel", "x-y", "naïve", "—", "1,000", " ", "an\t"])
texts = st.lists(words, max_size=5).map(" ".join)


def counted(metric: Any, pairs: list[tuple[Any, Any]]) -> Any:
    new = metric.empty()
    new.update(pa.RecordBatch.from_pylist([{"y": label, "p": said} for label, said in pairs]))
    return new.result()


@settings(max_examples=few(24), deadline=None)
@given(st.lists(st.tuples(st.lists(texts, min_size=1, max_size=3), texts), min_size=1, max_size=6))
def test_as_squad(pairs: list[tuple[list[str], str]]) -> None:
    said = [{"prediction_text": text, "id": str(at)} for at, (_, text) in enumerate(pairs)]
    wanted = [
        {"answers": {"answer_start": [0] * len(labels), "text": labels}, "id": str(at)}
        for at, (labels, _) in enumerate(pairs)
    ]
    found = torchmetrics.squad(said, wanted)
    data = [(labels, text) for labels, text in pairs]
    assert counted(hr.ExactMatch("y", "p"), data) == pytest.approx(float(found["exact_match"]) / 100)
    assert counted(hr.TokenF1("y", "p"), data) == pytest.approx(float(found["f1"]) / 100)


def test_what_is_made_of_texts_before() -> None:
    pairs = [("The  wheel", "wheel."), (" wheel", "wheel "), ("wheel", "wheel"), ([""], ""), ([], "no")]
    assert counted(hr.ExactMatch("y", "p"), pairs[:3]) == 1.0
    assert counted(hr.ExactMatch("y", "p", normalize="spaces"), pairs[:3]) == pytest.approx(2 / 3)
    assert counted(hr.ExactMatch("y", "p", normalize=None), pairs[:3]) == pytest.approx(1 / 3)
    assert counted(hr.TokenF1("y", "p"), pairs[3:]) == 0.5  # nothing is the right answer


def test_what_is_no_text_is_refused() -> None:
    with pytest.raises(
        hr.errors.HeadraceError, match=r"column 'y' holds int, and not text\. .* hr\.Accuracy"
    ):
        counted(hr.ExactMatch("y", "p"), [(1, "1")])
    with pytest.raises(hr.errors.HeadraceError, match="'y' holds a text that is no JSON object"):
        counted(hr.JSONFields("y", "p"), [("[]", "{}")])
    with pytest.raises(hr.errors.HeadraceError, match="'p' holds int, and neither a struct nor text"):
        counted(hr.JSONFields("y", "p"), [("{}", 1)])


def test_fields_of_structs_and_of_texts() -> None:
    label = {"kind": "boot", "stars": 2, "tags": ["a", "b"], "size": None}
    answers = [
        label,
        {**label, "stars": 3},
        {**label, "tags": ["b", "a"]},
        {**label, "size": 4},
    ]
    expected = {
        "all": 0.25,
        "fields": {"kind": 1.0, "size": 0.75, "stars": 0.75, "tags": 0.75},
        "invalid": 0.0,
    }
    assert counted(hr.JSONFields("y", "p"), [(label, each) for each in answers]) == expected
    texts = [(json.dumps(label), f"```json\n{json.dumps(each)}\n```") for each in answers]
    assert counted(hr.JSONFields("y", "p"), texts) == expected
    assert counted(hr.JSONFields("y", "p"), [(label, each) for (_, each) in texts]) == expected
    broken = [*texts, (texts[0][0], "boot"), (texts[0][0], "[1]"), (texts[0][0], "[" * 100_000)]
    found = counted(hr.JSONFields("y", "p", fields="kind"), broken)
    assert found == {"all": 4 / 7, "fields": {"kind": 4 / 7}, "invalid": 3 / 7}


@pytest.mark.parametrize(
    ("label", "answer", "right"),
    [
        ("2", "2.0", True),
        ("1", "true", False),
        ("[0]", "[false]", False),
        ("null", "0", False),
        ('{"b": null}', "{}", True),
        ('"A"', '"a"', False),
        ("[1, 2]", "[1]", False),
    ],
)
def test_values_are_equal_as_json(label: str, answer: str, right: bool) -> None:
    pair = (f'{{"a": {label}}}', f'{{"a": {answer}}}')
    assert counted(hr.JSONFields("y", "p"), [pair])["all"] == right


def test_rows_with_null_and_groups() -> None:
    rows = [{"k": 1, "y": "x", "p": "x"}, {"k": 2, "y": "x", "p": None}, {"k": 2, "y": "x", "p": "z"}]
    found = hr.from_items(rows).evaluate(by=hr.By("k", hr.TokenF1("y", "p", nan="count")))
    assert found == {"by": {1: 1.0, 2: 0.0}}
    assert found.notes["by"] == "2: 1 row with null or NaN left out"
    with pytest.raises(hr.errors.HeadraceError, match="holds 1 null"):
        hr.from_items(rows).evaluate(f1=hr.TokenF1("y", "p"))
    assert hr.from_items(rows[:1]).evaluate(k=hr.CohenKappa("y", "p")).notes == {
        "k": "all rows are of one class"
    }
    with pytest.raises(hr.errors.HeadraceError, match="'z' is none of classes="):
        hr.from_items(rows[::2]).evaluate(k=hr.CohenKappa("y", "p", classes=["x"]))
