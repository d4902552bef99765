"""``prompt`` with a real vLLM and a real model: `make test-llm`. Each run has an engine of its own."""

from __future__ import annotations

import glob
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.errors import ArgumentError, EndpointRefused, ModelUnreadable

pytestmark = pytest.mark.llm

MODEL = os.environ.get("HEADRACE_TEST_LLM", "")
QUESTIONS = [
    ("What is the capital of France? One word.", "Paris"),
    ("What is the capital of Italy? One word.", "Rome"),
    ("What is the capital of Spain? One word.", "Madrid"),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    adapter = tmp_path_factory.mktemp("adapters") / "noise"
    make_adapter(adapter)
    return hr.llm.VLLM(MODEL, max_model_len=512, options={"enforce_eager": True}, loras={"noise": adapter})


def make_adapter(folder: Path) -> None:
    """Save a LoRA adapter, as peft writes it, that changes what the model says."""
    import torch
    from safetensors.torch import save_file

    config = json.loads(Path(MODEL, "config.json").read_text())
    width, layers = config["hidden_size"], config["num_hidden_layers"]
    torch.manual_seed(0)
    weights = {}
    for layer in range(layers):
        name = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        weights[f"{name}.lora_A.weight"] = torch.randn(8, width)
        weights[f"{name}.lora_B.weight"] = torch.randn(width, 8)
    folder.mkdir()
    save_file(weights, folder / "adapter_model.safetensors")
    described = {
        "peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj"], "bias": "none",
        "base_model_name_or_path": MODEL,
    }  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(described))


def make_seeing(folder: Path) -> None:
    """Save a small model of random weights that sees. vLLM has BLIP-2 without torchvision, unlike most others."""
    import torch
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    tokenizer.chat_template = "{% for each in messages %}{{ each['content'] }}{% endfor %}"
    same = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    vision = transformers.Blip2VisionConfig(image_size=56, intermediate_size=128, **same)
    former = transformers.Blip2QFormerConfig(
        vocab_size=64, encoder_hidden_size=64, cross_attention_frequency=1, intermediate_size=128, **same
    )
    text = transformers.OPTConfig(
        vocab_size=len(tokenizer), word_embed_proj_dim=64, ffn_dim=128, max_position_embeddings=1024,
        bos_token_id=1, eos_token_id=tokenizer.eos_token_id, pad_token_id=0, **same,
    )  # fmt: skip
    config = transformers.Blip2Config(
        vision_config=vision.to_dict(), qformer_config=former.to_dict(), text_config=text.to_dict(),
        num_query_tokens=16, image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
    )  # fmt: skip
    torch.manual_seed(0)
    transformers.Blip2ForConditionalGeneration(config).to(torch.bfloat16).save_pretrained(folder)
    images = transformers.BlipImageProcessorPil(size={"height": 56, "width": 56})
    transformers.Blip2Processor(images, tokenizer, num_query_tokens=16).save_pretrained(folder)


SEE = [
    {
        "role": "user",
        "content": [
            {"type": "image_url", "image_url": {"url": "{image}"}},
            {"type": "text", "text": "What is it?"},
        ],
    }
]


def images() -> Any:
    """Return rows with an image of noise, another, the first again, and half of it."""
    import numpy as np
    from PIL import Image

    files = []
    for seed in (1, 2):
        file = io.BytesIO()
        pixels = np.random.default_rng(seed).integers(0, 256, (60, 80, 3), np.uint8)
        Image.fromarray(pixels).save(file, "PNG")
        files.append(file.getvalue())
    return hr.from_items([{"image": each} for each in (*files, files[0], files[0][:5000])])


def test_a_model_sees(tmp_path_factory, tmp_path):
    folder = tmp_path_factory.mktemp("models") / "seeing"
    make_seeing(folder)
    model = hr.llm.VLLM(folder, max_model_len=512, max_num_seqs=1, options={"enforce_eager": True})
    seeing = model.with_options(sampling={"max_tokens": 12}, on_truncated="keep")
    result = inline(images().prompt(SEE, seeing), on_error="reject").write_parquet(tmp_path / "out")
    assert (result.rows, result.rejected) == (3, 1)
    one, other, again = hr.read_parquet(tmp_path / "out").take_all()
    assert one["answer"] == again["answer"] != other["answer"]
    assert one["answer_prompt_tokens"] == other["answer_prompt_tokens"] > 16  # of the image, and of the words
    (rejected,) = hr.read_rejected(tmp_path / "out").to_arrow().to_pylist()
    assert rejected["_error_type"] == "RequestRefused" and "image" in rejected["_error"]


