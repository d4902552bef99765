"""What is asked of a model, and the columns that its answers become; whoever the model is."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from headrace.annex.llm.client import Reply
from headrace.annex.llm.endpoint import Endpoint
from headrace.annex.llm.outliers import Runaway
from headrace.annex.llm.refusals import (
    Again,
    ConnectionLost,
    ContextTooLong,
    Filtered,
    InvalidAnswer,
    Malformed,
    NoAnswer,
    NoText,
    RateLimited,
    RowError,
    ServerFailed,
    Truncated,
)
from headrace.annex.llm.schema import AnswerSchema
from headrace.annex.llm.settings import RequestSettings
from headrace.annex.llm.store import Answer
from headrace.annex.llm.template import Template
from headrace.annex.llm.usage import text_in
from headrace.core.answered import Answered, with_answered
from headrace.core.failures import RowsFailed, shortened

FAILED = ("error", "abort", "cancelled", "insufficient_system_resource")
"""What a server gives as the reason where an answer ended because something failed there."""
_WORDS = {
    "length": re.compile(
        r"length|max_?(output_?)?tokens|context_?window|incomplete|pause_?turn", re.IGNORECASE
    ),
    "content_filter": re.compile(r"filter|safety|prohibited|recitation|refusal", re.IGNORECASE),
}
"""How servers say that an answer was cut, or held back: ``model_length`` is Mistral's, ``MAX_TOKENS`` Google's."""
REASONING = ("reasoning_content", "reasoning")
"""Where servers put what a model thinks before it answers."""
COUNTS = (("prompt_tokens", pa.int64()), ("completion_tokens", pa.int64()), ("latency", pa.float64()))

_MORE = {"reasoning": pa.string(), "logprobs": pa.list_(pa.float64()), "model": pa.string()}

_REASONS: dict[str, tuple[type[RowError], ...]] = {
    "filtered": (Filtered,),
    "too_long": (ContextTooLong,),
    "truncated": (Truncated,),
    "invalid": (InvalidAnswer, NoText),
    "failed": (RateLimited, ServerFailed, NoAnswer, ConnectionLost, Malformed),
}
"""What a row fails with, by the reasons of ``fallback=``."""


WINDOW_SECONDS = 86_400.0
"""Within so many seconds batch services answer."""


def why_requests(model: Any) -> str:
    """Return why ``via="auto"`` sends requests one by one; "" where a batch service is cheaper, and soon enough."""
    if not isinstance(model, Endpoint):
        return "batch services are asked at one Endpoint"
    share, deadline = model.batch_share, model.settings.deadline
    if deadline is not None and deadline < WINDOW_SECONDS:
        return f"batches take up to 24 hours, and the deadline is in {deadline / 3600:g}"
    return "" if share < 1 else f"a batch costs {share:g} times as much"


def way_of(model: Any, via: str) -> str:
    """Say how a model is asked, if it may be by batches."""
    if via == "requests":
        return ""
    if via == "auto" and (why := why_requests(model)):
        return f", asked by requests: {why}"
    if_any = ", if it has one" if via == "auto" else ""
    return f", asked by its batch service{if_any}: {model.batch_share:g} of the price, within 24 hours"


class AnswerColumns:
    """Turns answers into columns. ``result`` is their schema, ``columns`` are their names."""

    def __init__(
        self, template: Template, model: Any, output: str, schema: AnswerSchema | None = None
    ) -> None:
        self.template, self.asked, self.output, self.schema = template, model, output, schema
        self.settings: RequestSettings = model.settings
        self.more = self.settings.more
        many = self.settings.n > 1
        answers = pa.string() if schema is None else schema.type
        fields = [(output, answers), (f"{output}_finish_reason", pa.string())]
        fields = [(name, pa.list_(kind) if many else kind) for name, kind in fields]
        fields += [(f"{output}_{name}", kind) for name, kind in COUNTS]
        listed = {name: pa.list_(kind) if many and name != "model" else kind for name, kind in _MORE.items()}
        fields += [(f"{output}_{name}", listed[name]) for name in self.more]
        fields += [(f"{output}_tool_calls", pa.string())] * bool(self.settings.tools)
        fields += [(f"{output}_raw", pa.string())] * self.settings.keep_raw
        self.result = pa.schema(fields)
        self.columns = tuple(self.result.names)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The columns that a row is asked with."""
        return tuple(dict.fromkeys((*self.template.columns, *self.settings.overrides.values())))

    def identity(self) -> Any:
        """Return what decides about the answers: model, messages and parameters; not who serves them."""
        return "prompt", *self.asked.identity(), *self._form()

    @property
    def prompt_version(self) -> str:
        """The version of the prompt: a hash of its messages, its schema, and what else decides, but the model."""
        form = msgspec.json.encode(self._form(), order="deterministic")
        return f"prompt {hashlib.sha256(form).hexdigest()[:8]}"

    def _form(self) -> tuple[Any, ...]:
        """Return how is asked, whoever is asked."""
        settings, schema = self.settings, self.schema
        form: tuple[Any, ...] | None = None
        if schema is not None:
            form = (schema.described, schema.guided, settings.repairs, *schema.decides)
        return (
            self.template.messages, dict(settings.sampling), str(settings.on_truncated), form,
            settings.keep_raw,
            *((dict(settings.overrides),) if settings.overrides else ()),
            *((list(settings.tools),) if settings.tools else ()),
            *((list(settings.columns),) if settings.columns else ()),
            *((settings.n,) if settings.n > 1 else ()),
            *((_who(settings.fallback),) if settings.fallback else ()),
        )  # fmt: skip

    def batch_of(self, answers: Sequence[Answer | None], errors: dict[int, BaseException]) -> pa.RecordBatch:
        """Return answers as a batch; raise ``RowsFailed`` if some are not as asked, or are errors by their places.

        What is no error of a row is raised as it is.
        """
        nothing = (None,) * len(self.columns)
        rows = []
        for place, answer in enumerate(answers):
            try:
                if place in errors or answer is None:
                    raise errors[place]
                rows.append(self.row_of(answer))
            except RowError as error:
                rows.append(nothing)
                errors[place] = error
        columns = list(zip(*rows, strict=True)) or [()] * len(self.columns)
        arrays = [pa.array(column, kind.type) for column, kind in zip(columns, self.result, strict=True)]
        results = with_answered(pa.record_batch(arrays, schema=self.result), self._sum(answers, errors))
        if errors:
            raise RowsFailed(errors, results)
        return results

    def without_values(self, rows: int) -> pa.RecordBatch:
        """Return so many rows of which nobody has asked."""
        columns = [pa.nulls(rows, kind.type) for kind in self.result]
        return with_answered(pa.record_batch(columns, schema=self.result), Answered(rows))

    def row_of(self, answer: Answer) -> tuple[Any, ...]:
        """Return an answer's values; raises a ``RowError`` for one that is not whole, or not as asked."""
        value, reason, *more = self._values(answer) if self.settings.n == 1 else self._lists(answer.choices)
        more += [answer.model] * ("model" in self.more)
        calls = (answer.tool_calls or None,) if self.settings.tools else ()
        raw = (answer.raw,) if self.settings.keep_raw else ()
        return (
            value, reason, answer.prompt_tokens, answer.completion_tokens, answer.latency, *more,
            *calls, *raw
        )  # fmt: skip

    def _values(self, answer: Answer) -> list[Any]:
        """Return the value of one answer, how it ended, and what else of it is a column, but the model."""
        value: Any = self._checked(answer)
        if self.schema is not None:
            value = self.schema.read(value)
        more = [getattr(answer, name) or None for name in self.more if name != "model"]
        return [value, answer.finish_reason, *more]

    def _lists(self, choices: Sequence[Answer]) -> list[Any]:
        """Return the same of several answers, in lists; raises as one does if none of them is as asked."""
        found: list[list[Any] | RowError] = []
        for each in choices:
            try:
                found.append(self._values(each))
            except RowError as error:
                found.append(error)
        if all(isinstance(each, RowError) for each in found):
            raise next(each for each in found if isinstance(each, RowError))
        width = max(len(each) for each in found if isinstance(each, list))
        rows = [
            [None, choice.finish_reason, *(None,) * (width - 2)] if isinstance(each, RowError) else each
            for each, choice in zip(found, choices, strict=True)
        ]
        return [list(column) for column in zip(*rows, strict=True)]

    def _checked(self, answer: Answer) -> str | None:
        """Return the text of an answer that is whole, None if it only calls tools; else raise why it is not."""
        if answer.finish_reason == "length" and self.settings.on_truncated != "keep":
            length = f" after {answer.completion_tokens:,} tokens" if answer.completion_tokens else ""
            raise Truncated(
                f"the answer was cut{length}; raise max_tokens in sampling=, or say on_truncated=N to have it asked "
                "once more with N, or 'keep'"
            )
        if answer.finish_reason == "content_filter":
            raise Filtered("the server's filter held the answer back")
        if answer.refusal:
            raise Filtered(f"the model refused to answer: {shortened(answer.refusal, 200)!r}")
        if answer.text is None and not (self.settings.tools and answer.tool_calls):
            raise NoText(f"the answer has no text, {_instead(answer)}")
        if self.settings.tools and answer.tool_calls:
            self._check_calls(msgspec.json.decode(answer.tool_calls))
        return answer.text

    def _check_calls(self, calls: Sequence[Any]) -> None:
        """Raise ``InvalidAnswer`` for a call of a tool that was not given, or with arguments that are no JSON."""
        known = {function_of(tool).get("name") for tool in self.settings.tools}
        for function in filter(None, map(function_of, calls)):
            name, given = function.get("name"), function.get("arguments")
            if name not in known:
                raise InvalidAnswer(f"it calls the tool {name!r:.80}, which was not given")
            with contextlib.suppress(ValueError, TypeError, RecursionError):
                if not given or isinstance(msgspec.json.decode(given), dict):
                    continue
            raise InvalidAnswer(f"it calls the tool {name!r} with arguments that are no JSON: {given!r:.200}")

    def problem_of(self, answer: Answer) -> RowError | None:
        """Return why an answer has no value for its row; None if it has."""
        try:
            self.row_of(answer)
        except RowError as problem:
            return problem
        return None

    def _sum(self, answers: Sequence[Answer | None], failed: Mapping[int, BaseException]) -> Answered:
        """Return what answers are in sum."""
        found = [each for each in answers if each is not None]
        sizes = [each.completion_tokens.bit_length() for each in found]
        read = sum(each.prompt_tokens for each in found)
        written = sum(each.completion_tokens for each in found)
        return Answered(
            len(answers),
            len(failed),
            read,
            written,
            sum(each.cached_tokens for each in found),
            sum(each.finish_reason == "length" for each in found),
            sum(each.asked_longer and each.finish_reason != "length" for each in found),
            sum(each is not None and each.repairs > 0 and i not in failed for i, each in enumerate(answers)),
            round(sum(each.latency for each in found), 6),
            round(sum(each.first_token for each in found), 6),
            sum(each.first_token > 0 for each in found),
            tuple(sizes.count(size) for size in range(max(sizes, default=-1) + 1)),
            sum(each.runaway for each in found) + sum(isinstance(each, Runaway) for each in failed.values()),
            sum(self._cost(each) for each in found),
        )

    def _cost(self, answer: Answer) -> float:
        """Return what an answer costs; one that was kept before there were prices, by these."""
        if answer.cost is not None:
            return answer.cost
        cost: float = self.asked.cost(answer.prompt_tokens, answer.completion_tokens)
        return cost


