"""``prompt`` with SGLang's offline engine, played by a module that has what is used of it."""

from __future__ import annotations

import asyncio
import json
import sys
import types
from pathlib import Path
from typing import Any, ClassVar

import pytest

import headrace as hr
from headrace.annex.llm import engine_kinds
from headrace.errors import ArgumentError, EndpointUnavailable, MissingLibrary, ModelUnreadable


class Tokenizer:
    """A token for each word."""

    chat_template = ""
    words: ClassVar[list[str]] = []

    def __call__(self, text: str) -> dict[str, list[int]]:
        for word in text.split():
            if word not in self.words:
                self.words.append(word)
        return {"input_ids": [self.words.index(word) for word in text.split()]}


class Engine:
    """Says each prompt's words backwards, a word each time the loop comes round."""

    made: ClassVar[list[Engine]] = []

    def __init__(self, **arguments: Any) -> None:
        if arguments.get("context_length") == 7:
            raise RuntimeError("no room for a cache")
        self.arguments = arguments
        self.asked: list[dict[str, Any]] = []
        self.aborted: list[str] = []
        self.most = self.at_once = 0
        self.closed = False
        self.loop = asyncio.get_event_loop()
        config = types.SimpleNamespace(context_len=40)
        self.tokenizer_manager = types.SimpleNamespace(model_config=config, abort_request=self.aborted.append)
        Engine.made.append(self)

    async def async_generate(self, prompt: Any = None, sampling_params: Any = None, **given: Any) -> Any:
        assert prompt is None and asyncio.get_running_loop() is self.loop
        words = [Tokenizer.words[token] for token in given["input_ids"]]
        self.asked.append({**sampling_params, "lora_path": given["lora_path"]})
        if sampling_params.get("top_p") == 7:
            raise ValueError("top_p must be in (0, 1]")
        if "stop" in words:
            raise RuntimeError("the scheduler died")
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        for _ in words:
            await asyncio.sleep(0.001)
        self.at_once -= 1
        said = words[::-1][: sampling_params["max_new_tokens"]]
        if "json_schema" in sampling_params:
            said = ['{"stars":', "3}"]
        about = {
            "finish_reason": {"type": "stop" if len(said) >= len(words) else "length"},
            "prompt_tokens": len(words),
            "completion_tokens": len(said),
            "cached_tokens": 1,
        }
        if given["return_logprob"]:
            about["output_token_logprobs"] = [(-0.5, 7, None) for _ in said]
        made = {"text": " ".join(said), "output_ids": [], "meta_info": about}
        return [made] * sampling_params["n"] if "n" in sampling_params else made

    def shutdown(self) -> None:
        self.closed = True


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> list[Engine]:
    class ServerArgs:
        def __init__(self, model_path: str = "", mem_fraction_static: float = 0.8, tp_size: int = 1) -> None:
            pass

    args = types.SimpleNamespace(ServerArgs=ServerArgs)
    monkeypatch.setitem(sys.modules, "sglang", types.SimpleNamespace(Engine=Engine))
    monkeypatch.setitem(sys.modules, "sglang.srt", types.SimpleNamespace(server_args=args))
    monkeypatch.setitem(sys.modules, "sglang.srt.server_args", args)
    monkeypatch.setattr(engine_kinds, "_tokenizer_of", lambda model: Tokenizer())
    monkeypatch.setattr(Engine, "made", [])
    return Engine.made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "tiny"
    path.mkdir()
    (path / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    (path / "model.safetensors").write_bytes(b"weights")
    return path


def inline(data: Any, **options: Any) -> Any:
    return data.with_options(engine="inline", progress=False, **options)


def test_answers_come_in_order_and_many_are_under_way(engines, folder):
    rows = hr.from_items([{"text": "say it again", "id": i} for i in range(90)])
    model = hr.llm.SGLang(folder, max_num_seqs=16, options={"mem_fraction_static": 0.5})
    sampling = {"max_tokens": 3, "seed": 5}
    asked = inline(
        rows.prompt("{text} {id}", model.with_options(sampling=sampling, on_truncated="keep"), num_gpus=2)
    )
    with pytest.warns(UserWarning, match="asks for 2 GPUs"):
        made = asked.to_arrow()
    assert made["answer"].to_pylist() == [f"{i} again it" for i in range(90)]
    assert set(made["answer_finish_reason"].to_pylist()) == {"length"}
    assert set(made["answer_prompt_tokens"].to_pylist()) == {4}
    (engine,) = engines
    assert engine.closed and engine.most > 16
    assert engine.arguments == {
        "model_path": str(folder), "dtype": "auto", "max_running_requests": 16, "disable_radix_cache": False,
        "tp_size": 2, "trust_remote_code": False, "log_level": "error", "mem_fraction_static": 0.5,
    }  # fmt: skip
    said = {"temperature": 0.0, "max_new_tokens": 3, "sampling_seed": 5, "lora_path": None}
    assert engine.asked[0] == said


def test_forms_and_refusals(engines, folder, tmp_path):
    rows = hr.from_items([{"text": "how many"}])
    schema = {"type": "object", "properties": {"stars": {"type": "integer"}}, "required": ["stars"]}
    model = hr.llm.SGLang(folder)
    rated = inline(rows.prompt("{text}", model, schema=schema)).select_columns(["answer"]).take_all()
    assert rated == [{"answer": {"stars": 3}}]
    assert json.loads(engines[0].asked[0]["json_schema"])["required"] == ["stars"]
    two = model.with_options(n=2, sampling={"temperature": 1.0}, columns="logprobs")
    (row,) = inline(rows.prompt("{text}", two)).take_all()
    assert (row["answer"], row["answer_logprobs"]) == (["many how"] * 2, [[-0.5, -0.5]] * 2)
    bad = hr.from_items([{"text": "a b", "p": 7}, {"text": "c d", "p": None}])
    asked = bad.prompt("{text}", model.with_options(overrides={"top_p": "p"}))
    result = inline(asked, on_error="reject").write_parquet(tmp_path / "out")
    assert (result.rows, result.rejected) == (1, 1)
    assert "top_p must be in" in str(hr.read_rejected(tmp_path / "out").to_arrow().to_pylist())
    with pytest.raises(EndpointUnavailable, match="SGLang has stopped: RuntimeError: the scheduler died"):
        inline(hr.from_items([{"text": "stop"}]).prompt("{text}", model)).take_all()
    assert all(engine.closed for engine in engines)


def test_what_it_does_not_take(engines, folder, monkeypatch):
    rows = hr.from_items([{"text": "a"}])
    with pytest.raises(ArgumentError, match=r"'bad_words', which a SGLang model does not take"):
        rows.prompt("{text}", hr.llm.SGLang(folder).with_options(sampling={"bad_words": ["x"]}))
    with pytest.raises(ArgumentError, match=r"'tp_size', and that is not for there: say num_gpus= of prompt"):
        hr.llm.SGLang(folder, options={"tp_size": 2})
    with pytest.raises(ArgumentError, match=r"no such argument. Did you mean 'mem_fraction_static'"):
        inline(rows.prompt("{text}", hr.llm.SGLang(folder, options={"mem_fraction_statik": 1}))).take_all()
    with pytest.raises(ModelUnreadable, match=r"SGLang cannot run the model .* no room for a cache"):
        inline(rows.prompt("{text}", hr.llm.SGLang(folder, max_model_len=7))).take_all()
    assert hr.llm.SGLang(folder).identity()[0] == "sglang"
    monkeypatch.setitem(sys.modules, "sglang", None)
    with pytest.raises(MissingLibrary, match="install the package sglang"):
        inline(rows.prompt("{text}", hr.llm.SGLang(folder))).take_all()


@pytest.mark.llm
def test_a_real_engine_answers(tmp_path):
    """HEADRACE_TEST_SGLANG names the folder of a model; it takes a GPU."""
    import os

    pytest.importorskip("sglang")
    model = os.environ.get("HEADRACE_TEST_SGLANG")
    if not model:
        pytest.skip("HEADRACE_TEST_SGLANG names no model")
    rows = hr.from_items([{"text": f"What is the capital of France? ({i})"} for i in range(64)])
    asked = rows.prompt(
        "{text}",
        hr.llm.SGLang(model).with_options(sampling={"max_tokens": 40}, on_truncated="keep"),
        num_gpus=1,
    )
    made = asked.with_options(progress=False).write_parquet(tmp_path / "out")
    assert made.rows == 64
    assert all(
        "Paris" in answer for answer in hr.read_parquet(tmp_path / "out").to_arrow()["answer"].to_pylist()
    )
