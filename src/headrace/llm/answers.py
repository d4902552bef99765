"""What is asked of a model, and the columns that its answers become; whoever the model is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pyarrow as pa

from headrace.core.answered import Answered, with_answered
from headrace.core.rows_failed import RowsFailed
from headrace.llm.refusals import Filtered, InvalidAnswer, NoText, RowError, Truncated
from headrace.llm.schema import AnswerSchema
from headrace.llm.spending import Caps
from headrace.llm.store import Answer
from headrace.llm.template import Template

COUNTS = (("prompt_tokens", pa.int64()), ("completion_tokens", pa.int64()), ("latency", pa.float64()))


@dataclass(frozen=True, slots=True)
class Asked:
    """What ``Dataset.prompt`` was given. ``endpoint`` is the model, wherever it is."""

    template: Template
    endpoint: Any
    output: str
    sampling: Mapping[str, Any] = field(default_factory=dict)
    on_truncated: str | int = "error"
    schema: AnswerSchema | None = None
    repairs: int = 1
    keep_raw: bool = False
    caps: Caps = field(default_factory=Caps)
    cache: str = ""
    order: str = "arrival"
    overrides: Mapping[str, str] = field(default_factory=dict)
    tools: Sequence[Mapping[str, Any]] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are read: those of the template, and those that parameters come from."""
        return tuple(dict.fromkeys((*self.template.columns, *self.overrides.values())))


class AnswerColumns:
    """Turns answers into columns. ``result`` is their schema, ``columns`` are their names."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        output = asked.output
        answers = pa.string() if asked.schema is None else asked.schema.type
        fields = [(output, answers), (f"{output}_finish_reason", pa.string())]
        fields += [(f"{output}_{name}", kind) for name, kind in COUNTS]
        fields += [(f"{output}_tool_calls", pa.string())] * bool(asked.tools)
        fields += [(f"{output}_raw", pa.string())] * asked.keep_raw
        self.result = pa.schema(fields)
        self.columns = tuple(self.result.names)

    def batch_of(
        self, outcomes: Sequence[tuple[Any, ...] | BaseException], answers: Sequence[Answer | None]
    ) -> pa.RecordBatch:
        """Return rows as a batch; raise ``RowsFailed`` if some are errors, and what is no error of a row as it is.

        ``answers`` are what the model said, None for no answer.
        """
        errors = {i: each for i, each in enumerate(outcomes) if isinstance(each, BaseException)}
        for error in errors.values():
            if not isinstance(error, RowError):
                raise error
        nothing = (None,) * len(self.columns)
        values = zip(*(nothing if isinstance(row, BaseException) else row for row in outcomes), strict=True)
        columns = list(values) or [()] * len(self.columns)
        arrays = [pa.array(column, kind.type) for column, kind in zip(columns, self.result, strict=True)]
        results = with_answered(pa.record_batch(arrays, schema=self.result), _sum(outcomes, answers))
        if errors:
            raise RowsFailed(errors, results)
        return results

    def row_of(self, answer: Answer) -> tuple[Any, ...]:
        """Return an answer's values; raises a ``RowError`` for one that is not whole, or not as asked."""
        value: Any = self._checked(answer)
        if self.asked.schema is not None:
            value = self.asked.schema.read(value)
        calls = (answer.tool_calls or None,) if self.asked.tools else ()
        raw = (answer.raw,) if self.asked.keep_raw else ()
        return (
            value, answer.finish_reason, answer.prompt_tokens, answer.completion_tokens, answer.latency, *calls, *raw
        )  # fmt: skip

    def _checked(self, answer: Answer) -> str | None:
        """Return the text of an answer that is whole, None if it only calls tools; else raise why it is not."""
        if answer.finish_reason == "length" and self.asked.on_truncated != "keep":
            raise Truncated(
                f"the answer was cut after {answer.completion_tokens:,} tokens; raise max_tokens in "
                "sampling=, or say "
                "on_truncated=N to have it asked once more with N, or 'keep'"
            )
        if answer.finish_reason == "content_filter":
            raise Filtered("the server's filter held the answer back")
        if answer.text is None and not (self.asked.tools and answer.tool_calls):
            raise NoText(f"the answer has no text (finish_reason {answer.finish_reason!r})")
        return answer.text

    def problem_of(self, answer: Answer) -> InvalidAnswer | None:
        """Return what a model can be shown of an answer that is not as asked."""
        if self.asked.schema is None or answer.finish_reason in ("length", "content_filter"):
            return None
        try:
            self.asked.schema.read(answer.text or "")
        except InvalidAnswer as problem:
            return problem
        return None


def _sum(outcomes: Sequence[tuple[Any, ...] | BaseException], answers: Sequence[Answer | None]) -> Answered:
    """Return what answers are in sum."""
    found = [each for each in answers if each is not None]
    failed = [isinstance(each, BaseException) for each in outcomes]
    sizes = [each.completion_tokens.bit_length() for each in found]
    return Answered(
        len(outcomes),
        sum(failed),
        sum(each.prompt_tokens for each in found),
        sum(each.completion_tokens for each in found),
        sum(each.cached_tokens for each in found),
        sum(each.finish_reason == "length" for each in found),
        sum(each.asked_longer and each.finish_reason != "length" for each in found),
        sum(
            each is not None and each.repairs > 0 and not bad
            for each, bad in zip(answers, failed, strict=True)
        ),
        round(sum(each.latency for each in found), 6),
        round(sum(each.first_token for each in found), 6),
        sum(each.first_token > 0 for each in found),
        tuple(sizes.count(size) for size in range(max(sizes, default=-1) + 1)),
    )


def with_max_tokens(request: dict[str, Any], tokens: int) -> dict[str, Any]:
    """Return a request for an answer of at most so many tokens."""
    name = "max_completion_tokens" if "max_completion_tokens" in request else "max_tokens"
    return {**request, name: tokens}


def added(before: Answer, last: Answer) -> Answer:
    """Return the last answer with what all of them used."""
    return msgspec.structs.replace(
        last,
        prompt_tokens=before.prompt_tokens + last.prompt_tokens,
        completion_tokens=before.completion_tokens + last.completion_tokens,
        latency=round(before.latency + last.latency, 6),
        tries=before.tries + last.tries,
        cached_tokens=before.cached_tokens + last.cached_tokens,
        first_token=before.first_token or last.first_token,
        asked_longer=before.asked_longer,
        repairs=before.repairs,
    )
