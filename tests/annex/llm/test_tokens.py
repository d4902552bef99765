"""What a run says of tokens: exact for the rows that are committed, and for what was paid."""

from __future__ import annotations

import contextlib

import pytest

import headrace as hr
from headrace.annex.report.follow import Follower
from headrace.core.answered import Answered, Tokens, answered_from, both
from headrace.core.events import ModelAsked, RunStarted, ShardCommitted
from headrace.core.work import Ledger, Timings
from headrace.errors import RequirementNotMet, SpendingCapReached
from headrace.observers.pace import ModelUse
from headrace.observers.prometheus import families
from headrace.observers.run_state import RunState
from headrace.observers.words import model_data, progress_line, progress_object, summary_lines
from headrace.testing import FakeLLMServer


def test_the_run_says_what_was_answered_and_what_was_paid(tmp_path):
    words = lambda prompt: " ".join(["w"] * int(prompt.split()[-1]))  # noqa: E731
    rows = hr.from_items([{"n": n} for n in (0, 1, 2, 3, 4, 4, 4, 9, 20, 50)])  # "": no text
    with FakeLLMServer(words, too_many=0.1, seed=3) as server:
        model = hr.llm.Endpoint(
            server.url, "m", prices={"input": 1e6, "output": 2e6}, requests_per_minute=60_000
        )
        asked = rows.prompt(
            "say {n}", model.with_options(sampling={"max_tokens": 10, "temperature": 0}, on_truncated=30)
        )
        options = {"engine": "inline", "progress": False, "on_error": "reject"}
        result = asked.with_options(**options).write_parquet(tmp_path / "out")
    assert (result.rows, result.rejected) == (9, 1)
    tokens = [0, 1, 2, 3, 4, 4, 4, 9, 10 + 20, 10 + 30]
    told = Follower(tmp_path / "out").poll().data()["language_model"]
    assert (told["rows"], told["rows_failed"]) == (10, 1)
    assert (told["truncated"], told["asked_longer"], told["repaired"]) == (1, 1, 0)
    assert told["completion_tokens"] == sum(tokens) and told["prompt_tokens"] == 2 * (10 + 2)
    assert told["lengths"] == [1, 1, 2, 3, 1, 1, 1]
    paid = told["paid"]
    assert paid["answers"] == 8 + 2 == server.outcomes["answered"]  # equal ones once, two were asked for more
    assert paid["completion_tokens"] == sum(tokens) - 2 * 4 and paid["unanswered"] == 0
    assert paid["cost"] == pytest.approx(2 * 10 + 2 * paid["completion_tokens"])
    assert told["tried_again"] == ({"RateLimited": server.outcomes["429"]} if server.outcomes["429"] else {})
    page = (tmp_path / "out" / "_headrace" / "current").read_text().strip()
    html = (tmp_path / "out" / "_headrace" / page / "report.html").read_text()
    assert "Language model" in html and "How long answers are" in html and "16 to 31" in html


def test_a_requirement_of_the_cost_is_asked_again_of_what_was_paid(tmp_path):
    with FakeLLMServer(lambda prompt: "yes") as server:
        model = hr.llm.Endpoint(server.url, "m", prices={"input": 1e6, "output": 0})
        asked = hr.from_items([{"n": n} for n in range(4)]).prompt("{n}", model).require(cost=hr.at_most(0))
        for _ in range(2):
            with pytest.raises(RequirementNotMet) as raised:
                asked.with_options(engine="inline", progress=False).write_parquet(tmp_path / "out")
            assert [each.found for each in raised.value.figures] == [4]
    hr.publish(tmp_path / "out", because="it was worth it")
    assert hr.runs(tmp_path).to_arrow()["cost"].to_pylist() == [4.0]


def test_answers_that_were_repaired_are_told(tmp_path):
    def said(prompt):
        return "yes" if "no" in prompt else "no"

    rows = hr.from_items([{"n": n} for n in range(6)])
    with FakeLLMServer(said) as server:
        asked = rows.prompt(
            "{n}", hr.llm.Endpoint(server.url, "m").with_options(repairs=1), schema=["yes", "maybe"]
        )
        options = {"engine": "inline", "progress": False}
        asked.with_options(**options).write_parquet(tmp_path / "out")
    told = Follower(tmp_path / "out").poll().data()["language_model"]
    assert (told["rows"], told["rows_failed"], told["repaired"], told["truncated"]) == (6, 0, 6, 0)
    assert told["paid"]["answers"] == 12


