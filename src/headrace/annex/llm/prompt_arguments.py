"""Reads the arguments of verbs that ask language models; refuses what can never work."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headrace.errors import ArgumentError

if TYPE_CHECKING:
    from headrace.annex.llm.store import Caps

_OWN = {
    "model": "the Endpoint names it",
    "messages": "the template makes them",
    "n": "each row gets one answer; repeat rows before, flat_map(lambda row: [row] * 3), for several",
    "stream": "answers are read as a whole",
    "tools": "say tools=",
    "response_format": "say schema=",
}


def check_images(asked: Any, model: Any) -> None:
    """Refuse images for models that are asked with text alone."""
    from headrace.annex.llm.template import has_images

    if (
        not is_endpoint(model)
        and not getattr(model, "takes_images", False)
        and has_images(asked.template.messages)
    ):
        raise ArgumentError(
            f"prompt: the messages have parts that are not text, such as images, and a {type(model).__name__} model "
            "takes text alone. hr.llm.VLLM takes images, and so do endpoints, if the model can see."
        )


def check_local(asked: Any, max_cost: Any, max_total_tokens: Any, cache: Any) -> None:
    """Refuse what only endpoints have."""
    from headrace.annex.llm.transformers import check_sampling

    check_sampling(asked.sampling)
    for name, value in {"max_cost": max_cost, "max_total_tokens": max_total_tokens, "cache": cache}.items():
        if value is not None:
            raise ArgumentError(
                f"{name}= is for endpoints; a Transformers model computes here, and costs nothing."
            )


def is_endpoint(model: Any) -> bool:
    """Say whether a model is an endpoint, or several of one model."""
    from headrace.annex.llm.endpoint import Endpoint, Endpoints

    return isinstance(model, (Endpoint, Endpoints))


def is_engine(model: Any) -> bool:
    """Say whether a model is an engine in the worker that is fed as a stream."""
    return _is_ours(model, "engine_model", "EngineModel")


def given_model(model: Any) -> Any:
    """Read the model of ``prompt``."""
    if is_endpoint(model) or is_engine(model) or _is_ours(model, "transformers", "Transformers"):
        return model
    raise ArgumentError(
        f"prompt: the model is {type(model).__name__}; it is an endpoint, "
        "hr.llm.Endpoint('http://localhost:8000/v1', 'name of the model'), or a model of this machine, "
        "hr.llm.VLLM('folder'), hr.llm.SGLang('folder') or hr.llm.Transformers('folder')."
    )


def _is_ours(model: Any, home: str, name: str) -> bool:
    """Say whether it is of this class of ours; its module is not imported for that."""
    return any(
        each.__module__ == f"headrace.annex.llm.{home}" and each.__name__ == name
        for each in type(model).__mro__
    )


def given_sampling(value: Any) -> dict[str, Any]:
    """Read the parameters of requests; what JSON cannot say is refused."""
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise ArgumentError(
            f"sampling={value!r:.80}: it takes a dict of parameters, such as {{'temperature': 0.0}}."
        )
    for name in value:
        if name in _OWN:
            raise ArgumentError(f"sampling= has {name!r}, which cannot be given here: {_OWN[name]}.")
    import json  # only who asks a language model needs it

    try:
        return dict(json.loads(json.dumps(dict(value), allow_nan=False)))
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"sampling={value!r:.80}: it cannot be sent as JSON: {error}.") from None


def given_truncation(value: Any, sampling: Mapping[str, Any]) -> str | int:
    """Read what becomes of answers that were cut."""
    if isinstance(value, str) and value in ("error", "keep"):
        return value
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ArgumentError(
            f"on_truncated={value!r}: it takes 'error', 'keep', or a number of tokens with which to ask once more."
        )
    first = sampling.get("max_completion_tokens", sampling.get("max_tokens"))
    if not isinstance(first, int) or first >= value:
        raise ArgumentError(
            f"on_truncated={value}: it must be more than max_tokens in sampling= ({first!r} there). "
            "Otherwise the second answer would be cut off, too."
        )
    return value


def given_schema(value: Any, guided: Any, model: Any) -> Any:
    """Read what an answer has to be."""
    if not isinstance(guided, bool):
        raise ArgumentError(f"guided={guided!r}: it takes True or False.")
    if value is None:
        return None
    from headrace.annex.llm.schema import AnswerSchema

    return AnswerSchema(value, guided=guided and (is_endpoint(model) or is_engine(model)))


def given_count(name: str, value: Any) -> int:
    """Read a whole number of at least 0."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ArgumentError(f"{name}={value!r}: it takes a whole number of at least 0.")
    return value


