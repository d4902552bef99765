"""``prompt`` at the HTTP server of a real vLLM: what it says in its own words, and what else its answers have."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from annex.llm.test_real_vllm import MODEL, SEE, images, inline, make_adapter, make_seeing
from headrace.errors import EndpointRefused
from headrace.testing import FakeLLMServer

pytestmark = pytest.mark.llm


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("server")
    make_adapter(folder / "noise")
    options = [
        "--enable-lora",
        "--lora-modules",
        f"noise={folder / 'noise'}",
        "--reasoning-parser",
        "granite",
    ]
    options += ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
    with served(
        MODEL, folder / "log", *options, "--structured-outputs-config", '{"enable_in_reasoning": true}'
    ) as url:
        yield url


@contextlib.contextmanager
def served(model: str, log: Path, *options: str) -> Iterator[str]:
    """Yield the address of a vLLM server that calls the model "small"."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1"]
    command += [
        "--port",
        str(port),
        "--model",
        model,
        "--served-model-name",
        "small",
        "--max-model-len",
        "512",
    ]
    with open(log, "wb") as file:
        server = subprocess.Popen([*command, "--enforce-eager", *options], stdout=file, stderr=file)
    try:
        while not is_up(f"http://127.0.0.1:{port}/health"):
            assert server.poll() is None, log.read_text()[-3000:]
            time.sleep(0.5)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.terminate()
        server.wait()


