"""What a job's language models would use, from a sample."""

from __future__ import annotations

import pytest

import headrace as hr
from headrace.annex.cli.before import _estimate_data, _estimate_text
from headrace.dataset.estimate import Mean, Range, TokenUse, estimate, mean_of
from headrace.testing import FakeLLMServer


def test_tokens_and_their_price_are_those_of_the_answers(monkeypatch, tmp_path):
    """A token is a word here: prompts have two or three, answers one or two more."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    rows = hr.from_items([{"text": f"{i} b" + " c" * (i % 2)} for i in range(100)])
    with FakeLLMServer(lambda prompt: prompt + " x") as server:
        model = hr.llm.Endpoint(server.url, "m", prices={"input": 1.0, "output": 2.0})
        asked = rows.prompt("{text}", model).with_options(engine="inline", progress=False)
        found = estimate(asked, 60)
        assert (
            found.whole and found.read is not None and found.written is not None and found.spent is not None
        )
        assert found.read == Range(250, 250, 250)
        assert found.written == Range(350, 350, 350)
        assert found.spent.likely == pytest.approx((250 + 2 * 350) / 1e6)
        assert _estimate_data(found, None)["tokens_out"] == {"low": 350, "likely": 350, "high": 350}
        assert any(
            line.split() == ["tokens", "250", "in,", "350", "out"]
            for line in _estimate_text(found, None).splitlines()
        )
        dropped = asked.drop_columns(["answer_prompt_tokens"])
        free = rows.prompt("{text}", hr.llm.Endpoint(server.url, "m")).with_options(
            engine="inline", progress=False
        )
        assert estimate(dropped, 60).read == Range(250, 250, 250)
        fewer = asked.filter(lambda row: row["answer"].startswith("1"))
        assert estimate(fewer, 60).read == Range(250, 250, 250)
        vectors = rows.embed("text", model).with_options(engine="inline", progress=False)
        embedded = estimate(vectors, 60)
        assert embedded.read == Range(250, 250, 250) and embedded.written == Range(0, 0, 0)
        assert embedded.spent is not None and embedded.spent.likely == pytest.approx(250 / 1e6)
        priceless = estimate(free, 60)
        assert priceless.spent is None and priceless.read == Range(250, 250, 250)


def test_a_part_gives_a_range():
    assert mean_of([(1, 1.0), (1, 3.0)] * 50) == Mean(2.0, pytest.approx(2 * (100 / 99) ** 0.5 / 10))
    use = TokenUse(Mean(2.0, 0.5), Mean(1.0, 3.0), None)
    assert use.of(Range(900, 1000, 1100), exact=False) == {
        "read": Range(1350, 2000, 2750), "written": Range(0, 1000, 4400), "spent": None
    }  # fmt: skip


@pytest.mark.parametrize("verb", ["prompt", "embed"])
def test_an_estimate_begins_no_batch(verb, monkeypatch, tmp_path):
    """A batch would be of all rows, and be paid for."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    rows = hr.from_items([{"text": f"{i} b"} for i in range(100)])
    spent = {}
    with FakeLLMServer() as server:
        model = hr.llm.Endpoint(server.url, "m", prices={"input": 1.0, "output": 2.0})
        for via in ("requests", "batch", "auto"):
            made = getattr(rows, verb)("{text}" if verb == "prompt" else "text", model, via=via)
            found = estimate(made.with_options(engine="inline", progress=False), 60)
            spent[via] = found.spent
            assert any("cost less" in note for note in found.notes) == (via != "requests")
        assert not server.batches.all
    asked = spent["requests"].likely
    assert spent["batch"].likely == pytest.approx(asked / 2) == spent["batch"].high
    assert (spent["auto"].low, spent["auto"].high) == pytest.approx((asked / 2, asked))
