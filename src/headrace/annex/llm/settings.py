"""What a model is told with each request, and ``with_options``, which says it: the same for all kinds of models."""

from __future__ import annotations

import copy
import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypedDict, Unpack

from headrace.core.arguments import known_arguments
from headrace.errors import ArgumentError, nearest

if TYPE_CHECKING:
    from headrace.annex.llm.spending import Budget

# Every program imports this with the verbs: what only those need who ask a model is imported in functions.

MORE = ("reasoning", "logprobs", "model")
"""What else of an answer may be a column."""
FALLBACKS = ("filtered", "too_long", "truncated", "invalid", "failed")
"""Why a row is asked of another model."""
_OWN = {
    "model": "the Endpoint names it",
    "messages": "the template makes them",
    "n": "say n=",
    "stream": "answers are read as a whole",
    "tools": "say tools=",
    "response_format": "say schema=",
    "logprobs": "say columns=['logprobs']",
}


class Settings(TypedDict, total=False):
    """The settings of requests, as ``with_options`` takes them. None is the default."""

    system: str | None
    sampling: Mapping[str, Any] | None
    overrides: Mapping[str, str] | None
    tools: Sequence[Mapping[str, Any]] | None
    guided: bool | None
    repairs: int | None
    on_truncated: str | int | None
    keep_raw: bool | None
    columns: str | Sequence[str] | None
    n: int | None
    fallback: Mapping[str, Any] | None
    order: str | None
    cache: str | os.PathLike[str] | None
    budget: Budget | None
    deadline: float | None
    runaway: float | None


# ---------------------------------------------------------------- what each may be


def given_text(name: str, value: Any) -> str:
    """Read a text that is not empty."""
    if not isinstance(value, str) or not value.strip():
        raise ArgumentError(f"{name}={value!r}: it takes a text that is not empty.")
    return value


def given_flag(name: str, value: Any) -> bool:
    """Read True or False."""
    if not isinstance(value, bool):
        raise ArgumentError(f"{name}={value!r}: it takes True or False.")
    return value


def given_count(name: str, value: Any, least: int = 0) -> int:
    """Read a whole number."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ArgumentError(f"{name}={value!r}: it takes a whole number of at least {least}.")
    return value


def given_positive(name: str, value: Any) -> int:
    """Read a whole number of at least 1."""
    return given_count(name, value, 1)


def given_amount(name: str, value: Any) -> float:
    """Read a number above 0."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
        raise ArgumentError(f"{name}={value!r}: it takes a number above 0.")
    return float(value)


def optional(read: Callable[[str, Any], Any], name: str, value: Any) -> Any:
    """Read a value that may be None."""
    return None if value is None else read(name, value)


def _given_sampling(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(each, str) for each in value):
        raise ArgumentError(
            f"{name}={value!r:.80}: it takes a dict of parameters, such as {{'temperature': 0.0}}."
        )
    _check_own(name, value)
    return dict(_as_json(name, dict(value)))


def _given_overrides(name: str, value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping) or not all(
        isinstance(each, str) and each for pair in value.items() for each in pair
    ):
        raise ArgumentError(
            f"{name}={value!r:.80}: it takes columns by parameter, such as {{'max_tokens': 'limit'}}."
        )
    _check_own(name, {each: column for each, column in value.items() if each != "model"})
    return dict(value)


def _given_columns(name: str, value: Any) -> tuple[str, ...]:
    names = (value,) if isinstance(value, str) else value
    if not isinstance(names, Sequence) or not all(each in MORE for each in names):
        raise ArgumentError(f"{name}={value!r:.80}: it takes some of {', '.join(map(repr, MORE))}.")
    return tuple(each for each in MORE if each in names)


def _given_fallback(name: str, value: Any) -> dict[str, LanguageModel]:
    if not isinstance(value, Mapping) or not all(each in FALLBACKS for each in value):
        raise ArgumentError(
            f"{name}={value!r:.80}: it takes models by the reason to ask them: {', '.join(map(repr, FALLBACKS))}."
        )
    for model in value.values():
        if not isinstance(model, LanguageModel) or not model.is_served or model.settings != _DEFAULTS:
            raise ArgumentError(
                f"{name}= has {model!r:.80}: it takes endpoints without with_options, asked as this model is."
            )
    return dict(value)


def _check_own(name: str, parameters: Mapping[str, Any]) -> None:
    for each in parameters:
        if each in _OWN:
            raise ArgumentError(f"{name}= has {each!r}, which cannot be given here: {_OWN[each]}.")