def test_answers_that_others_follow_are_kept_too(tmp_path):
    def said(prompt):
        return "yes" if "no" in prompt else "no"

    rows = hr.from_items([{"n": n} for n in range(10, 50)])
    options = {"engine": "inline", "progress": False}
    with FakeLLMServer(said) as server:
        model = hr.llm.Endpoint(server.url, "m", max_in_flight=2)
        for cap in (60, None):
            asked = rows.prompt(
                "{n}",
                model.with_options(
                    sampling={"max_tokens": 1},
                    on_truncated="keep",
                    budget=cap and hr.llm.Budget(run_tokens=cap),
                ),
                schema=["yes", "maybe"],
            )
            with contextlib.nullcontext() if cap is None else pytest.raises(SpendingCapReached):
                asked.with_options(**options).write_parquet(tmp_path / "out")
    assert 80 <= len(server.requests) <= 80 + 2  # what was under way when the cap was reached
    told = Follower(tmp_path / "out").poll().data()["language_model"]
    assert (told["rows"], told["repaired"], told["completion_tokens"]) == (40, 40, 80)
    assert told["paid"]["answers"] == 80
    assert told["prompt_tokens"] == told["paid"]["prompt_tokens"]


def test_rows_of_a_stage_before_the_last_count_too(tmp_path):
    rows = hr.from_items([{"n": n} for n in range(40)])
    with FakeLLMServer() as server:
        model = hr.llm.Endpoint(server.url, "m")
        asked = rows.prompt("a b {n}", model, num_cpus=0.5).map_batches(lambda each: each, num_cpus=0.25)
        options = {"workers": 1, "progress": False}
        asked.with_options(**options).write_parquet(tmp_path / "out")
    told = Follower(tmp_path / "out").poll().data()["language_model"]
    assert (told["rows"], told["prompt_tokens"], told["completion_tokens"]) == (40, 120, 120)
    assert told["paid"]["answers"] == 40


def test_two_prompts_of_a_run_are_paid_for_once(tmp_path):
    rows = hr.from_items([{"n": n} for n in range(20)])
    with FakeLLMServer() as server:
        model = hr.llm.Endpoint(server.url, "m", prices={"input": 1e6, "output": 1e6})
        other = hr.llm.Endpoint(server.url, "other", prices={"input": 1e6, "output": 1e6})
        asked = rows.prompt("a {n}", model).prompt("then {answer}", other, output="second")
        asked.with_options(engine="inline", progress=False).write_parquet(tmp_path / "out")
    told = Follower(tmp_path / "out").poll().data()["language_model"]
    assert (told["rows"], told["prompt_tokens"], told["completion_tokens"]) == (40, 20 * 5, 20 * 5)
    paid = told["paid"]
    assert paid["answers"] == 40 and paid["prompt_tokens"] == paid["completion_tokens"] == 20 * 5
    assert paid["cost"] == 200 and paid["unanswered"] == 0
    first, second = paid["parts"]
    assert first["what"].startswith("m, prompt ") and second["what"].startswith("other, prompt ")
    assert (first["answers"], first["prompt_tokens"], first["cost"]) == (20, 40, 80.0)
    assert (second["answers"], second["prompt_tokens"], second["cost"]) == (20, 60, 120.0)


def event(session, place, own, total, *, given=10, taken=10, sent=0, ended=0):
    return ModelAsked(
        0, "prompt(m)", session, own, given, taken, place, total, sent or total.answers, ended or total.answers,
        priced=True,
    )  # fmt: skip


