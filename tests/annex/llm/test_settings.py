"""``with_options``: settings of requests, for every kind of model."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.annex.llm.settings import RequestSettings, Settings
from headrace.errors import ArgumentError, UnknownArgument

GOOD: dict[str, Any] = {
    "system": "Be brief.",
    "sampling": {"max_tokens": 4},
    "overrides": {"max_tokens": "limit"},
    "tools": ({"type": "function", "function": {"name": "weather"}},),
    "guided": False,
    "repairs": 0,
    "on_truncated": 9,
    "keep_raw": True,
    "columns": ("logprobs",),
    "n": 3,
    "fallback": {"too_long": hr.llm.Endpoint("http://localhost:9/v1", "larger")},
    "order": "longest",
    "cache": "/answers",
    "budget": hr.llm.Budget(run_tokens=100),
    "deadline": 7200,
    "runaway": 12.5,
}
BAD: dict[str, tuple[Any, ...]] = {
    "system": ("", 3),
    "sampling": (3, {1: 2}, {"n": 2}, {"temperature": float("nan")}),
    "overrides": (["limit"], {"max_tokens": 1}, {"tools": "t"}),
    "tools": ([], "weather", [{"name": "weather"}], [{"type": object()}]),
    "guided": (1, "no"),
    "repairs": (-1, 1.0, True),
    "on_truncated": ("cut", 0, True),
    "keep_raw": (1,),
    "columns": ("thoughts", 3, ["raw"]),
    "n": (0, True, "3"),
    "fallback": ("m", {"late": hr.llm.Endpoint("http://localhost:9/v1", "m")}, {"filtered": "m"}),
    "order": ("length", 3),
    "cache": ("", 3),
    "budget": (5.0, {"run": 5.0}),
    "deadline": (0, "1", True),
    "runaway": (1.5, True, "10", float("inf")),
}
ENGINES = {"tools", "fallback", "deadline"}
REFUSED: dict[str, set[str]] = {
    "Endpoint": set(),
    "VLLM": ENGINES,
    "SGLang": ENGINES,
}
IN_IDENTITY = {
    "system",
    "sampling",
    "overrides",
    "tools",
    "on_truncated",
    "keep_raw",
    "columns",
    "n",
    "fallback",
}
ROWS = hr.from_items([{"text": "a", "limit": 3}])


def endpoint(port: int, **options: Any) -> hr.llm.Endpoint:
    return hr.llm.Endpoint(
        f"http://localhost:{port}/v1", "m", prices={"input": 1.0, "output": 1.0}, **options
    )


@pytest.fixture(params=REFUSED)
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Any]:
    """What makes a model of one kind; options that the kind does not have are left out."""
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    (tmp_path / "model.safetensors").write_bytes(b"weights")

    def made(**options: Any) -> Any:
        if request.param == "Endpoint":
            return endpoint(1, **options)
        return getattr(hr.llm, request.param)(str(tmp_path))

    return made


def identity(model: Any, **options: Any) -> Any:
    step = ROWS.prompt("{text}", model, **options)._plan.steps[-1]
    return step.models[0].function.call.identity()


def test_every_setting_is_kept_checked_or_refused(make):
    model = make()
    refused = REFUSED[model.noun]
    assert set(GOOD) == set(BAD) == set(Settings.__annotations__)
    changed = model
    for name, value in GOOD.items():
        for bad in BAD[name]:
            with pytest.raises(
                ArgumentError, match=f"{name}=" if name not in refused else rf"{name}= is for"
            ):
                model.with_options(**{name: bad})
        if name in refused:
            with pytest.raises(ArgumentError, match=rf"{name}= is for"):
                model.with_options(**{name: value})
            continue
        changed = changed.with_options(**{name: value})
        assert getattr(changed.settings, name) == value and type(changed) is type(model)
    assert model.settings == RequestSettings()  # the model itself is as it was
    together = model.with_options(**{name: value for name, value in GOOD.items() if name not in refused})
    assert together.settings == changed.settings
    for other in (copy.copy(changed), pickle.loads(pickle.dumps(changed))):
        assert other.settings == changed.settings
    assert changed.with_options(**dict.fromkeys(GOOD)).settings == RequestSettings()
    with pytest.raises(UnknownArgument, match="Did you mean 'sampling'"):
        model.with_options(sampeling={})


def test_what_decides_about_answers_makes_another_plan_and_nothing_else_does(make):
    model = make()
    for name in set(GOOD) - REFUSED[model.noun] - {"guided", "repairs"}:
        base = model.with_options(sampling={"max_tokens": 5, "temperature": 1.0})
        other = base.with_options(**{name: GOOD[name]})
        assert (identity(other) != identity(base)) == (name in IN_IDENTITY), name
    for name in ("guided", "repairs"):  # these are about schema= alone
        other = model.with_options(**{name: GOOD[name]})
        assert identity(other) == identity(model)
        assert identity(other, schema=["a"]) != identity(model, schema=["a"])
    assert identity(make(max_in_flight=3)) == identity(model)


def test_what_does_not_go_together_is_refused_by_prompt():
    model = endpoint(1)
    for words, settings in {
        "must be more than max_tokens": {"on_truncated": 4, "sampling": {"max_tokens": 4}},
        "must be more than max_tokens in": {"on_truncated": 4},
        "how long an answer may be": {"budget": hr.llm.Budget(run_tokens=4)},
    }.items():
        one_by_one = model
        for name, value in settings.items():
            one_by_one = one_by_one.with_options(**{name: value})
        with pytest.raises(ArgumentError, match=words):
            ROWS.prompt("{text}", one_by_one)
    free = hr.llm.Endpoint("http://localhost:1/v1", "m", prices={"input": 1.0})  # half of it is not known
    with pytest.raises(ArgumentError, match="what a token of Endpoint costs is not known, in and out"):
        ROWS.prompt("{text}", free.with_options(sampling={"max_tokens": 4}, budget=hr.llm.Budget(day=4)))
    with pytest.raises(ArgumentError, match="which are for prompt"):
        ROWS.embed("text", model.with_options(repairs=0))


@pytest.mark.parametrize("name", GOOD)
def test_prompt_says_where_its_old_arguments_went(name):
    with pytest.raises(UnknownArgument, match=rf"the model has it: model.with_options\({name}=…\)"):
        ROWS.prompt("{text}", endpoint(1), **{name: GOOD[name]})
    ROWS.prompt("{text}", endpoint(1), **{name: None})