def _given_tools(name: str, value: Any) -> tuple[dict[str, Any], ...]:
    is_list = isinstance(value, Sequence) and bool(value)
    if not is_list or not all(isinstance(each, Mapping) and "type" in each for each in value):
        raise ArgumentError(
            f"{name}={value!r:.80}: it takes a list as OpenAI's, [{{'type': 'function', 'function': {{'name': …}}}}]."
        )
    return tuple(_as_json(name, list(value)))


def _as_json(name: str, value: Any) -> Any:
    import json

    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"{name}={value!r:.80}: it cannot be sent as JSON: {error}.") from None


def _given_truncation(name: str, value: Any) -> str | int:
    if isinstance(value, str) and value in ("error", "keep"):
        return value
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ArgumentError(
            f"{name}={value!r}: it takes 'error', 'keep', or a number of tokens with which to ask once more."
        )
    return value


def _given_order(name: str, value: Any) -> str:
    from headrace.annex.llm.order import ORDERS

    if value not in ORDERS:
        raise ArgumentError(f"{name}={value!r}: it takes 'arrival', 'prefix' or 'longest'.")
    return str(value)


def _given_folder(name: str, value: Any) -> str:
    from headrace.core.files.storage import absolute

    if not isinstance(value, (str, os.PathLike)) or not os.fspath(value):
        raise ArgumentError(f"{name}={value!r}: it takes the path of a folder.")
    return str(absolute(os.fspath(value), f"The folder of {name}="))


def _given_budget(name: str, value: Any) -> Budget:
    from headrace.annex.llm.spending import Budget

    if not isinstance(value, Budget):
        raise ArgumentError(f"{name}={value!r:.80}: it takes hr.llm.Budget(run=5.0, day=15.0), for example.")
    return value


def _given_factor(name: str, value: Any) -> float:
    if given_amount(name, value) < 2:
        raise ArgumentError(f"{name}={value!r}: it takes a number of at least 2, such as 10.")
    return float(value)


# ---------------------------------------------------------------- all of them


def _setting(read: Callable[[str, Any], Any], default: Any = None) -> Any:
    """Return a field of ``RequestSettings``: ``read`` checks what a user gives for it."""
    if default is dict:
        return field(default_factory=dict, metadata={"read": read})
    return field(default=default, metadata={"read": read})


@dataclass(frozen=True, slots=True)
class RequestSettings:
    """What a model is told with each request, and how its answers are taken. Checked by ``with_options``."""

    system: str | None = _setting(given_text)
    sampling: Mapping[str, Any] = _setting(_given_sampling, dict)
    overrides: Mapping[str, str] = _setting(_given_overrides, dict)
    tools: tuple[dict[str, Any], ...] = _setting(_given_tools, ())
    guided: bool = _setting(given_flag, default=True)
    repairs: int = _setting(given_count, 1)
    on_truncated: str | int = _setting(_given_truncation, "error")
    keep_raw: bool = _setting(given_flag, default=False)
    columns: tuple[str, ...] = _setting(_given_columns, ())
    n: int = _setting(given_positive, 1)
    fallback: Mapping[str, Any] = _setting(_given_fallback, dict)
    order: str = _setting(_given_order, "")
    cache: str = _setting(_given_folder, "")
    budget: Budget | None = field(default=None, metadata={"read": _given_budget})
    deadline: float | None = _setting(given_amount)
    runaway: float | None = _setting(_given_factor)

    @property
    def more(self) -> tuple[str, ...]:
        """What else of an answer is a column: with a fallback, who was asked."""
        return tuple(
            name for name in MORE if name in self.columns or (name == "model" and bool(self.fallback))
        )

    @property
    def max_tokens(self) -> Any:
        """How long an answer may be; None if ``sampling`` does not say."""
        return self.sampling.get("max_completion_tokens", self.sampling.get("max_tokens"))


_DEFAULTS = RequestSettings()


