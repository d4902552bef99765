"""How near ``prompt`` with a vLLM in the worker comes to the bare ``LLM.generate`` over the whole list.

``.venv-llm/bin/python -m bench.vllm_stream [prompts] [rounds]``, with VLLM_CPU_KVCACHE_SPACE=1 where there is no GPU.
One engine does both, by turns, so that only what feeds it differs; where others
compute too, look at how many steps it takes. `make test-llm` makes environment and model.
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

    llm: Any = LLM(MODEL, enforce_eager=True, max_model_len=512, disable_log_stats=False)
    model = hr.llm.VLLM(MODEL, max_model_len=512)
    steps, step = [0], llm.llm_engine.step

    def counted() -> Any:
        steps[0] += 1
        return step()

    llm.llm_engine.step = counted
    engine = engine_kinds.VLLMEngine(llm.llm_engine, model)
    engine.close = lambda: None  # type: ignore[method-assign]
    engine_kinds.start_engine = lambda model: engine  # type: ignore[assignment]
    first, add = [0.0], engine.add

    def adding(number: int, request: Any) -> None:
        first[0] = first[0] or time.monotonic()  # what a run does before, planning, is done once for all rows
        add(number, request)

    engine.add = adding  # type: ignore[method-assign]
    params = SamplingParams(temperature=0.0, max_tokens=96)

    def bare(texts: list[str]) -> tuple[int, list[str]]:
        made = llm.chat([[{"role": "user", "content": text}] for text in texts], params, use_tqdm=False)
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
            began, first[0], steps[0] = time.monotonic(), 0.0, 0
            tokens, answers = way(texts)
            rates[name] = tokens / (time.monotonic() - max(began, first[0]))
            print(
                f"{name}: {tokens:,} tokens, {rates[name]:,.0f} tokens/s, {len(set(answers)):,} different answers, "
                f"{steps[0]:,} steps of the engine",
                flush=True,
            )
        ratios.append(rates["ours"] / rates["bare"])
    print(f"ours/bare, the median of {rounds} rounds: {statistics.median(ratios):.3f}")


if __name__ == "__main__":
    main(*given.counts(__doc__, prompts=256, rounds=3))