def function_of(call: Any) -> Mapping[str, Any]:
    """Return the function of a tool, or of a call of one; an empty one where it is of another kind."""
    found = call.get("function") if isinstance(call, dict) else None
    return found if isinstance(found, dict) else {}


def reason_of(error: RowError | None) -> str:
    """Return the reason to ask again, or another model: a key of ``fallback=``; "" where that would be of no help."""
    return next((name for name, kinds in _REASONS.items() if isinstance(error, kinds)), "")


def _who(fallback: Mapping[str, Any]) -> dict[str, Any]:
    return {reason: list(model.identity()) for reason, model in fallback.items()}


def with_max_tokens(request: dict[str, Any], tokens: int) -> dict[str, Any]:
    """Return a request for an answer of at most so many tokens."""
    name = "max_completion_tokens" if "max_completion_tokens" in request else "max_tokens"
    return {**request, name: tokens}


def ended(answer: Answer, request: Mapping[str, Any]) -> Answer:
    """Return an answer that was cut if nobody says why it ended, and it is as long as the request lets it be."""
    limit = request.get("max_completion_tokens", request.get("max_tokens"))
    known = (
        answer.finish_reason or answer.choices or type(limit) is not int or answer.completion_tokens < limit
    )
    return answer if known else msgspec.structs.replace(answer, finish_reason="length")


