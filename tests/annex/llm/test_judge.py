"""A judge asks once for each row, counts as scikit-learn does, and a pair has to be judged alike in both orders."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from forked import Forked
from headrace.dataset.estimate import estimate
from headrace.testing import AccumulatorContract, FakeLLMServer
from later import Later

sk = Later("sklearn.metrics")
MODEL = hr.llm.Endpoint("http://localhost:1/v1", "m")


def said(verdict: Any) -> str:
    return json.dumps({"reason": "because", "verdict": verdict})


def number(prompt: str) -> int:
    return int(prompt.split()[0])


def test_verdicts_and_labels() -> None:
    people = [None if i % 5 == 4 else 1 + i * 7 % 5 for i in range(40)]
    rows = [{"i": i, "people": label, "half": i % 2} for i, label in enumerate(people)]
    verdicts = [1 + i % 5 for i in range(40)]
    with FakeLLMServer(lambda prompt: said(verdicts[number(prompt)])) as server:
        model = hr.llm.Endpoint(server.url, "m")
        judge = hr.llm.Judge("{i} is how good?", model, label="people", weighting="quadratic")
        data = hr.from_items(rows).with_options(engine="inline", progress=False)
        found = data.evaluate(all=judge, halves=hr.By("half", judge), mean=hr.Count("judge"))
        assert len(server.requests) == 40  # both metrics have the same judge
    body = server.requests[0]
    assert body["temperature"] == 0 and "from 1 (worst) to 5 (best)" in body["messages"][-1]["content"]
    pairs = [(label, verdict) for label, verdict in zip(people, verdicts, strict=True) if label is not None]
    expected = sk.cohen_kappa_score(*zip(*pairs, strict=True), labels=range(1, 6), weights="quadratic")
    assert found["all"] == {
        "shares": dict.fromkeys(range(1, 6), 0.2),
        "mean": 3.0,
        "agreement": sum(a == b for a, b in pairs) / len(pairs),
        "kappa": pytest.approx(expected),
    }
    assert found.notes["all"] == "32 of 40 rows have a label"
    assert found["halves"][0]["mean"] == sum(verdicts[::2]) / 20


@pytest.mark.parametrize("bias", [True, False])
def test_a_pair_is_asked_in_both_orders(bias: bool) -> None:
    """Without a bias, the longer answer is the better one; with it, the first."""

    def judge(prompt: str) -> str:
        parts = prompt.split("\n\n")
        one, other = (part.split("\n", 1)[1] for part in parts if part.startswith("The "))
        first = bias or len(one) > len(other)
        return said("first" if first else "tie" if len(one) == len(other) else "second")

    lengths = [(1, 2), (2, 1), (3, 3), (5, 1), (4, 4), (6, 2)]
    rows = [
        {"q": str(i), "old": "x" * a, "new": "y" * b, "people": "old" if a > b else "new"}
        for i, (a, b) in enumerate(lengths)
    ]
    with FakeLLMServer(judge) as server:
        model = hr.llm.Endpoint(server.url, "m")
        metric = hr.llm.Judge("Which answers {q}?", model, pair=("old", "new"), label="people")
        data = hr.from_items(rows).accumulate(better=metric)
        made = data.with_options(engine="inline", progress=False).take_all()
        found = data.with_options(engine="inline", progress=False).evaluate()["better"]
        assert len(server.requests) == 2 * 2 * len(rows)
    better = ["tie" if bias or a == b else "old" if a > b else "new" for a, b in lengths]
    assert [row["judge"]["verdict"] for row in made] == better
    tokens = {
        f"{name}_{kind}_tokens" for name in ("judge", "judge_swapped") for kind in ("prompt", "completion")
    }
    assert set(made[0]) == {"q", "old", "new", "people", "judge", *tokens}
    assert set(made[0]["judge"]) == {"verdict", "consistent", "reason", "reason_swapped"}
    assert found["consistent"] == (0.0 if bias else 1.0)
    assert found["shares"] == {each: better.count(each) / 6 for each in ("old", "tie", "new")}
    expected = sk.cohen_kappa_score([row["people"] for row in rows], better)
    assert found["kappa"] == pytest.approx(expected)


def test_an_output_is_published_only_with_good_answers(tmp_path: Any) -> None:
    with FakeLLMServer(lambda prompt: said("wrong" if number(prompt) % 4 == 0 else "right")) as server:
        model = hr.llm.Endpoint(server.url, "m")
        judge = hr.llm.Judge("{id} is right?", model, scale=["wrong", "right"])
        data = hr.range(8).accumulate(quality=judge)
        data = data.with_options(engine="inline", progress=False)
        with pytest.raises(hr.errors.RequirementNotMet, match=r"quality\.shares\.right is 0\.75"):
            data.require({"quality.shares.right": hr.at_least(0.8)}).write_parquet(tmp_path / "out")
        data.require({"quality.shares.right": hr.at_least(0.7)}).write_parquet(tmp_path / "out")
        assert len(server.requests) == 8
    table = hr.read_parquet(tmp_path / "out").to_arrow()
    assert table["judge"].to_pylist()[0] == {"reason": "because", "verdict": "wrong"}


def test_an_estimate_counts_the_judge() -> None:
    with FakeLLMServer(lambda prompt: said(5)) as server:
        judge = hr.llm.Judge("{id} is how good?", hr.llm.Endpoint(server.url, "m"))
        data = hr.range(3).accumulate(quality=judge).with_options(engine="inline", progress=False)
        found = estimate(data, 60)
    assert found.written is not None and found.written.likely == 3 * len(said(5).split())


def test_rows_without_a_verdict() -> None:
    with FakeLLMServer(lambda prompt: said(5) if prompt[0] in "02" else "no JSON") as server:
        judge = hr.llm.Judge("{id} is how good?", hr.llm.Endpoint(server.url, "m"))
        data = hr.range(3).with_options(engine="inline", progress=False, on_error="null")
        found = data.evaluate(quality=judge)
    assert found["quality"]["mean"] == 5.0
    assert found.notes["quality"] == "1 without a verdict left out"


JOB = """
import sys, headrace as hr
rows = hr.from_items([{"i": i} for i in range(200)])
model = hr.llm.Endpoint(sys.argv[1], "m", max_in_flight=8)
judged = rows.prompt("{i} asked", model).accumulate(it=hr.llm.Judge("{i} judged", model, scale=(0, 9)))
judged.with_options(engine="local", workers=1, progress=False).write_parquet(sys.argv[2])
"""


@pytest.mark.local
def test_a_killed_job_judges_again_only_what_was_under_way(tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    killed_at = [150, 290]
    jobs: list[Forked] = []

    def answer(prompt: str) -> str:
        if killed_at and len(server.requests) >= killed_at[0]:
            killed_at.pop(0)
            os.killpg(jobs[-1].pid, signal.SIGKILL)
        return said(number(prompt) % 10) if "judged" in prompt else prompt

    with FakeLLMServer(answer, latency=0.002) as server:
        for expected in (-signal.SIGKILL, -signal.SIGKILL, 0):
            command = [sys.executable, "-c", JOB, server.url, str(tmp_path / "out")]
            jobs.append(Forked(command, workers=True, start_new_session=True))
            assert jobs[-1].wait() == expected
    asked = Counter(each["messages"][0]["content"].split("\n")[0] for each in server.requests)
    assert set(asked) == {f"{i} {verb}" for i in range(200) for verb in ("asked", "judged")}
    assert sum(asked.values()) - 400 <= 2 * 2 * 8  # both steps may have eight under way
    quality = json.loads((tmp_path / "out" / "_SUCCESS").read_text())["metrics"]["it"]
    assert quality["mean"] == 4.5


def test_prompts_in_a_row_keep_their_answers() -> None:
    data = hr.from_items([{"a": "x"}]).prompt("{a}", MODEL).prompt("{answer}", MODEL, output="b")
    assert [step.keeps_answers for step in data._plan.steps] == [True, True]
    assert data.schema().names[-1] == "b_latency"


class TestContract(AccumulatorContract):
    def make(self) -> Any:
        return hr.llm.Judge("{q}?", MODEL, pair=("a", "b"), label="people")

    def batches(self) -> list[pa.RecordBatch]:
        verdicts = ["a", "b", "tie", None, "a"]
        rows = [
            {
                "judge": {"verdict": each, "consistent": each and i % 2 > 0},
                "people": verdicts[(i + j) % 5],
            }
            for j in range(4)
            for i, each in enumerate(verdicts)
        ]
        whole = pa.RecordBatch.from_pylist(rows)
        return [whole.slice(at, 5) for at in range(0, 20, 5)]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"scale": (5, 1)}, "two whole numbers, the worst and the best"),
        ({"scale": ["good", "good"]}, "different texts"),
        ({"scale": "good"}, "two whole numbers"),
        ({"pair": ("a", "a")}, "names of two columns"),
        ({"pair": "ab"}, "names of two columns"),
        ({"pair": ("a", "tie")}, "'tie' is a verdict"),
        ({"pair": ("a", "b"), "scale": (1, 2)}, "one of the two, or a tie"),
        ({"weighting": "square"}, "weighting='square'"),
        ({"lable": "y"}, "label"),
        ({"rubric": "no column"}, "names no column"),
        ({"rubric": ""}, "the rubric is a text"),
        ({"model": MODEL.with_options(n=2)}, "a single answer"),
        ({"model": "gpt"}, "the model is str"),
    ],
)
def test_what_makes_no_judge(more: dict[str, Any], message: str) -> None:
    with pytest.raises(hr.errors.ArgumentError, match=message):
        hr.llm.Judge(**{"rubric": "{q}?", "model": MODEL, **more})


def test_a_label_that_is_no_verdict_is_refused() -> None:
    judge = hr.llm.Judge("{q}?", MODEL, label="people")
    batch = pa.RecordBatch.from_pylist([{"judge": {"reason": "", "verdict": 1}, "people": 7}])
    with pytest.raises(hr.errors.BadInput, match="holds 7, which is no verdict: 1, 2, 3, 4, 5"):
        judge.update(batch)
