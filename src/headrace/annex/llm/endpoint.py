"""An endpoint: where a model is asked, as whom, and how much of it may be asked for."""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar
from urllib.parse import urlsplit

from headrace.annex.llm.settings import (
    LanguageModel,
    RequestSettings,
    given_amount,
    given_count,
    given_flag,
    given_positive,
    given_text,
    optional,
)
from headrace.core.arguments import known_arguments
from headrace.errors import ArgumentError

PRICES = ("input", "output", "batch")


@dataclass(frozen=True, slots=True, init=False)
class Endpoint(LanguageModel):
    """A model behind a server that speaks OpenAI's HTTP interface: vLLM, SGLang, llama.cpp, Ollama, OpenAI, ….

    Parameters
    ----------
    base_url
        Up to and with the version, as clients of OpenAI take it: ``"http://localhost:8000/v1"``.
    model
        The name by which the server knows the model.
    api_key_env
        The name of the environment variable that holds the key; None: no key is sent. The key itself is read by each
        worker when it begins, and is in no plan, journal, record, report, log or message.
    max_in_flight
        How many requests may be under way at a time, of all workers of this machine that use this key at this server.
        Where the server is overloaded there are fewer, until it is not any more.
    requests_per_minute, tokens_per_minute
        What the key may use; None: not limited here. All workers of this machine that use this key keep them
        together; in a fleet and on a Ray cluster, those of all machines.
    timeout
        Seconds until an answer has to be there.
    max_retries
        How often a request is sent again that was not answered: rate limits, errors of the server, timeouts, broken
        connections. Requests that the server refuses are not. A server that has never answered is tried three times.
    prices
        What tokens cost, in the currency of your choice per million: ``{"input": 0.15, "output": 0.6}``. ``"table"``
        takes what Headrace knows of the model, in dollars; each of its prices has a date and a source, and they
        change. A path is that of a newer table: a CSV file with the columns ``model``, ``input`` and ``output``. By
        the batch service they cost half of that; ``"batch": 0.4`` says another share.
    hedge
        True: a request that takes longer than 95 of 100 before it is sent a second time, where ``max_in_flight`` has
        room for it, as at the end; the first answer counts, and both are paid for. For servers of which some answers
        come late for no reason.

    Raises ``ArgumentError`` for an address that is none, a key that is not in the environment, or no prices.

    Examples
    --------
    >>> import headrace as hr
    >>> hr.llm.Endpoint("http://localhost:8000/v1", "qwen3-8b", requests_per_minute=600)
    Endpoint('http://localhost:8000/v1', 'qwen3-8b')
    """

    base_url: str
    model: str
    api_key_env: str | None
    max_in_flight: int
    requests_per_minute: float | None
    tokens_per_minute: float | None
    timeout: float
    max_retries: int
    prices: Mapping[str, float] | None
    hedge: bool
    settings: RequestSettings = field(default_factory=RequestSettings, hash=False)

    is_served: ClassVar[bool] = True
    takes_images: ClassVar[bool] = True

    @known_arguments
    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key_env: str | None = None,
        max_in_flight: int = 64,
        requests_per_minute: float | None = None,
        tokens_per_minute: float | None = None,
        timeout: float = 300.0,
        max_retries: int = 6,
        prices: Mapping[str, float] | str | os.PathLike[str] | None = None,
        hedge: bool = False,
    ) -> None:
        values = {
            "base_url": _given_url(base_url),
            "model": given_text("model", model),
            "api_key_env": None if api_key_env is None else _given_key_name(api_key_env),
            "max_in_flight": given_positive("max_in_flight", max_in_flight),
            "requests_per_minute": optional(given_amount, "requests_per_minute", requests_per_minute),
            "tokens_per_minute": optional(given_amount, "tokens_per_minute", tokens_per_minute),
            "timeout": given_amount("timeout", timeout),
            "max_retries": given_count("max_retries", max_retries),
            "prices": None if prices is None else _given_prices(prices, model),
            "hedge": given_flag("hedge", hedge),
            "settings": RequestSettings(),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)
        self.key()  # what is missing is better told before any work

    def __repr__(self) -> str:
        return f"Endpoint({self.base_url!r}, {self.model!r})"

    def identity(self) -> tuple[str, ...]:
        """Return what decides about the answers: the model, not who serves it."""
        return (self.model,)

    def weights(self) -> str:
        """Describe where the model is."""
        return f"the model is at {self.base_url}"

    @property
    def server(self) -> str:
        """The server, without a path: a key belongs to it."""
        parts = urlsplit(self.base_url)
        return f"{parts.scheme}://{parts.netloc}"

    @property
    def rated(self) -> bool:
        """True if there is a limit to what may be sent in a minute."""
        return self.requests_per_minute is not None or self.tokens_per_minute is not None

    @property
    def batch_share(self) -> float:
        """Which share of the price a request costs that goes by the batch service."""
        return float((self.prices or {}).get("batch", 0.5))

    def key(self) -> str | None:
        """Return the key, from the environment of this process."""
        if self.api_key_env is None:
            return None
        key = os.environ.get(self.api_key_env, "").strip()
        if not key:
            raise ArgumentError(
                f"Endpoint({self.base_url!r}, {self.model!r}): the environment variable "
                f"{self.api_key_env} is not set, "
                "and api_key_env= says that it holds the key. Set it where the program starts (export "
                f"{self.api_key_env}=…); on a Ray cluster, on its machines too. For a server without keys, leave "
                "api_key_env= out."
            )
        if not (key.isascii() and key.isprintable()):
            raise ArgumentError(
                f"The environment variable {self.api_key_env} holds characters that no key has; check how it was set."
            )
        return key

    def cost(self, prompt_tokens: int, completion_tokens: int, *, batch: bool = False) -> float:
        """Return what so many tokens cost; ``batch``: by the batch service."""
        if self.prices is None:
            return 0.0
        whole = (
            prompt_tokens * self.prices.get("input", 0.0) + completion_tokens * self.prices.get("output", 0.0)
        ) / 1e6
        return whole * self.batch_share if batch else whole


