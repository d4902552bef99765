"""Options that several commands share are fields of a dataclass; a command takes the dataclass.

typer reads functions, so ``flat`` makes one whose parameters are the fields.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, get_type_hints

import typer

from headrace.cli.answer import Answer
from headrace.cli.help import HelpAll

Json = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON object; all else goes to standard error."),
]


def flat(function: Callable[..., Answer | int]) -> Callable[..., Answer | int]:
    """Return a function for typer: dataclass parameters are spread out, and ``--json`` is among the options.

    Whether the answer is wanted as JSON is known before any command runs, so ``function`` gets it only if it has a
    parameter ``json``.
    """
    hints = get_type_hints(function, include_extras=True)
    parameters: list[inspect.Parameter] = []
    groups: dict[str, tuple[Any, list[str]]] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        kind = hints[name]
        if dataclasses.is_dataclass(kind):
            inner = get_type_hints(kind, include_extras=True)
            made = [_parameter(field, inner[field.name]) for field in dataclasses.fields(kind)]
            groups[name] = (kind, [each.name for each in made])
            parameters += made
        else:
            parameters.append(parameter.replace(kind=parameter.KEYWORD_ONLY, annotation=kind))
    wants_flag = "json" in hints
    if not wants_flag:
        parameters.append(
            inspect.Parameter("json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Json)
        )

    parameters.append(
        inspect.Parameter("help_all", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=HelpAll)
    )

    @functools.wraps(function)
    def spread(**given: Any) -> Answer | int:
        del given["help_all"]
        if not wants_flag:
            del given["json"]
        for name, (kind, names) in groups.items():
            given[name] = kind(**{each: given.pop(each) for each in names})
        return function(**given)

    del spread.__wrapped__  # typer would read the signature of that
    spread.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    spread.__annotations__ = {each.name: each.annotation for each in parameters}
    return spread


def _parameter(field: dataclasses.Field[Any], kind: Any) -> inspect.Parameter:
    default = inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default
    return inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
