"""Answers of a given form: asked for, checked, and read into typed columns."""

from __future__ import annotations

import contextlib
import copy
import inspect
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from headrace.accumulators.texts import unfenced
from headrace.annex.llm.refusals import InvalidAnswer, RowError
from headrace.core.door import install_hint
from headrace.core.failures import shortened
from headrace.errors import ArgumentError, MissingLibrary

_INT64 = range(-(1 << 63), 1 << 63)


class AnswerSchema:
    """What an answer has to be: of a JSON schema, one of some choices, or text that a pattern matches.

    ``guided``: the server is asked to let the model say nothing else; if not, only the model is told.
    ``type`` is the Arrow type of what ``read`` gives.
    """

    def __init__(self, schema: Any, *, guided: bool = True) -> None:
        self.guided = guided
        self._pattern: re.Pattern[str] | None = None
        self._validator: Any = None
        self._model: Any = None  # a pydantic model
        if isinstance(schema, re.Pattern):
            self.kind, self.described, self.type = "regex", schema.pattern, pa.string()
            self._pattern = schema
            if not isinstance(schema.pattern, str):
                raise ArgumentError("schema=: a pattern is one of text, re.compile(r'…'), and not of bytes.")
        elif hasattr(schema, "model_json_schema"):
            self.kind, self.described, self._model = "json", schema.model_json_schema(), schema
            written = schema.model_json_schema(mode="serialization")
            self.type = arrow_type(written, written)
        elif isinstance(schema, Mapping):
            self.kind, self.described = "json", _plain(schema)
            self.type = arrow_type(self.described, self.described)
        elif isinstance(schema, Sequence) and not isinstance(schema, (str, bytes)):
            if not schema or not all(isinstance(each, str) and each for each in schema):
                raise ArgumentError(f"schema={schema!r:.80}: choices are a list of texts that are not empty.")
            self.kind, self.described, self.type = "choice", list(dict.fromkeys(schema)), pa.string()
        else:
            raise ArgumentError(
                f"schema={schema!r:.80}: it takes a JSON schema (a dict), a pydantic model, a list of choices, or "
                "re.compile(r'…')."
            )
        if self.kind == "json":
            self._check_schema()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_validator": None}

    def _check_schema(self) -> None:
        jsonschema = _library()
        try:
            jsonschema.validators.validator_for(self.described).check_schema(self.described)
        except jsonschema.SchemaError as error:
            raise ArgumentError(f"schema=: it is no JSON schema: {error.message}.") from None

    @property
    def decides(self) -> tuple[int | str, ...]:
        """What else decides about answers: unusual flags of a pattern, and the code of a pydantic model."""
        if self._model is not None:
            return _source_of(self._model)
        unusual = self._pattern is not None and self._pattern.flags != re.UNICODE
        return (int(self._pattern.flags),) if self._pattern is not None and unusual else ()

    # ------------------------------------------------------------ asking

    def asking(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return a request that asks for such an answer."""
        if not self.guided:
            return {**request, "messages": [*request["messages"], {"role": "user", "content": self._told()}]}
        if self.kind == "regex":
            return {**request, "structured_outputs": {"regex": self.described}}
        asked = {"name": "answer", "schema": self.described, "strict": _is_strict(self.described)}
        if self.kind == "choice":
            choice = {"choice": {"type": "string", "enum": self.described}}
            choices = {
                "type": "object",
                "properties": choice,
                "required": ["choice"],
                "additionalProperties": False,
            }
            asked = {"name": "choice", "schema": choices, "strict": True}
        return {**request, "response_format": {"type": "json_schema", "json_schema": asked}}

    def _told(self) -> str:
        return told(self.kind, ", ".join(self.described) if self.kind == "choice" else self.described)

    def repairing(self, request: dict[str, Any], text: str, problem: RowError | None) -> dict[str, Any]:
        """Return the request that shows the model what is wrong with its answer."""
        messages = [
            *request["messages"],
            {"role": "assistant", "content": text},
            {"role": "user", "content": f"That is not what was asked for: {problem}. {self._told()}"},
        ]
        return {**request, "messages": messages}

    # ------------------------------------------------------------ reading

    def read(self, text: str) -> Any:
        """Return the value of an answer; raises ``InvalidAnswer`` for one that is not as asked."""
        if self._pattern is not None:
            if self._pattern.fullmatch(text) is None:
                raise InvalidAnswer(f"{shortened(text, 80)!r} does not match {self.described!r}")
            return text
        if self.kind == "choice":
            return self._choice(text)
        if self._model is not None:
            return typed(_validated(self._model, text), self.type)
        value = _parsed(text)
        if self._validator is None:
            jsonschema = _library()
            self._validator = jsonschema.validators.validator_for(self.described)(self.described)
        error = next(iter(self._validator.iter_errors(value)), None)
        if error is not None:
            place = ".".join(map(str, error.absolute_path))
            raise InvalidAnswer(f"{f'at {place}: ' if place else ''}{shortened(error.message, 300)}")
        return typed(value, self.type)

    def _choice(self, text: str) -> str:
        said: Any = text.strip()
        if said.startswith("{"):
            value = _parsed(said)
            said = value.get("choice") if isinstance(value, dict) else None
        if said in self.described:
            return str(said)
        raise InvalidAnswer(f"{shortened(text, 80)!r} is none of {', '.join(self.described)}")


def told(kind: str, described: Any) -> str:
    """Return what a model is told of a schema whose server does not enforce it."""
    if kind == "json":
        return f"Answer with JSON of this schema, and nothing else:\n{json.dumps(described)}"
    if kind == "choice":
        return f"Answer with one of these, and nothing else: {described}"
    return f"Answer with text that matches this regular expression, and nothing else: {described}"


def _library() -> Any:
    try:
        import jsonschema
        import jsonschema.validators
    except ImportError:
        raise MissingLibrary(
            f"schema= is checked by the library jsonschema, which is not installed: {install_hint('llm')}."
        ) from None
    return jsonschema


def _plain(schema: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return dict(json.loads(json.dumps(schema)))
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"schema=: it is no JSON schema: {error}.") from None


def _is_strict(schema: Any) -> bool:
    """Say whether a schema is of the kind that OpenAI calls strict: objects with these properties, all of them."""
    if isinstance(schema, list):
        return all(map(_is_strict, schema))
    if not isinstance(schema, dict):
        return True
    if isinstance(schema.get("properties"), dict) and (
        schema.get("additionalProperties") is not False
        or set(schema.get("required", ())) != set(schema["properties"])
    ):
        return False
    return all(map(_is_strict, schema.values()))


def _parsed(text: str) -> Any:
    try:
        return msgspec.json.decode(unfenced(text))
    except (ValueError, RecursionError) as error:
        raise InvalidAnswer(f"{shortened(text, 80)!r} is no JSON: {error}") from None


def _validated(model: Any, text: str) -> Any:
    """Return what a pydantic model makes of an answer, as JSON has it; raises ``InvalidAnswer`` if it refuses it."""
    try:
        return model.model_validate_json(unfenced(text)).model_dump(mode="json", by_alias=True)
    except Exception as error:
        listed = getattr(error, "errors", None)
        if listed is None:  # a validator has raised something that pydantic lets through
            raise InvalidAnswer(f"{model.__name__} raised {type(error).__name__}: {error}") from error
        problem = listed()[0]
        if problem["type"] == "json_invalid":
            raise InvalidAnswer(f"{shortened(text, 80)!r} is no JSON: {problem['msg']}") from None
        place = ".".join(map(str, problem["loc"]))
        raise InvalidAnswer(f"{f'at {place}: ' if place else ''}{shortened(problem['msg'], 300)}") from None


def _source_of(model: Any) -> tuple[str, ...]:
    """Return the code of a pydantic model, as far as it is known: its validators are not in its JSON schema."""
    own = [
        each for each in model.__mro__ if each.__module__.partition(".")[0] not in ("pydantic", "builtins")
    ]
    found = []
    for each in own:
        with contextlib.suppress(OSError, TypeError):
            found.append(inspect.getsource(each))
    return tuple(found)


def arrow_type(schema: Any, root: Mapping[str, Any], depth: int = 0) -> pa.DataType:
    """Return the type of the column that holds values of a JSON schema; JSON text where none fits.

    >>> arrow_type({"type": "object", "properties": {"a": {"type": "integer"}}}, {})
    StructType(struct<a: int64>)
    """
    if not isinstance(schema, Mapping) or depth > 20:
        return pa.string()
    if "$ref" in schema:
        return arrow_type(_referred(str(schema["$ref"]), root), root, depth + 1)
    for several in ("anyOf", "oneOf"):
        if several in schema:
            kinds = [each for each in schema[several] if each != {"type": "null"}]
            return arrow_type(kinds[0], root, depth + 1) if len(kinds) == 1 else pa.string()
    kind = schema.get("type")
    if isinstance(kind, list):
        kinds = [each for each in kind if each != "null"]
        kind = kinds[0] if len(kinds) == 1 else None
    plain = {"string": pa.string(), "integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_()}
    if kind in plain:
        return plain[kind]
    if kind == "array" and isinstance(schema.get("items"), Mapping):
        return pa.list_(arrow_type(schema["items"], root, depth + 1))
    if kind == "object" and schema.get("properties") and _is_closed(schema):
        return pa.struct(
            [(name, arrow_type(each, root, depth + 1)) for name, each in schema["properties"].items()]
        )
    return pa.string()


def _is_closed(schema: Mapping[str, Any]) -> bool:
    """Say whether all that is of interest in an object has a name; pydantic and most people leave it unsaid."""
    return not isinstance(schema.get("additionalProperties"), Mapping)


def _referred(reference: str, root: Mapping[str, Any]) -> Any:
    found: Any = root
    for part in reference.removeprefix("#/").split("/"):
        found = found.get(part) if isinstance(found, Mapping) else None
    return copy.copy(found)


def typed(value: Any, kind: pa.DataType) -> Any:
    """Return a value of JSON as a column of this type holds it; raises ``InvalidAnswer`` if it cannot."""
    if value is None:
        return None
    if pa.types.is_struct(kind) and isinstance(value, dict):
        return {field.name: typed(value.get(field.name), field.type) for field in kind}
    if pa.types.is_list(kind) and isinstance(value, list):
        return [typed(each, kind.value_type) for each in value]
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    with contextlib.suppress(ValueError, OverflowError):
        if pa.types.is_string(kind):
            return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, allow_nan=False)
        if pa.types.is_boolean(kind) and isinstance(value, bool):
            return value
        if pa.types.is_int64(kind) and is_number and int(value) in _INT64:
            return int(value)
        if pa.types.is_float64(kind) and is_number and math.isfinite(found := float(value)):
            return found
    raise InvalidAnswer(f"{value!s:.80} does not fit into a column of type {kind}")