def added(before: Answer, last: Answer) -> Answer:
    """Return the last answer with what all of them used."""
    return msgspec.structs.replace(
        last,
        prompt_tokens=before.prompt_tokens + last.prompt_tokens,
        completion_tokens=before.completion_tokens + last.completion_tokens,
        latency=round(before.latency + last.latency, 6),
        cached_tokens=before.cached_tokens + last.cached_tokens,
        cost=before.cost + last.cost if before.cost is not None and last.cost is not None else None,
        first_token=before.first_token or last.first_token,
        asked_longer=before.asked_longer,
        repairs=before.repairs,
    )


def _instead(answer: Answer) -> str:
    """Say what an answer has in the place of a text."""
    if answer.tool_calls:
        return "only calls of tools, and prompt was given no tools="
    return "only the model's reasoning: have it reason less, or raise max_tokens in sampling="


def raise_if_failed(data: Mapping[str, Any]) -> None:
    """Raise ``Again`` for the response of a server that has failed, though its status is 200."""
    choices = data.get("choices")
    for each in choices if isinstance(choices, list) and choices else [None]:
        _raise_if_failed(each)


def _raise_if_failed(choice: Any) -> None:
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(message, dict):
        raise Again(Malformed, "200, and the response has no choice with a message")
    reason = _reason_in(choice)
    if reason in FAILED:
        said = choice.get("error")
        said = said.get("message") if isinstance(said, dict) else said
        raise Again(ServerFailed, f"200, with finish_reason {reason!r}{f', {said!r:.300}' if said else ''}")
    empty = message.get("content") in (None, [])
    empty = empty and not any(map(message.get, ("tool_calls", "refusal", *REASONING)))
    if empty and reason not in ("length", "content_filter"):
        raise Again(NoText, f"200, and the answer has no text (finish_reason {reason!r})")