def given_overrides(value: Any, model: Any) -> dict[str, str]:
    """Read which parameters come from which columns."""
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(
        isinstance(each, str) and each for pair in value.items() for each in pair
    ):
        raise ArgumentError(
            f"overrides={value!r:.80}: it takes columns by parameter, such as {{'max_tokens': 'limit'}}."
        )
    for name in value:
        if name in _OWN:
            raise ArgumentError(f"overrides= has {name!r}, which cannot be given here: {_OWN[name]}.")
    if not is_endpoint(model) and not is_engine(model):
        raise ArgumentError(
            "overrides= is for endpoints and engines; a Transformers model computes rows together."
        )
    if is_engine(model):
        model.check_names(value)
    return dict(value)


def given_tools(value: Any, model: Any, schema: Any) -> tuple[dict[str, Any], ...]:
    """Read the tools that a model may call."""
    if value is None:
        return ()
    if not is_endpoint(model):
        raise ArgumentError("tools= is for endpoints: the server finds a model's tool calls in its text.")
    if schema is not None:
        raise ArgumentError(
            "tools= and schema=: a tool call does not have the form of schema=. Give one of them."
        )
    if (
        not isinstance(value, Sequence)
        or not value
        or not all(isinstance(each, Mapping) and "type" in each for each in value)
    ):
        raise ArgumentError(
            f"tools={value!r:.80}: it takes a list as OpenAI's, [{{'type': 'function', 'function': {{'name': …}}}}]."
        )
    import json

    try:
        return tuple(json.loads(json.dumps(list(value), allow_nan=False)))
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"tools={value!r:.80}: it cannot be sent as JSON: {error}.") from None


def given_order(value: Any, model: Any) -> str:
    """Read in which order requests are sent."""
    from headrace.annex.llm.order import ORDERS

    if value is None:
        return "prefix" if is_engine(model) and model.prefix_caching else "arrival"
    if value not in ORDERS:
        raise ArgumentError(f"order={value!r}: it takes 'arrival', 'prefix' or 'longest'.")
    if not is_engine(model) and not is_endpoint(model):
        raise ArgumentError("order= is for models that work on many requests at once; this one gets batches.")
    return str(value)


def given_flag(name: str, value: Any) -> bool:
    """Read True or False."""
    if not isinstance(value, bool):
        raise ArgumentError(f"{name}={value!r}: it takes True or False.")
    return value


def given_folder(value: Any) -> str:
    """Read the path of a folder."""
    from headrace.core.files.paths import absolute

    if not isinstance(value, (str, os.PathLike)) or not os.fspath(value):
        raise ArgumentError(f"cache={value!r}: it takes the path of a folder.")
    return str(absolute(os.fspath(value), "The folder of cache="))


def given_caps(max_cost: Any, max_total_tokens: Any, model: Any, sampling: Mapping[str, Any]) -> Caps:
    """Read what a run may cost."""
    from headrace.annex.llm.store import Caps

    if max_cost is not None:
        if isinstance(max_cost, bool) or not isinstance(max_cost, (int, float)) or not max_cost > 0:
            raise ArgumentError(f"max_cost={max_cost!r}: it takes a number above 0.")
        if is_engine(model):
            raise ArgumentError("max_cost= is for endpoints; a model in the worker has no price.")
        if is_endpoint(model) and model.prices is None:
            raise ArgumentError(
                f"max_cost={max_cost!r}: the price of a token is not known. Give it to the endpoint: Endpoint(…, "
                "prices={'input': 0.15, 'output': 0.6}), per million tokens."
            )
    if max_total_tokens is not None and given_count("max_total_tokens", max_total_tokens) < 1:
        raise ArgumentError("max_total_tokens=0: it takes a whole number of at least 1.")
    capped = (
        "max_cost" if max_cost is not None else "max_total_tokens" if max_total_tokens is not None else ""
    )
    if capped and is_endpoint(model) and not sampling.keys() & {"max_tokens", "max_completion_tokens"}:
        raise ArgumentError(
            f"{capped}= needs to know how long an answer may be, so that no request goes beyond it. Say so by "
            "sampling={'max_tokens': 500}. What a request may cost at most is set aside while it is under way."
        )
    return Caps(None if max_cost is None else float(max_cost), max_total_tokens)
