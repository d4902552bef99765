"""Prompts to a model of this machine: the same as its own ``generate`` says, one prompt at a time."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
import torch
from tests.predictors.news import TEXTS, tokenizer

import headrace as hr
from headrace.errors import ArgumentError
from later import Later

transformers = Later("transformers")

CHAT = (
    "{% for m in messages %}{{ m['role'] }} {{ m['content'] }} {% endfor %}"
    "{% if add_generation_prompt %}the{% endif %}"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "tiny"
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=len(tokenizer()), n_positions=40, n_embd=16, n_layer=2, n_head=2, initializer_range=0.5
    )
    config.bos_token_id, config.eos_token_id, config.pad_token_id = 2, 3, 0
    model = transformers.GPT2LMHeadModel(config).eval()
    model.generation_config.eos_token_id = [3, 7, 8, 9]  # so that some answers end
    model.save_pretrained(path)
    words = tokenizer()
    words.chat_template = CHAT
    words.save_pretrained(path)
    return path


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Tiny models are no work for several threads, which only wait for one another."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@functools.cache
def loaded(folder: Path) -> Any:
    tokens = transformers.AutoTokenizer.from_pretrained(folder)
    return tokens, transformers.AutoModelForCausalLM.from_pretrained(folder)


def expected(folder: Path, prompt: str, tokens: int) -> tuple[str, str, int, int]:
    """Return what the model itself says to one prompt."""
    words, model = loaded(folder)
    ids = words(f"user {prompt} the", add_special_tokens=False, return_tensors="pt")["input_ids"]
    made = model.generate(ids, max_new_tokens=tokens, do_sample=False, pad_token_id=0)[
        0, ids.shape[1] :
    ].tolist()
    ended = made[-1] in (3, 7, 8, 9)
    text = words.decode(made[:-1] if ended else made, skip_special_tokens=True)
    return text, "stop" if ended else "length", ids.shape[1], len(made)


def inline(data: Any, **options: Any) -> Any:
    return data.with_options(engine="inline", progress=False, **options)


def test_answers_are_those_of_one_prompt_at_a_time(folder):
    rows = hr.from_items([{"text": text} for text in TEXTS[:12].tolist()])
    model = hr.llm.Transformers(str(folder), batch_size=5)
    asked = rows.prompt("{text}", model.with_options(sampling={"max_tokens": 12}, on_truncated="keep"))
    made = [tuple(row.values())[1:5] for row in inline(asked).take_all()]
    assert made == [expected(folder, text, 12) for text in TEXTS[:12].tolist()]
    assert {reason for _, reason, _, _ in made} == {"stop", "length"}


def test_each_row_may_have_parameters_of_its_own_and_answers_are_kept(folder, tmp_path):
    rows = hr.from_items([{"text": text, "limit": 3 + i % 4} for i, text in enumerate(TEXTS[:12].tolist())])
    model = hr.llm.Transformers(folder, batch_size=5).with_options(
        overrides={"max_tokens": "limit"}, on_truncated="keep", cache=tmp_path
    )
    made = inline(rows.prompt("{text}", model)).take_all()
    assert [tuple(row.values())[2:6] for row in made] == [
        expected(folder, text, 3 + i % 4) for i, text in enumerate(TEXTS[:12].tolist())
    ]
    seconds = [row["answer_latency"] for row in made]
    assert seconds == [row["answer_latency"] for row in inline(rows.prompt("{text}", model)).take_all()]


def test_rows_that_cannot_be_asked_or_were_cut_are_errors_of_their_own(folder, tmp_path):
    rows = hr.from_items([{"id": i, "text": "the vote " * (30 if i == 2 else 2 + i % 3)} for i in range(8)])
    model = hr.llm.Transformers(folder)
    asked = rows.prompt("{text}", model.with_options(sampling={"max_tokens": 8}))
    result = inline(asked, on_error="reject").write_parquet(tmp_path / "out")
    rejected = hr.read_rejected(tmp_path / "out").to_arrow().to_pylist()
    whole = [i for i in range(8) if i != 2 and expected(folder, "the vote " * (2 + i % 3), 8)[1] == "stop"]
    assert (result.rows, result.rejected) == (len(whole), 8 - len(whole))
    assert hr.read_parquet(tmp_path / "out").to_arrow()["id"].to_pylist() == whole if whole else True
    reasons = {row["id"]: str(row) for row in rejected}
    assert "ContextTooLong" in reasons[2] and "the model takes 40" in reasons[2]
    assert all("Truncated" in reason for row, reason in reasons.items() if row != 2)


def test_choices_are_checked_and_repaired(folder):
    model = hr.llm.Transformers(str(folder))
    rows = hr.from_items([{"text": "is back"}])
    asked = rows.prompt(
        "{text}",
        model.with_options(sampling={"max_tokens": 6}, on_truncated="keep", repairs=1),
        schema=["yes"],
    )
    with pytest.warns(UserWarning, match="InvalidAnswer"):
        assert inline(asked, on_error="reject").take_all() == []


def test_what_only_endpoints_have_and_other_models_are_refused(folder, tmp_path):
    model = hr.llm.Transformers(str(folder))
    for words, options in {
        "'temprature'.*Did you mean 'temperature'": {"sampling": {"temprature": 1}},
        "n= is for endpoints": {"n": 2},
        "a number of at least 0": {"sampling": {"temperature": "hot"}},
    }.items():
        with pytest.raises(ArgumentError, match=words):
            model.with_options(**options)
    config = transformers.BertConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=1)
    transformers.BertForSequenceClassification(config).save_pretrained(tmp_path / "bert")
    with pytest.raises(ArgumentError, match="is a BertForSequenceClassification, which goes on with no text"):
        hr.llm.Transformers(str(tmp_path / "bert"))


def test_a_column_of_chats_goes_through_the_chat_template(folder):
    turns = [{"role": "user", "content": "is back"}, {"role": "user", "content": "the vote"}]
    parts = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x/y"}}]}]
    model = hr.llm.Transformers(str(folder))
    words, _ = loaded(folder)
    rendered = words.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    rows = hr.from_items([{"chat": turns}])
    asked = rows.prompt("{chat}", model.with_options(sampling={"max_tokens": 4}, on_truncated="keep"))
    (made,) = inline(asked).take_all()
    assert made["answer_prompt_tokens"] == len(words(rendered, add_special_tokens=False)["input_ids"])
    seen = hr.from_items([{"chat": parts}]).prompt("{chat}", model)
    with pytest.warns(UserWarning, match="asked with text alone"):
        assert inline(seen, on_error="reject").take_all() == []