def test_workers_of_one_place_are_not_counted_twice_and_drivers_go_on():
    state = RunState()
    state.add(RunStarted("r", "out", 4, 0, 0, 100, 2), at=0.0)
    first, second = Tokens(10, 100, 50, 1.0), Tokens(5, 50, 20, 0.5)
    state.add(event("a", "here", first, first), at=10.0)
    state.add(event("b", "here", second, first + second), at=10.0)
    assert state.models.paid().total == first + second
    state.add(event("c", "there", second, second), at=10.0)  # another machine
    assert state.models.paid().total == first + second + second
    state.add(event("a", "here", first, first), at=10.5)  # late: its place has counted more since
    assert state.models.paid().total.answers == 20
    done = Answered(25, 0, 250, 100, lengths=(0, 0, 25))
    state.add(ShardCommitted(0, 0, Ledger(25, 25, answered=done), 10, Timings()), at=11.0)
    assert state.models.answered == done

    # Killed; another driver goes on with what was committed. What it is told of the place is true.
    state.add(RunStarted("r", "out", 4, 1, 25, 100, 2, answered_done=done), at=20.0)
    assert state.models.answered == done and state.models.own == Tokens()
    third = Tokens(4, 40, 10, 0.4)
    state.add(event("d", "here", third, Tokens(21, 210, 90, 2.1), sent=25, ended=22), at=30.0)
    assert state.models.paid().total.answers == 26 and state.models.own == third
    assert state.models.paid().unanswered == 0 and state.models.paid(ended=True).unanswered == 3
    state.add(ShardCommitted(1, 0, Ledger(25, 25, answered=done), 10, Timings()), at=31.0)
    assert state.models.answered == both(done, done)


def test_the_cost_in_the_end_follows_from_the_rows_that_are_done():
    use = ModelUse()
    spent = Tokens(60, 600, 60, 6.0)
    use.begin(None)
    use.add(event("a", "here", spent, spent, given=60, taken=40), at=10.0, ready=0.0)
    assert use.expected_cost(0.4, 0.0) == pytest.approx(10.0)  # 40 rows have cost 4
    assert use.expected_cost(0.001, 0.0) is None and use.expected_cost(None, 0.0) is None
    use.begin(None)  # killed, with 3.0 for what is committed and 3.0 that is kept
    again = Tokens(10, 100, 10, 1.0)
    use.add(event("b", "here", again, spent + again, given=10, taken=10), at=20.0, ready=15.0)
    assert use.expected_cost(0.5, 0.4) == pytest.approx(6.0 + 1.0 * 0.6 / 0.1)


def test_the_same_figures_stand_in_the_line_the_object_and_for_prometheus():
    state = RunState()
    state.add(RunStarted("r", "out", 4, 0, 0, 100, 2), at=0.0)
    spent = Tokens(50, 1000, 500, 2.5)
    state.add(
        ShardCommitted(0, 0, Ledger(50, 50, answered=Answered(50, 0, 1000, 500, 250)), 10, Timings()), at=9.0
    )
    state.add(event("a", "here", spent, spent, given=50, taken=50), at=10.0)
    state.tick(at=10.0)
    line = progress_line(state, 10.0)
    assert "tokens/s in" in line and "cost 2.50 of about 5.00" in line
    told = progress_object(state, 10.0)["language_model"]
    assert told == model_data(state, 10.0, state.models.answered, ended=False)
    assert told["paid"]["cost_expected"] == pytest.approx(5.0) and told["cached_tokens"] == 250
    pytest.importorskip("prometheus_client")
    samples = {
        (each.name, *each.labels.values()): each.value
        for family in families(state)
        for each in family.samples
    }
    assert samples["headrace_model_tokens_total", "in"] == 1000
    assert samples["headrace_model_cost_total",] == 2.5 and samples["headrace_model_cost_expected",] == 5.0
    assert samples["headrace_model_rows", "rows"] == 50 and samples["headrace_model_cached_tokens",] == 250


def test_counts_from_elsewhere_are_checked():
    found = Answered(3, 1, 30, 10, 5, 1, 0, 0, 2.5, 0.5, 2, (0, 1, 2), 1)
    assert answered_from(found.data()) == found
    for wrong in (
        {},
        {"rows": -1, "lengths": []},
        {"rows": "x", "lengths": []},
        {"lengths": "x"},
        {"lengths": [None]},
    ):
        assert answered_from(wrong) is None
    assert answered_from({"rows": 2, "lengths": [2], "unheard": "of"}) == Answered(2, lengths=(2,))
    assert summary_lines(None, None) == []