class LanguageModel:
    """Base of all models that ``prompt`` takes.

    ``refuses``: settings that make no sense for this kind, each with the reason. ``sampling_names``: the parameters
    that it takes, None: its server knows. ``is_served``: a server answers, which draws answers unless it is told
    otherwise.
    """

    __slots__ = ()

    refuses: ClassVar[Mapping[str, str]] = {}
    sampling_names: ClassVar[tuple[str, ...] | None] = None
    is_served: ClassVar[bool] = False
    takes_images: ClassVar[bool] = False
    prices: Any = None
    settings: RequestSettings = _DEFAULTS

    @known_arguments(options=Settings)
    def with_options(self, **settings: Unpack[Settings]) -> Self:
        """Return the same model with other settings of its requests; those that are not named stay as they are.

        None sets a setting back to its default. Another ``system``, ``sampling`` or ``schema`` is another plan;
        other limits, orders and caches are not.

        Parameters
        ----------
        system
            What stands before the messages as the system's.
        sampling
            Parameters of each request, as the server knows them: ``{"temperature": 0.0, "max_tokens": 200}``. With
            a temperature of 0, or with a ``seed``, equal requests are asked once. Otherwise each row gets an answer
            of its own.
        overrides
            Parameters of each request that a column gives, by their names: ``{"max_tokens": "limit"}``. A null
            leaves what ``sampling`` says. At an endpoint ``{"model": "adapter"}`` asks each row of a model of its
            own, such as a LoRA adapter; ``prices`` are the endpoint's for all of them.
        tools
            Tools that the model may call, as OpenAI describes them. Nobody carries them out: what it calls is in
            ``answer_tool_calls`` as JSON text, null for none, and ``answer`` is null where it says nothing else. A
            call of another tool, or with arguments that are no JSON object, is no answer.
        guided
            False: the server is not asked to enforce ``schema=`` of ``prompt``; it is only described to the model.
        repairs
            How often the model is asked again, with a message that says what is wrong with its answer. Default: 1.
        on_truncated
            What to do with an answer that ended at ``max_tokens``. ``"error"``, the default: the row has no answer.
            ``"keep"``: the short answer is kept. A whole number: the model is asked once more, with this
            ``max_tokens``.
        keep_raw
            Keep the whole response of the server, as JSON text, in ``answer_raw``.
        columns
            What else of an answer becomes a column. ``"logprobs"``: the logarithm of the probability of each token
            (list of float64), in ``answer_logprobs``. Of an endpoint also ``"reasoning"``: what the model thought
            before it answered (string), in ``answer_reasoning``; null where the server sends none. And ``"model"``:
            the name of the model that was asked, in ``answer_model``.
        n
            How many answers each row gets. With more than one, ``answer``,
            ``answer_finish_reason``, reasoning and logprobs are lists. An answer that is cut, or not as ``schema=``
            asks, is null in its list; if all are, the row has none. They are not repaired.
        fallback
            Endpoints that a row is asked of if it has no answer from this model, by the reason: ``{"filtered":
            other}``. ``"filtered"``: a filter held back prompt or answer, or the model refused. ``"too_long"``: the
            prompt is longer than the model takes. ``"truncated"``: the answer was cut at ``max_tokens``.
            ``"invalid"``: it is no text, or not as ``schema=`` asks, after repairs. ``"failed"``: the server failed
            at it, after all retries. Everything else is asked the same way; tokens are those of both. The column
            ``answer_model`` says who was asked.
        order
            The order in which waiting requests are sent. ``"arrival"``: in the order of the rows. ``"prefix"``:
            prompts with the same beginning one after another, for models that cache beginnings (the default for
            ``VLLM``). ``"longest"``: near the end of the input, those first that will probably take longest, by
            the lengths of prompts and by how long others took. The output always has the order of the rows.
        cache
            A folder in which answers are kept after the run, also for other runs that ask the same. Equal requests
            are then asked once, whatever ``sampling`` says.
        budget
            What may be spent: ``hr.llm.Budget(run=5.0, day=15.0)``. An endpoint needs ``prices`` for an amount of
            money, and ``max_tokens`` in ``sampling``. No request is sent that might go beyond it. Then the run ends
            with ``SpendingCapReached``; with a greater budget, it goes on.
        deadline
            Seconds within which answers are needed, for ``via="auto"``: batches take up to 86,400.
        runaway
            Stop an answer that has so many times as many tokens as three of four answers before it, and more than
            256: 10, for example. Its row has no answer, and the error names the script of its letters. A run ends
            with ``SpendingCapReached`` in which more than a tenth of the last 200 answers had to be stopped, or in
            which the last 200 cost so many times as much as the first 200. Each worker learns from its own answers,
            from the 40th on. Default: nothing is stopped; answers that are 10 times as long are counted.

        Raises ``ArgumentError`` for a value that makes no sense, or a setting that this kind of model does not have.

        Examples
        --------
        >>> import headrace as hr
        >>> from headrace.testing import FakeLLMServer
        >>> with FakeLLMServer(lambda prompt: prompt.upper()) as server:
        ...     model = hr.llm.Endpoint(server.url, "fake").with_options(sampling={"max_tokens": 2})
        ...     asked = hr.from_items([{"word": "mill"}]).prompt("Say {word}", model)
        ...     asked.select_columns(["answer"]).with_options(engine="inline").take_all()
        [{'answer': 'SAY MILL'}]
        """
        given: Mapping[str, Any] = settings
        found: dict[str, Any] = {}
        for each in dataclasses.fields(RequestSettings):
            value = given.get(each.name)
            if value is not None:
                if each.name in self.refuses:
                    raise ArgumentError(f"{each.name}= {self.refuses[each.name]}.")
                found[each.name] = each.metadata["read"](each.name, value)
            elif each.name in given:
                found[each.name] = getattr(_DEFAULTS, each.name)
        made = copy.copy(self)
        object.__setattr__(made, "settings", dataclasses.replace(self.settings, **found))
        made.check_names(made.settings.overrides)
        made.check_names(made.settings.sampling)
        for name, value in made.settings.sampling.items():
            made.check_value(name, value)
        return made

    @property
    def noun(self) -> str:
        """The name of the kind of model."""
        return type(self).__name__

    @property
    def order(self) -> str:
        """The order in which waiting requests are sent."""
        return self.settings.order or "arrival"

    def on_gpus(self, count: float | None) -> Self:
        """Return the model for workers with so many GPUs each."""
        return self

    def check_names(self, names: Iterable[str]) -> None:
        """Refuse names of parameters that the model does not take."""
        known = self.sampling_names
        for name in names:
            if known is not None and name not in known:
                hint = nearest(name, known) or f" It has: {', '.join(known)}."
                raise ArgumentError(f"sampling= has {name!r}, which a {self.noun} model does not take.{hint}")

    def check_value(self, name: str, value: Any) -> None:
        """Refuse a value of a parameter that makes no sense, for all rows or for one."""
        if self.sampling_names is None or name not in ("max_tokens", "max_completion_tokens"):
            return
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ArgumentError(f"sampling={{{name!r}: {value!r}}}: it takes a whole number of at least 1.")

    def check_together(self, schema: Any) -> None:
        """Refuse settings that do not go with one another, or with ``schema=`` of ``prompt``."""
        settings = self.settings
        if settings.tools and schema is not None:
            raise ArgumentError(
                "tools= and schema=: a tool call does not have the form of schema=. Give one of them."
            )
        if settings.n > 1 and (settings.tools or settings.runaway or isinstance(settings.on_truncated, int)):
            raise ArgumentError(
                "n= above 1 goes with neither tools=, runaway= nor a number as on_truncated=: these are about a "
                "single answer."
            )
        longer, first = settings.on_truncated, settings.max_tokens
        if isinstance(longer, int) and (not isinstance(first, int) or first >= longer):
            raise ArgumentError(
                f"on_truncated={longer}: it must be more than max_tokens in sampling= ({first!r} there). "
                "Otherwise the second answer would be cut off, too."
            )
        self.check_budget()

    def check_budget(self, *, embeds: bool = False) -> None:
        """Refuse a budget of which nobody could say whether a request goes beyond it."""
        budget = self.settings.budget
        if budget is None:
            return
        if not self.is_served:
            if budget.priced or budget.caps["day"]:
                raise ArgumentError(
                    f"budget={budget!r}: a {self.noun} model in the worker has neither a price nor a key. It takes "
                    "Budget(run_tokens=…, output_tokens=…)."
                )
            return
        served = next((each["type"] for each in self.settings.tools if each["type"] != "function"), None)
        if served is not None:
            raise ArgumentError(
                f"budget={budget!r}: the server carries out the tool {served!r} itself, and it is not known what "
                "that costs. Leave one of them out."
            )
        asked = (self, *self.settings.fallback.values())
        needed = {"input"} if embeds else {"input", "output"}
        if budget.priced and any(needed - set(model.prices or ()) for model in asked):
            raise ArgumentError(
                f"budget={budget!r}: what a token of {self.noun} costs is not known, in and out. Give it to the "
                "endpoint: Endpoint(…, prices={'input': 0.15, 'output': 0.6}), per million tokens, or prices='table'."
            )
        longest = self.settings.max_tokens
        if not embeds and (not isinstance(longest, int) or longest < 1):
            raise ArgumentError(
                f"budget={budget!r}: it is not known how long an answer may be, and no request may go beyond it. Say "
                "so by sampling={'max_tokens': 500}. The most that a request may cost is set aside beforehand."
            )


def given_model(verb: str, value: Any) -> LanguageModel:
    """Read a language model."""
    if isinstance(value, LanguageModel):
        return value
    raise ArgumentError(
        f"{verb}: the model is {type(value).__name__}; it is an endpoint, "
        "hr.llm.Endpoint('http://localhost:8000/v1', 'name of the model'), or a model of this machine, "
        "hr.llm.VLLM('folder') or hr.llm.SGLang('folder')."
    )
