"""Answers of a given form: asked for, checked, repaired, typed."""

from __future__ import annotations

import json
import re
from datetime import date
from decimal import Decimal

import pyarrow as pa
import pydantic
import pytest

import headrace as hr
from headrace.annex.llm.refusals import InvalidAnswer
from headrace.annex.llm.schema import AnswerSchema, arrow_type
from headrace.errors import ArgumentError
from headrace.testing import FakeLLMServer


class Point(pydantic.BaseModel):
    x: int
    y: float | None = None
    tags: list[str] = []


ROWS = hr.from_items([{"text": f"{{'x': {i}}}"} for i in range(3)])


def inline(data, **options):
    return data.with_options(engine="inline", progress=False, **options)


def test_answers_are_typed_and_wrong_ones_repaired_with_their_error_shown():
    def answer(prompt):
        if "That is not what was asked for" in prompt:
            return '{"x": 7, "y": 1, "tags": ["a"]}'
        return (
            "```json\n" + json.dumps({"x": int(re.findall(r"\d", prompt)[0])}) + "\n```"
            if "1" in prompt
            else "{"
        )

    with FakeLLMServer(answer) as server:
        asked = ROWS.prompt("{text}", hr.llm.Endpoint(server.url, "m").with_options(repairs=2), schema=Point)
        table = inline(asked).to_arrow()
    assert table.schema.field("answer").type == pa.struct(
        {"x": pa.int64(), "y": pa.float64(), "tags": pa.list_(pa.string())}
    )
    repaired = {"x": 7, "y": 1.0, "tags": ["a"]}
    assert table["answer"].to_pylist() == [repaired, {"x": 1, "y": None, "tags": []}, repaired]
    asked_for = server.requests[0]["response_format"]
    assert (
        asked_for["type"] == "json_schema" and asked_for["json_schema"]["schema"] == Point.model_json_schema()
    )
    assert asked_for["json_schema"]["strict"] is False  # not all properties are required
    repair = next(each for each in server.requests if len(each["messages"]) == 3)
    assert repair["messages"][1] == {"role": "assistant", "content": "{"}
    assert "is no JSON" in repair["messages"][2]["content"]
    assert len(server.requests) == 5
    assert table["answer_prompt_tokens"].to_pylist()[0] > table["answer_prompt_tokens"].to_pylist()[1]


class Trip(pydantic.BaseModel):
    """Refuses what its JSON schema allows, and changes what it takes."""

    start: date = pydantic.Field(alias="from")
    end: date
    price: Decimal = Decimal(0)
    place: str = ""

    @pydantic.field_validator("place")
    @classmethod
    def _plain(cls, value: str) -> str:
        if value == "?":
            raise RuntimeError("no such place")
        return value.strip().title()

    @pydantic.model_validator(mode="after")
    def _in_order(self) -> Trip:
        if self.end < self.start:
            raise ValueError("end is before from")
        return self


@pytest.mark.parametrize("engine", ["inline", pytest.param("local", marks=pytest.mark.local)])
def test_a_pydantic_model_checks_answers_itself_and_what_it_makes_of_them_is_written(engine):
    answers = {
        "a": '{"from": "2026-01-02", "end": "2026-01-01"}',
        "b": '{"from": "2026-01-01", "end": "2026-01-02", "price": 1.50, "place": " new york "}',
        "c": '{"from": "2026-01-01", "end": "2026-01-02", "place": "?"}',
    }

    def answer(prompt):
        if "end is before from" in prompt:
            return answers["b"]
        return answers.get(prompt, answers["c"])

    rows = hr.from_items([{"text": text} for text in "abc"])
    with FakeLLMServer(answer) as server:
        asked = rows.prompt("{text}", hr.llm.Endpoint(server.url, "m"), schema=Trip)
        asked = asked.with_options(engine=engine, progress=False, on_error="reject")
        with pytest.warns(UserWarning, match="InvalidAnswer.*Trip raised RuntimeError: no such place"):
            table = asked.to_arrow()
    made = {"from": "2026-01-01", "end": "2026-01-02", "price": "1.5", "place": "New York"}
    assert table["answer"].to_pylist() == [made, made]
    assert len(server.requests) == 5


def test_the_code_of_a_pydantic_model_decides_about_answers():
    assert AnswerSchema(Trip).decides and "end is before from" in AnswerSchema(Trip).decides[0]
    assert AnswerSchema(Trip.model_json_schema()).decides == ()


def test_what_cannot_be_repaired_is_an_error_of_its_row():
    with FakeLLMServer(lambda prompt: "maybe" if re.search("x': 1|not what", prompt) else "yes") as server:
        asked = ROWS.prompt(
            "{text}", hr.llm.Endpoint(server.url, "m").with_options(repairs=1), schema=["yes", "no"]
        )
        with pytest.warns(UserWarning, match="InvalidAnswer.*'maybe' is none of yes, no"):
            rows = inline(asked, on_error="reject").take_all()
    assert [(row["text"], row["answer"]) for row in rows] == [("{'x': 0}", "yes"), ("{'x': 2}", "yes")]
    assert len(server.requests) == 4