def inline(data: Any, **options: Any) -> Any:
    return data.with_options(engine="inline", progress=False, **options)


def test_answers_are_right_and_in_order():
    model = hr.llm.VLLM(MODEL, max_model_len=512, max_num_seqs=1, options={"enforce_eager": True})
    rows = hr.from_items([{"q": QUESTIONS[i % 3][0]} for i in range(24)])
    system = "You are a helpful teacher of geography. " * 40  # a beginning of some blocks of the cache
    asked = rows.prompt(
        "{q}",
        model.with_options(system=system, sampling={"max_tokens": 40}, on_truncated="keep", keep_raw=True),
    )
    made = inline(asked).take_all()
    for i, row in enumerate(made):  # 24 rows, and three requests
        assert QUESTIONS[i % 3][1] in row["answer"], row
        assert row["answer_finish_reason"] in ("stop", "length")
        assert 1 <= row["answer_completion_tokens"] <= 40 and row["answer_prompt_tokens"] > 300
    usage = [json.loads(row["answer_raw"])["usage"] for row in made[:3]]
    cached = sorted(each["prompt_tokens_details"]["cached_tokens"] for each in usage)
    assert cached[0] < 256 <= cached[1]  # one after the other, the first has nothing


def test_rows_that_are_too_long_or_were_cut(model, tmp_path):
    rows = hr.from_items([{"q": "Tell a long story. " * (200 if i == 1 else 1), "id": i} for i in range(3)])
    asked = rows.prompt("{q} {id}", model.with_options(sampling={"max_tokens": 5}))
    result = inline(asked, on_error="reject").write_parquet(tmp_path / "out")
    reasons = {row["id"]: str(row) for row in hr.read_rejected(tmp_path / "out").to_arrow().to_pylist()}
    assert (result.rows, result.rejected) == (0, 3)
    assert "ContextTooLong" in reasons[1] and "the model takes 512" in reasons[1]
    assert all("cut after 5 tokens" in reasons[i] for i in (0, 2))


def test_structure_is_seen_to(model):
    rows = hr.from_items([{"q": f"Say something about {word}."} for word in ("rain", "wood", "iron")])
    chosen = inline(rows.prompt("{q}", model.with_options(repairs=0), schema=["zebra", "ox"])).take_all()
    assert {row["answer"] for row in chosen} <= {"zebra", "ox"}
    matched = inline(
        rows.prompt("{q}", model.with_options(repairs=0), schema=re.compile(r"[0-9]{3}-[a-f]{2}"))
    ).take_all()
    assert all(re.fullmatch(r"[0-9]{3}-[a-f]{2}", row["answer"]) for row in matched)
    schema = {
        "type": "object",
        "properties": {
            "colour": {"enum": ["red", "blue"]},
            "count": {"type": "integer", "minimum": 0, "maximum": 9},
        },
        "required": ["colour", "count"],
        "additionalProperties": False,
    }
    typed = inline(
        rows.prompt("{q}", model.with_options(sampling={"max_tokens": 60}, repairs=0), schema=schema)
    ).take_all()
    assert all(
        row["answer"]["colour"] in ("red", "blue") and 0 <= row["answer"]["count"] <= 9 for row in typed
    )
    with pytest.raises(EndpointRefused, match="refuses the schema"):
        inline(rows.prompt("{q}", model, schema=re.compile(r"(?<=a)b"))).take_all()


def test_a_model_that_does_not_see_says_so(model):
    rows = hr.from_items([{"image": b"\x89PNG\r\n\x1a\nimage"}])
    parts = [{"type": "image_url", "image_url": {"url": "{image}"}}, {"type": "text", "text": "What is it?"}]
    with pytest.raises(EndpointRefused, match="takes no images"):
        rows.prompt([{"role": "user", "content": parts}], model).with_options(engine="inline").take_all()