def is_up(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except (urllib.error.URLError, OSError):
        return False


@pytest.fixture
def model(url: str) -> Any:
    return hr.llm.Endpoint(url, "small").with_options(sampling={"max_tokens": 30}, on_truncated="keep")


CAPITALS = hr.from_items([{"q": f"What is the capital of {each}? One word."} for each in ("France", "Italy")])


def test_several_answers_probabilities_and_stops(model):
    sampling = {"temperature": 1.5, "max_tokens": 6}
    asked = CAPITALS.prompt("{q}", model.with_options(n=3, columns=["logprobs", "model"], sampling=sampling))
    for row in inline(asked).take_all():
        assert len(row["answer"]) == 3 and row["answer_model"] == "small"
        assert sum(map(len, row["answer_logprobs"])) == row["answer_completion_tokens"]
    greedy = model.with_options(sampling={"temperature": 0, "max_tokens": 20})
    (whole,) = inline(CAPITALS.limit(1).prompt("{q}", greedy)).take_all()
    stop = whole["answer"].split()[2]
    stopping = greedy.with_options(sampling={"temperature": 0, "max_tokens": 20, "stop": [stop]})
    (row,) = inline(CAPITALS.limit(1).prompt("{q}", stopping)).take_all()
    assert row["answer"] == whole["answer"].partition(stop)[0] and row["answer_finish_reason"] == "stop"


def test_an_adapter_for_each_row(url):
    rows = hr.from_items(
        [{"q": "What is the capital of France?", "who": who} for who in (None, "noise", None)]
    )
    alone = hr.llm.Endpoint(
        url, "small", max_in_flight=1
    )  # vLLM mixes them up on CPUs, if they are side by side
    greedy = {"temperature": 0, "max_tokens": 12}
    asked = alone.with_options(sampling=greedy, overrides={"model": "who"}, on_truncated="keep")
    one, noise, two = inline(rows.prompt("{q}", asked)).take_all()
    assert one["answer"] == two["answer"] != noise["answer"] and "Paris" in one["answer"]


def test_tools_that_it_calls(model):
    city = {"type": "object", "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}}}
    city |= {"required": ["city"], "additionalProperties": False}
    tool = {"type": "function", "function": {"name": "weather", "parameters": city, "strict": True}}
    choice = {"type": "function", "function": {"name": "weather"}}
    asking = model.with_options(tools=[tool], sampling={"tool_choice": choice, "max_tokens": 60})
    for row in inline(CAPITALS.prompt("{q}", asking)).take_all():
        assert row["answer_tool_calls"], row
        (call,) = json.loads(row["answer_tool_calls"])
        assert call["function"]["name"] == "weather"
        assert json.loads(call["function"]["arguments"])["city"] in ("Paris", "Rome")


def test_what_it_thinks(model):
    form = {"regex": r"Here is my thought process: it is big\. Here is my response: (Paris|Rome)"}
    sampling = {"temperature": 0, "max_tokens": 40, "structured_outputs": form}
    thinking = model.with_options(columns="reasoning", sampling=sampling)
    for row in inline(CAPITALS.prompt("{q}", thinking)).take_all():
        assert row["answer_reasoning"], row
        assert row["answer_reasoning"].strip() == "it is big." and row["answer"].strip() in ("Paris", "Rome")


def test_structure_is_seen_to(model):
    chosen = inline(CAPITALS.prompt("{q}", model.with_options(repairs=0), schema=["zebra", "ox"]))
    assert {row["answer"] for row in chosen.take_all()} <= {"zebra", "ox"}
    pattern = re.compile(r"[0-9]{3}-[a-f]{2}")
    matched = inline(CAPITALS.prompt("{q}", model.with_options(repairs=0), schema=pattern))
    assert all(pattern.fullmatch(row["answer"]) for row in matched.take_all())
    with pytest.raises(EndpointRefused, match="refuses the schema"):
        inline(CAPITALS.prompt("{q}", model, schema=re.compile(r"(?<=a)b"))).take_all()


def test_what_it_refuses_in_its_own_words(model, url, tmp_path):
    long = hr.from_items([{"q": "Tell a long story. " * (300 if i == 1 else 1)} for i in range(3)])
    result = inline(long.prompt("{q}", model), on_error="reject").write_parquet(tmp_path / "long")
    assert (result.rows, result.rejected) == (2, 1)
    assert "ContextTooLong" in str(hr.read_rejected(tmp_path / "long").to_arrow().to_pylist())
    with FakeLLMServer(lambda prompt: "long, indeed") as large:
        other = hr.llm.Endpoint(large.url, "large")
        made = inline(long.prompt("{q}", model.with_options(fallback={"too_long": other}))).take_all()
    assert [row["answer_model"] for row in made] == ["small", "large", "small"]
    with pytest.raises(EndpointRefused, match=r"does not have model='smal'|model='smal'"):
        inline(CAPITALS.prompt("{q}", hr.llm.Endpoint(url, "smal"))).take_all()
    image = hr.from_items([{"image": b"\x89PNG\r\n\x1a\nimage"}])
    parts = [{"type": "image_url", "image_url": {"url": "{image}"}}, {"type": "text", "text": "What is it?"}]
    seen = image.prompt([{"role": "user", "content": parts}], model)
    with pytest.raises(hr.errors.HeadraceError, match=r"multimodal|image"):
        inline(seen).take_all()
    with pytest.raises(EndpointRefused, match="has no batch service"):
        inline(CAPITALS.prompt("{q}", model, via="batch")).write_parquet(tmp_path / "batch")


def test_a_model_sees(tmp_path):
    make_seeing(tmp_path / "seeing")
    with served(str(tmp_path / "seeing"), tmp_path / "log", "--max-num-seqs", "1") as url:
        model = hr.llm.Endpoint(url, "small").with_options(sampling={"max_tokens": 12, "temperature": 0})
        asked = images().prompt(SEE, model.with_options(on_truncated="keep"))
        result = inline(asked, on_error="reject").write_parquet(tmp_path / "out")
    assert (result.rows, result.rejected) == (3, 1)
    one, other, again = hr.read_parquet(tmp_path / "out").take_all()
    assert one["answer"] == again["answer"] != other["answer"] and one["answer_prompt_tokens"] > 16
    (rejected,) = hr.read_rejected(tmp_path / "out").to_arrow().to_pylist()
    assert rejected["_error_type"] == "RequestRefused" and "image" in rejected["_error"]