def _given_url(value: str) -> str:
    said = f"Endpoint({value!r}, …)" if isinstance(value, str) else f"Endpoint({type(value).__name__}, …)"
    example = "such as 'http://localhost:8000/v1'"
    if not isinstance(value, str):
        raise ArgumentError(f"{said}: base_url is text, {example}.")
    try:
        parts = urlsplit(value)
        _ = parts.port
    except ValueError as error:
        raise ArgumentError(
            f"{said}: base_url is not the address of a server ({error}); it is one {example}."
        ) from None
    if parts.username or parts.password:
        raise ArgumentError(
            "Endpoint(…): base_url holds a name or a password, and would be written down with the plan. Give the key "
            "by an environment variable: api_key_env='NAME'."
        )
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ArgumentError(
            f"{said}: base_url is not the address of a server; it is one {example}, without ? and #."
        )
    path = parts.path.rstrip("/")
    for ending in ("/chat/completions", "/completions", "/embeddings"):
        if path.endswith(ending):
            raise ArgumentError(f"{said}: leave {ending!r} out; base_url ends with the version, {example}.")
    return f"{parts.scheme}://{parts.netloc}{path}"


def _given_key_name(value: str) -> str:
    if (
        not isinstance(value, str)
        or not value.replace("_", "a").isalnum()
        or value[0].isdigit()
        or len(value) > 80
    ):
        # The value may be the key itself, given by mistake: it is not shown.
        raise ArgumentError(
            "api_key_env= takes the name of an environment variable, such as 'OPENAI_API_KEY', and not the key."
        )
    return value


def _given_prices(value: Mapping[str, float] | str | os.PathLike[str], model: str) -> dict[str, float]:
    if isinstance(value, (str, os.PathLike)):
        return _listed_prices(os.fspath(value), model)
    if not isinstance(value, Mapping) or not value or set(value) - set(PRICES):
        raise ArgumentError(
            f"prices={value!r}: it takes what a million tokens cost, {{'input': 0.15, 'output': 0.6}}, 'table', or "
            "the path of a table."
        )
    for price in value.values():
        if isinstance(price, bool) or not isinstance(price, (int, float)) or not 0 <= price < float("inf"):
            raise ArgumentError(f"prices={value!r}: a price is a number of at least 0.")
    return {name: float(price) for name, price in value.items()}


def _listed_prices(place: str, model: str) -> dict[str, float]:
    """Return what a table says of a model; it is a CSV file with ``model``, ``input`` and ``output`` at least."""
    path = os.path.join(os.path.dirname(__file__), "prices.csv") if place == "table" else place
    try:
        with open(path, newline="", encoding="utf-8") as file:
            rows = {
                row["model"]: {name: float(row[name]) for name in PRICES if name != "batch" or row.get(name)}
                for row in csv.DictReader(file)
            }
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ArgumentError(
            f"prices={place!r}: it is not a table of prices ({error!r}). It takes a CSV file with the columns model, "
            "input and output, in money per million tokens, and batch, if you like."
        ) from None
    if model not in rows:
        raise ArgumentError(
            f"prices={place!r}: it has no price of {model!r}. It has {', '.join(sorted(rows))}. Say it: "
            "prices={'input': 0.15, 'output': 0.6}, per million tokens, or the path of a table that has it."
        )
    return _given_prices(rows[model], model)