def test_several_answers_with_the_probabilities_of_their_tokens(model):
    rows = hr.from_items([{"q": "Count: one, two, three, four, five, six."}])
    sampling = {"temperature": 1.5, "max_tokens": 8}
    several = model.with_options(sampling=sampling, n=3, columns="logprobs", on_truncated="keep")
    (row,) = inline(rows.prompt("{q}", several)).take_all()
    assert len(set(row["answer"])) == 3
    assert sum(map(len, row["answer_logprobs"])) == row["answer_completion_tokens"]
    assert all(each <= 0 for some in row["answer_logprobs"] for each in some)


def test_an_adapter_for_each_row_and_where_answers_stop(model, tmp_path):
    make_adapter(tmp_path / "noise")
    alone = hr.llm.VLLM(
        MODEL,
        max_model_len=512,
        max_num_seqs=1,
        options={"enforce_eager": True},
        loras={"noise": tmp_path / "noise"},
    )
    rows = hr.from_items([{"q": QUESTIONS[0][0], "who": who} for who in (None, "noise", None)])
    sampling = {"stop": ["Par", "is"], "max_tokens": 20}
    asked = alone.with_options(sampling=sampling, overrides={"lora": "who"}, on_truncated="keep")
    plain, noise, again = inline(rows.prompt("{q}", asked)).take_all()
    assert plain["answer"] == again["answer"] != noise["answer"]
    assert plain["answer_finish_reason"] == "stop" and "Paris" not in plain["answer"]
    with pytest.raises(EndpointRefused, match="vLLM on CPUs mixes up rows"):
        inline(rows.prompt("{q}", model.with_options(overrides={"lora": "who"}))).take_all()


JOB = """
import sys, headrace as hr
if __name__ == "__main__":
    rows = hr.from_items([{"i": i} for i in range(4)])
    model = hr.llm.VLLM(sys.argv[1], max_model_len=512, options={"enforce_eager": True})
    sampling = {"max_tokens": int(sys.argv[3]), "ignore_eos": True}
    asked = rows.prompt(
        "Count from {i} to a million.", model.with_options(sampling=sampling, on_truncated="keep")
    )
    asked.with_options(engine="local", workers=1, progress=False).write_parquet(sys.argv[2])
    print(hr.read_parquet(sys.argv[2]).count(), flush=True)
"""


def test_what_vllm_does_not_take_is_said_and_a_killed_job_leaves_nothing(tmp_path):
    with pytest.raises(ArgumentError, match=r"no such argument.*Did you mean 'gpu_memory_utilization'"):
        model = hr.llm.VLLM(MODEL, options={"gpu_memory_utilisation": 0.5})
        inline(hr.from_items([{"i": 1}]).prompt("{i}", model)).take_all()
    with pytest.raises(ModelUnreadable, match="vLLM cannot run the model"):
        model = hr.llm.VLLM(MODEL, options={"quantization": "nothing"})
        inline(hr.from_items([{"i": 1}]).prompt("{i}", model)).take_all()
    others = set(glob.glob("/dev/shm/psm_*"))
    command = [sys.executable, "-c", JOB, MODEL, str(tmp_path / "out")]
    job = subprocess.Popen([*command, "400"], start_new_session=True)
    while not engines_of(tmp_path, job.pid):
        assert job.poll() is None
        time.sleep(0.5)
    time.sleep(3)
    engines = engines_of(tmp_path, job.pid)
    os.killpg(job.pid, signal.SIGKILL)
    job.wait()
    for _ in range(600):
        if not any(alive(pid) for pid in engines) and set(glob.glob("/dev/shm/psm_*")) <= others:
            break
        time.sleep(0.1)
    assert not any(alive(pid) for pid in engines)
    assert set(glob.glob("/dev/shm/psm_*")) <= others  # vLLM has 160 MB there
    ended = subprocess.run(
        [*command[:-1], str(tmp_path / "other"), "8"], stdout=subprocess.PIPE, text=True, check=True
    )
    assert ended.stdout.split()[-1] == "4"


def engines_of(folder: Path, pid: int) -> list[int]:
    from headrace.engines.local.orphans import descendants

    return [each for each in descendants(pid) if "EngineCor" in name_of(each)]


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text()
    except OSError:
        return ""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