def _reason_in(choice: Mapping[str, Any]) -> str:
    """Return why an answer ended, in OpenAI's words for those that are not whole."""
    said = str(choice.get("finish_reason") or "")
    if said == "stop":
        return said
    return next((name for name, words in _WORDS.items() if words.search(said)), said)


def answer_of(reply: Reply, settings: RequestSettings) -> Answer:
    """Read the answers of a chat; raises ``Again`` for a failure, ``Malformed`` for another number of answers."""
    raise_if_failed(reply.data)
    choices = reply.data["choices"]
    if settings.n > 1 and len(choices) != settings.n:
        raise Malformed(
            f"the server was asked for {settings.n} answers, and gave {len(choices)}. If it does not know n=, leave "
            "that out, and repeat the rows before: flat_map(lambda row: [row] * 3)"
        )
    prompt, completion, cached = reply.usage
    return _answer_in(
        choices[0],
        settings,
        prompt_tokens=prompt or 0,
        completion_tokens=completion or 0,
        latency=round(reply.latency, 6),
        raw=msgspec.json.encode(reply.data).decode() if settings.keep_raw else "",
        cached_tokens=cached,
        first_token=round(reply.first_token, 6),
        choices=tuple(_answer_in(each, settings) for each in choices) if settings.n > 1 else (),
    )


def _answer_in(
    choice: Mapping[str, Any],
    settings: RequestSettings,
    *,
    prompt_tokens: int = 0,
    completion_tokens: int = 0,
    latency: float = 0.0,
    **more: Any,
) -> Answer:
    """Read one of the answers; what all of them used is given."""
    message = choice["message"]
    text = text_in(message.get("content"))
    if not text and any(map(message.get, REASONING)):
        text = None  # the model has thought, and said nothing
    calls, refusal = message.get("tool_calls"), message.get("refusal")
    return Answer(
        text,
        _reason_in(choice),
        prompt_tokens,
        completion_tokens,
        latency,
        tool_calls=msgspec.json.encode(calls).decode() if isinstance(calls, list) and calls else "",
        refusal=refusal if isinstance(refusal, str) and not text else "",
        reasoning=_reasoning(message) if "reasoning" in settings.columns else "",
        logprobs=_logprobs(choice) if "logprobs" in settings.columns else (),
        **more,
    )


def _reasoning(message: Mapping[str, Any]) -> str:
    return next(filter(None, (text_in(message.get(name)) for name in REASONING)), "")


def _logprobs(choice: Mapping[str, Any]) -> tuple[float, ...]:
    """Return the logarithms of the probabilities of the tokens of an answer; raises ``Malformed`` without any."""
    found = choice.get("logprobs")
    tokens = found.get("content") if isinstance(found, dict) else None
    try:
        return tuple(float(token["logprob"]) for token in tokens or ())
    except (TypeError, KeyError, ValueError):
        raise Malformed("the server's logprobs have not the form of OpenAI's") from None
