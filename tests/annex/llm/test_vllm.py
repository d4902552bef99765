"""``prompt`` with an engine in the worker, as far as it needs no vLLM: the engine is a simulated one here."""

from __future__ import annotations

import asyncio
import json
import pickle
import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.annex.llm import engine_kinds
from headrace.annex.llm.engines import response_of
from headrace.annex.llm.refusals import ContextTooLong, RequestRefused
from headrace.core.files.artifacts import Artifact
from headrace.errors import (
    ArgumentError,
    EndpointRefused,
    EndpointUnavailable,
    MissingLibrary,
    ModelUnreadable,
)


class Tokenizer:
    """A token for each word."""

    chat_template = ""

    def __init__(self) -> None:
        self.words: list[str] = []

    def __call__(self, text: str) -> dict[str, list[int]]:
        new = dict.fromkeys(text.split()).keys() - set(self.words)
        self.words += sorted(new)
        return {"input_ids": [self.words.index(word) for word in text.split()]}


class Engine:
    """Says each prompt's words backwards; ``places`` and ``room`` are small."""

    places, room = 4, 40

    def __init__(self) -> None:
        self.tokenizer = Tokenizer()
        self.requests: list[Any] = []
        self.ended = self.closed = False

    async def generate(self, request: Any) -> Any:
        if request.sampling.get("top_p") == 7:
            raise RequestRefused("vLLM refuses the request: top_p")
        if request.structure.get("regex") == "bad":
            raise EndpointRefused("vLLM refuses the schema")
        self.requests.append(request)
        words = [self.tokenizer.words[token] for token in request.tokens][::-1]
        if "stop" in words:
            raise EndpointUnavailable("vLLM has stopped: the engine died")
        if request.messages:
            words = [part["type"] for part in request.messages[-1]["content"]]
        if request.structure:
            words = ["yes"] if "regex" in request.structure else ['{"choice":"b"}']
        if request.lora:
            words = [request.lora]
        made = min(len(words), request.sampling.get("max_tokens", 9))
        for _ in range(made):
            await asyncio.sleep(0)
        reason = "stop" if made >= len(words) else "length"
        logprobs = [-0.5 * i for i in range(made)] if request.logprobs else ()
        choices = [(" ".join(words[i:made]), reason, made, logprobs) for i in range(request.n)]
        return response_of(len(request.tokens) or 77, 2, choices), 0.0

    def end(self) -> None:
        self.ended = True

    def close(self) -> None:
        self.closed = self.ended


