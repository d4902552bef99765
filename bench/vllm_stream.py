"""How near ``prompt`` with a vLLM in the worker comes to the bare ``LLM.generate`` over the whole list.

``.venv-llm/bin/python -m bench.vllm_stream [prompts] [rounds]``, with VLLM_CPU_KVCACHE_SPACE=1 where there is no GPU.
They take turns, each with an engine of its own; what counts is the time from the first request to the last answer.
`make test-llm` makes environment and model.
"""

from __future__ import annotations

import os
import random
import statistics
import time
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import headrace as hr
from bench import given
from headrace.annex.llm import engine_kinds

MODEL = os.environ.get("HEADRACE_TEST_LLM", ".venv-llm/smollm2")
WORDS = ("river stone light winter garden music letter window silver road mountain paper " * 3).split()


def prompts(count: int, turn: int) -> list[str]:
    """Return prompts of different lengths; none twice, so that no answer is known."""
    drawn = random.Random(turn)
    return [
        f"{turn}.{i}: tell of {' and '.join(drawn.choices(WORDS, k=drawn.randint(1, 12)))}."
        for i in range(count)
    ]


def main(count: int, rounds: int) -> None:
    from vllm import LLM, SamplingParams

    llm: Any = LLM(MODEL, enforce_eager=True, max_model_len=512)
    model = hr.llm.VLLM(MODEL, max_model_len=512, options={"enforce_eager": True})
    params = SamplingParams(temperature=0.0, max_tokens=96)
    times: list[float] = []
    generate = engine_kinds.Engine.generate

    async def timed(self: Any, request: Any) -> Any:
        times.append(time.monotonic())  # the engine is loaded
        made = await generate(self, request)
        times.append(time.monotonic())
        return made

    engine_kinds.Engine.generate = timed  # type: ignore[method-assign]

    def bare(texts: list[str]) -> tuple[int, list[str]]:
        times.append(time.monotonic())
        made = llm.chat([[{"role": "user", "content": text}] for text in texts], params, use_tqdm=False)
        times.append(time.monotonic())
        return sum(len(each.outputs[0].token_ids) for each in made), [each.outputs[0].text for each in made]

    def ours(texts: list[str]) -> tuple[int, list[str]]:
        rows = hr.from_items([{"text": text} for text in texts])
        asked = rows.prompt("{text}", model.with_options(sampling={"max_tokens": 96}, on_truncated="keep"))
        table = asked.with_options(engine="inline", progress=False).to_arrow()
        return sum(table["answer_completion_tokens"].to_pylist()), table["answer"].to_pylist()

    bare(prompts(8, -1))
    ratios = []
    for turn in range(rounds):
        texts, rates = prompts(count, turn), {}
        for name, way in (("bare", bare), ("ours", ours)) if turn % 2 else (("ours", ours), ("bare", bare)):
            llm.llm_engine.reset_prefix_cache()
            times.clear()
            tokens, answers = way(texts)
            rates[name] = tokens / (max(times) - min(times))
            print(
                f"{name}: {tokens:,} tokens, {rates[name]:,.0f} tokens/s, {len(set(answers)):,} different answers",
                flush=True,
            )
        ratios.append(rates["ours"] / rates["bare"])
    print(f"ours/bare, the median of {rounds} rounds: {statistics.median(ratios):.3f}")


if __name__ == "__main__":
    main(*given.counts(__doc__, prompts=256, rounds=3))
