"""The options of ``pyarrow.json``, in its two classes, as arguments of ``read_json``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.core.arguments import Translated, Unsupported
from headrace.errors import ArgumentError
from headrace.plan import ray_arguments


def given_parse_options(options: Any) -> Mapping[str, Any]:
    """Return what ``pyarrow.json.ParseOptions`` say that is not the default, by the names of ``read_json``."""
    from pyarrow import json

    if not isinstance(options, json.ParseOptions):
        raise ArgumentError(
            f"parse_options={options!r} is not a pyarrow.json.ParseOptions; schema= says the fields."
        )
    schema, others = options.explicit_schema, options.unexpected_field_behavior
    if schema is None and others == "infer":
        return {}
    if schema is None or others != "ignore":
        raise ArgumentError(
            f"read_json has no use for unexpected_field_behavior={others!r} of ParseOptions: with a schema, other "
            "fields are passed over ('ignore'); without one, all are read."
        )
    return {"schema": schema}


READ_JSON: dict[str, Unsupported] = {
    **ray_arguments.READ_JSON,
    "parse_options": Translated("", (None,), given_parse_options),
    "read_options": Unsupported("how much is read at a time is settled by size", None),
}