@pytest.fixture
def engines(monkeypatch):
    made: list[Engine] = []

    def start(model: Any, loop: Any) -> Engine:
        made.append(Engine())
        return made[-1]

    monkeypatch.setattr(engine_kinds, "start_engine", start)
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("models") / "tiny"
    path.mkdir()
    (path / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    (path / "model.safetensors").write_bytes(b"weights")
    return path


def inline(data: Any, **options: Any) -> Any:
    return data.with_options(engine="inline", progress=False, **options)


WORDS = ["the vote", "the match is back", "market", "the market is up again"]


def test_answers_come_in_order_with_their_counts(engines, folder, tmp_path):
    rows = hr.from_items([{"text": WORDS[i % 4], "id": i} for i in range(60)])
    asked = rows.prompt(
        "{text} {id}", hr.llm.VLLM(folder).with_options(sampling={"max_tokens": 3}, on_truncated="keep")
    )
    assert inline(asked).schema().names == [
        "text", "id", "answer", "answer_finish_reason", "answer_prompt_tokens", "answer_completion_tokens",
        "answer_latency",
    ]  # fmt: skip
    assert not engines  # the columns are known without a model
    table = inline(asked).to_arrow()
    (engine,) = engines
    for i, row in enumerate(table.to_pylist()):
        words = f"{WORDS[i % 4]} {i}".split()[::-1]
        assert tuple(row.values())[1:6] == (
            i, " ".join(words[:3]), "stop" if len(words) <= 3 else "length", len(words), min(3, len(words))
        )  # fmt: skip
    assert engine.closed
    assert engine.requests[0].sampling == {"temperature": 0.0, "max_tokens": 3}


def test_rows_without_an_answer_are_errors_of_their_own(engines, folder, tmp_path):
    rows = hr.from_items([{"text": "the vote " * (40 if i == 2 else 1 + i % 3), "id": i} for i in range(6)])
    asked = rows.prompt("{text}", hr.llm.VLLM(folder).with_options(sampling={"max_tokens": 4}))
    result = inline(asked, on_error="reject").write_parquet(tmp_path / "out")
    assert (result.rows, result.rejected) == (4, 2)
    reasons = {row["id"]: str(row) for row in hr.read_rejected(tmp_path / "out").to_arrow().to_pylist()}
    assert "ContextTooLong" in reasons[2] and "the model takes 40" in reasons[2]
    assert "Truncated" in reasons[5] and "cut after 4 tokens" in reasons[5]
    longer = rows.prompt(
        "{text}", hr.llm.VLLM(folder).with_options(sampling={"max_tokens": 4}, on_truncated=9)
    )
    with pytest.warns(UserWarning, match="ContextTooLong"):
        made = inline(longer, on_error="reject").to_arrow().to_pylist()
    assert [row["answer_completion_tokens"] for row in made] == [2, 4, 2, 4, 4 + 6]


def test_several_answers_and_the_probabilities_of_their_tokens(engines, folder):
    rows = hr.from_items([{"text": "the vote is"}])
    drawn = {"temperature": 1.0, "max_tokens": 3}
    model = hr.llm.VLLM(folder).with_options(columns="logprobs")
    (row,) = inline(rows.prompt("{text}", model)).take_all()
    assert (row["answer"], row["answer_logprobs"]) == ("is vote the", [0.0, -0.5, -1.0])
    (row,) = inline(rows.prompt("{text}", model.with_options(n=2, sampling=drawn))).take_all()
    assert (row["answer"], row["answer_completion_tokens"]) == (["is vote the", "vote the"], 6)
    assert row["answer_logprobs"] == [[0.0, -0.5, -1.0]] * 2
    with pytest.raises(ArgumentError, match=r"n=2: without a temperature, .* Say sampling="):
        rows.prompt("{text}", model.with_options(n=2))
    with pytest.raises(ArgumentError, match=r"columns=\['reasoning'\]: these are for endpoints"):
        rows.prompt("{text}", model.with_options(columns=["reasoning", "logprobs"]))


def test_structure_adapters_and_what_is_asked_once(engines, folder, tmp_path):
    adapter = tmp_path / "legal"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text('{"r": 24}')
    (adapter / "adapter_model.safetensors").write_bytes(b"weights")
    model = hr.llm.VLLM(folder, loras={"legal": adapter})
    rows = hr.from_items([{"text": "the vote"}] * 5)
    assert [row["answer"] for row in inline(rows.prompt("{text}", model, schema=["a", "b"])).take_all()] == [
        "b"
    ] * 5
    (request,) = engines[-1].requests  # five rows, one request
    assert request.structure["json"]["properties"]["choice"]["enum"] == ["a", "b"]
    pattern = rows.prompt("{text}", model, schema=re.compile("yes|no"))
    assert inline(pattern).take(1)[0]["answer"] == "yes"
    assert engines[-1].requests[0].structure == {"regex": "yes|no"}
    told = inline(
        rows.prompt("{text}", model.with_options(guided=False, repairs=0), schema=["a", "b"]),
        on_error="reject",
    )
    with pytest.warns(UserWarning, match="InvalidAnswer"):
        assert told.take_all() == []
    assert not engines[-1].requests[0].structure
    assert (
        inline(rows.prompt("{text}", model.with_options(sampling={"lora": "legal"}))).take(1)[0]["answer"]
        == "legal"
    )
    assert engine_kinds.rank_of(model) == 32
    rows = hr.from_items([{"text": "the vote", "adapter": each} for each in ("legal", None, "other")])
    asked = rows.prompt(
        "{text}", model.with_options(overrides={"lora": "adapter"}, sampling={"max_tokens": 9})
    )
    with pytest.warns(UserWarning, match="BadRow.*the adapters here are legal"):
        made = inline(asked, on_error="reject").take_all()
    assert [row["answer"] for row in made] == ["legal", "vote the"]


def test_answers_are_kept_by_the_weights(engines, folder, tmp_path):
    rows = hr.from_items([{"text": text} for text in WORDS])
    cache = str(tmp_path / "answers")
    for model, asked in [
        (hr.llm.VLLM(folder), 4),
        (hr.llm.VLLM(folder, max_num_seqs=2, prefix_caching=False), 0),
        (hr.llm.VLLM(folder, dtype="float32"), 4),
    ]:
        inline(rows.prompt("{text}", model.with_options(cache=cache))).take_all()
        assert len(engines[-1].requests) == asked


def test_weights_are_read_once_where_a_run_is_planned(engines, folder, monkeypatch):
    taken: list[str] = []
    digest = Artifact.digest
    monkeypatch.setattr(Artifact, "digest", lambda self: taken.append(self.path) or digest(self))
    model = hr.llm.VLLM(folder)
    inline(hr.from_items([{"text": "the vote"}]).prompt("{text}", model)).take_all()
    planned = len(taken)
    name = model.model
    travelled = pickle.loads(pickle.dumps(model))
    assert travelled.model == name and len(taken) == planned
    assert hr.llm.VLLM(folder).model == name  # nobody has read it before: it is read
    assert len(taken) == planned + 1


def test_an_engine_that_stops_or_refuses_the_schema_ends_the_run(engines, folder):
    rows = hr.from_items([{"text": text} for text in [*WORDS, "stop"]])
    with pytest.raises(EndpointUnavailable, match="the engine died"):
        inline(rows.prompt("{text}", hr.llm.VLLM(folder)), on_error="reject").take_all()
    with pytest.raises(EndpointRefused, match="refuses the schema"):
        inline(
            rows.prompt("{text}", hr.llm.VLLM(folder), schema=re.compile("bad")), on_error="reject"
        ).take_all()
    with pytest.warns(UserWarning, match="RequestRefused"):
        assert (
            inline(
                rows.prompt("{text}", hr.llm.VLLM(folder).with_options(sampling={"top_p": 7})),
                on_error="reject",
            ).take_all()
            == []
        )


def test_what_makes_no_sense_is_refused(folder, tmp_path):
    rows = hr.from_items([{"text": "x"}])
    for words, call in {
        "'temprature'.*Did you mean 'temperature'": lambda: rows.prompt(
            "{text}", hr.llm.VLLM(folder).with_options(sampling={"temprature": 1})
        ),
        "the adapters here are none": lambda: rows.prompt(
            "{text}", hr.llm.VLLM(folder).with_options(sampling={"lora": "x"})
        ),
        "a whole number of at least 1": lambda: rows.prompt(
            "{text}", hr.llm.VLLM(folder).with_options(sampling={"max_tokens": 0.5})
        ),
        "neither a price nor a key": lambda: rows.prompt(
            "{text}", hr.llm.VLLM(folder).with_options(budget=hr.llm.Budget(run=1.0))
        ),
        "max_model_len=0": lambda: hr.llm.VLLM(folder, max_model_len=0),
        "say max_num_seqs=": lambda: hr.llm.VLLM(folder, options={"max_num_seqs": 3}),
        "code that a model's folder brings": lambda: hr.llm.VLLM(folder, options={"trust_remote_code": True}),
        "is not a folder here": lambda: hr.llm.VLLM("qwen3-8b"),
        "folders by name": lambda: hr.llm.VLLM(folder, loras=["a"]),
    }.items():
        with pytest.raises(ArgumentError, match=words):
            call()
    (tmp_path / "bert").mkdir()
    (tmp_path / "bert" / "config.json").write_text('{"architectures": ["BertForSequenceClassification"]}')
    (tmp_path / "bert" / "model.safetensors").write_bytes(b"weights")
    with pytest.raises(ArgumentError, match="goes on with no text"):
        hr.llm.VLLM(tmp_path / "bert")
    with pytest.raises(ModelUnreadable, match="There is no model at"):
        hr.llm.VLLM("./nowhere/at/all")


def test_a_worker_without_vllm_says_so(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(MissingLibrary, match="install the package vllm"):
        inline(hr.from_items([{"text": "x"}]).prompt("{text}", hr.llm.VLLM(folder))).take_all()


PNG = b"\x89PNG\r\n\x1a\nimage"
SEE = [{"role": "user", "content": [
    {"type": "image_url", "image_url": {"url": "{image}"}}, {"type": "text", "text": "{text}"}
]}]  # fmt: skip


def test_images_go_to_the_engine_as_messages(engines, folder):
    rows = hr.from_items([{"text": f"what is {i}", "image": PNG} for i in range(3)])
    made = inline(rows.prompt(SEE, hr.llm.VLLM(folder))).to_arrow()
    assert made["answer"].to_pylist() == ["image_url text"] * 3
    assert made["answer_prompt_tokens"].to_pylist() == [77] * 3  # as the engine says: it made the tokens
    (engine,) = engines
    url, text = engine.requests[0].messages[0]["content"]
    assert url["image_url"]["url"].startswith("data:image/png;base64,") and text["text"].startswith("what is")
    assert engine.requests[0].sampling == {"temperature": 0.0} and engine.requests[0].tokens == []
    words = [
        {"role": "user", "content": [{"type": "text", "text": "a {text}"}, {"type": "text", "text": "b"}]}
    ]
    made = inline(rows.limit(1).prompt(words, hr.llm.VLLM(folder))).to_arrow()
    assert made["answer"].to_pylist() == ["b 0 is what a"]  # parts that are all text are a text
    with pytest.raises(ArgumentError, match="takes text alone"):
        rows.prompt(SEE, hr.llm.SGLang(folder))


def adapter(**inner: Any) -> Any:
    """Return what asks a vLLM, which is played here."""
    engine = object.__new__(engine_kinds.VLLMEngine)
    engine.inner, engine.room, engine._asked, engine._loras = types.SimpleNamespace(**inner), 20, 0, {}
    engine._asked_with, engine._mixes = set(), False
    engine.model = types.SimpleNamespace(label="tiny", engine="vLLM")
    return engine


def test_what_the_engine_makes_of_images(monkeypatch):
    request = engine_kinds.EngineRequest([], {"temperature": 0.0}, {}, "", [{"role": "user", "content": []}])
    config = types.SimpleNamespace(is_multimodal_model=False)
    prompt = {"prompt_token_ids": [1] * 15, "multi_modal_data": {"image": "it"}}

    async def render(messages: Any, params: Any) -> Any:
        return None, [prompt]

    engine = adapter(model_config=config, renderer=types.SimpleNamespace(render_chat_async=render))
    with pytest.raises(EndpointRefused, match="The model tiny takes no images"):
        asyncio.run(engine._prompt(request))
    monkeypatch.setitem(sys.modules, "vllm", types.SimpleNamespace())
    renderers = types.SimpleNamespace(ChatParams=lambda: "params")
    monkeypatch.setitem(sys.modules, "vllm.renderers", renderers)
    config.is_multimodal_model = True
    assert asyncio.run(engine._prompt(request)) == (prompt, {"temperature": 0.0, "max_tokens": 5})
    prompt["prompt_token_ids"] = [1] * 20
    with pytest.raises(
        ContextTooLong, match="the prompt has 20 tokens and the answer may have 1; the model takes 20"
    ):
        asyncio.run(engine._prompt(request))


def test_what_an_engine_fails_with_is_of_the_row_or_ends_the_run(monkeypatch):
    """An error of one request leaves the others; one of an engine that is dead is of all."""
    output = types.SimpleNamespace(text="yes", finish_reason="stop", token_ids=[1, 2], logprobs=None)
    said = types.SimpleNamespace(outputs=[output], num_cached_tokens=None, prompt_token_ids=[1], metrics=None)

    async def generate(prompt: Any, params: Any, name: str, lora_request: Any) -> Any:
        if params["temperature"]:
            try:
                raise ValueError("the grammar is wrong" if params["structured_outputs"] else "top_p is wrong")
            except ValueError as error:
                raise RuntimeError("generate() failed") from error
        yield said

    params = types.SimpleNamespace(
        RequestOutputKind=types.SimpleNamespace(FINAL_ONLY=2), StructuredOutputsParams=dict
    )
    monkeypatch.setitem(sys.modules, "vllm", types.SimpleNamespace(SamplingParams=dict))
    monkeypatch.setitem(sys.modules, "vllm.sampling_params", params)
    engine = adapter(generate=generate, errored=False)
    made = asyncio.run(engine.generate(engine_kinds.EngineRequest([1], {"temperature": 0.0})))
    assert made == (response_of(1, 0, [("yes", "stop", 2, ())]), 0.0)
    with pytest.raises(RequestRefused, match="vLLM refuses the request: top_p is wrong"):
        asyncio.run(engine.generate(engine_kinds.EngineRequest([1], {"temperature": 9.0})))
    with pytest.raises(EndpointRefused, match="vLLM refuses the schema: the grammar is wrong"):
        asyncio.run(engine.generate(engine_kinds.EngineRequest([1], {"temperature": 9.0}, {"regex": "a"})))
    engine.inner.errored = True
    with pytest.raises(EndpointUnavailable, match="vLLM has stopped: RuntimeError"):
        asyncio.run(engine.generate(engine_kinds.EngineRequest([1], {"temperature": 9.0})))


def test_columns_of_chats_go_to_the_engine(engines, folder):
    turns = [{"role": "user", "content": "a b"}, {"role": "assistant", "content": "c"}]
    parts = [{"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": b"ID3"}}]}]
    model = hr.llm.VLLM(folder)
    made = inline(
        hr.from_items([{"chat": turns}]).prompt("{chat}", model.with_options(system="Rhyme."))
    ).take_all()
    made += inline(hr.from_items([{"chat": parts}]).prompt("{chat}", model)).take_all()
    assert [row["answer"] for row in made] == ["c b a Rhyme.", "input_audio"]