def test_patterns_and_choices_are_asked_for_and_only_told_where_the_server_knows_none():
    with FakeLLMServer(lambda prompt: "2026-11-23") as server:
        model = hr.llm.Endpoint(server.url, "m")
        date = re.compile(r"\d{4}-\d\d-\d\d")
        assert inline(ROWS.prompt("{text}", model, schema=date)).take(1)[0]["answer"] == "2026-11-23"
        assert server.requests[0]["structured_outputs"] == {"regex": date.pattern}
        told = ROWS.prompt("{text}!", model.with_options(guided=False), schema=date)
        assert inline(told).take(1)[0]["answer"] == "2026-11-23"
        last = server.requests[-1]
        assert "structured_outputs" not in last and date.pattern in last["messages"][-1]["content"]


def test_a_schema_that_the_server_refuses_may_end_the_run():
    from headrace.annex.llm.refusals import Doubtful, judged

    body = b'{"error": {"message": "Invalid schema for response_format", "code": null}}'
    error = judged(400, body, {}, where="The endpoint x", request={"response_format": {}, "messages": []})
    assert isinstance(error, Doubtful) and "guided=False" in str(error.run)


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ({"type": "integer"}, pa.int64()),
        ({"anyOf": [{"type": "number"}, {"type": "null"}]}, pa.float64()),
        ({"anyOf": [{"type": "number"}, {"type": "string"}]}, pa.string()),
        ({"type": ["boolean", "null"]}, pa.bool_()),
        ({"type": "array", "items": {"$ref": "#/$defs/a"}, "$defs": {"a": {"type": "string"}}},
        pa.list_(pa.string())), ({"type": "object", "additionalProperties": {"type": "number"}}, pa.string()),
        ({}, pa.string()),
    ],
)  # fmt: skip
def test_types_of_schemas(schema, kind):
    assert arrow_type(schema, schema) == kind


def test_values_that_a_column_would_change_are_no_answers():
    whole = AnswerSchema({"type": "object", "properties": {"n": {"type": "integer"}, "more": {}}})
    assert whole.read('{"n": 2.0, "more": [1, {"a": null}]}') == {"n": 2, "more": '[1, {"a": null}]'}
    assert whole.read("{}") == {"n": None, "more": None}
    for text, words in {
        '{"n": 9223372036854775808}': "does not fit into a column of type int64",
        '{"n": 1.5}': "at n: 1.5 is not of type 'integer'",
        "[": "is no JSON",
        '"n"': "is not of type 'object'",
    }.items():
        with pytest.raises(InvalidAnswer, match=re.escape(words)):
            whole.read(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"n": NaN}', "is no JSON"),
        ('{"n": 1e999}', "is no JSON"),
        (f'{{"n": 1{"0" * 400}}}', "does not fit into a column of type double"),
        (f'{{"n": 1{"0" * 5000}}}', "is no JSON"),
        ('{"free": {"a": Infinity}}', "is no JSON"),
        ('{"free": "\\ud83d"}', "is no JSON"),
        ('{"free": ' + "[" * 5000 + "]" * 5000 + "}", "is no JSON"),
        ('{"pair": [1, "one"]}', "one does not fit into a column of type int64"),
    ],
    ids=lambda each: each[:20],
)
def test_what_is_nearly_json_is_no_answer(text, words):
    pair = {"type": "array", "prefixItems": [{}, {"type": "string"}], "items": {"type": "integer"}}
    schema = {"type": "object", "properties": {"n": {"type": "number"}, "free": {}, "pair": pair}}
    with pytest.raises(InvalidAnswer, match=re.escape(words)):
        AnswerSchema(schema).read(text)


class Measured(pydantic.BaseModel):
    value: float
    more: dict[str, float] = {}


@pytest.mark.parametrize("text", ['{"value": NaN}', '{"value": 1e999}', '{"value": 1, "more": {"a": NaN}}'])
def test_a_number_that_pydantic_takes_and_json_does_not_is_no_answer(text):
    with pytest.raises(InvalidAnswer, match="does not fit into a column"):
        AnswerSchema(Measured).read(text)


def test_schemas_that_are_none_are_refused_before_anything_runs():
    for schema, words in {
        "yes": "it takes a JSON schema",
        (): "choices are a list of texts",
        (("a", 1),): "choices are a list of texts",
        re.compile(b"a"): "not of bytes",
    }.items():
        with pytest.raises(ArgumentError, match=words):
            AnswerSchema(list(schema) if isinstance(schema, tuple) else schema)
    with pytest.raises(ArgumentError, match="it is no JSON schema: 'text' is not valid"):
        AnswerSchema({"type": "text"})
