"""What asks a model for rows: where it keeps answers and counts what they cost, whoever asks and whatever for."""

from __future__ import annotations

import asyncio
import copy
import hashlib
import math
import os
import secrets
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from headrace.annex.llm.answers import way_of
from headrace.annex.llm.batch_ledger import BatchLedger, other_rows
from headrace.annex.llm.client import Client
from headrace.annex.llm.endpoint import Endpoint
from headrace.annex.llm.limiter import own_folder
from headrace.annex.llm.outliers import Guard
from headrace.annex.llm.spending import Spending, no_folder
from headrace.annex.llm.store import AnswerStore
from headrace.annex.llm.usage import most_tokens
from headrace.core.answered import Tokens
from headrace.core.events import ModelAsked
from headrace.core.model_ports import Rates, Shares
from headrace.errors import EngineError, PlanError

if TYPE_CHECKING:
    from headrace.annex.llm.engine_kinds import EngineClient

NOTE_SECONDS = 0.25


class Asking:
    """Base of the predictors of ``prompt`` and ``embed``.

    ``run`` names the run where it has no folder. ``about`` tells what is asked by batches from others of the run.
    """

    batch_format = "pyarrow"
    path = "/chat/completions"
    """Where requests go."""

    def __init__(self, verb: str, model: Any, via: str, about: tuple[str, ...], run: str = "") -> None:
        self.model, self.via, self.settings = model, via, model.settings
        self.label = getattr(model, "label", "") or model.model
        self.who = f"{verb}({self.label})"
        self.run = run or secrets.token_hex(8)
        self.batches = f"batches-{hashlib.blake2b(repr(about).encode(), digest_size=4).hexdigest()}"
        self.looks = False  # for what rows ask: what nobody has asked is noted for a batch service
        self._folder = ""  # of the run, if it has one
        self._begun: Begun | None = None
        self._rates: Rates | None = None
        self._budgeted: Shares | None = None

    @property
    def prompt_version(self) -> str:
        """What names the way in which the model is asked, for the record."""
        return ""

    @property
    def follows(self) -> bool:
        """Whether an answer may lead to another request."""
        return False

    def read_line(self, data: Mapping[str, Any]) -> bytes:
        """Return what is kept of an answer by a batch; raises ``Again`` or a ``RowError`` as the client's does."""
        raise NotImplementedError

    @property
    def begun(self) -> Begun:
        """What there is from ``load`` to ``close``."""
        assert self._begun is not None
        return self._begun

    @property
    def asked_so_far(self) -> ModelAsked | None:
        """What was asked and used so far, as it was noted last; ``step`` and ``taken`` are for others to know."""
        return self._begun.said if self._begun is not None else None

    @property
    def retried(self) -> deque[str] | None:
        """Why requests were sent again, since somebody looked."""
        return self._begun.ways[0].asker.retried if self._begun is not None else None

    def looking(self) -> Self:
        """Return the same to look for what rows ask."""
        made = copy.copy(self)
        made.looks = True
        return made

    def at_once(self) -> Self:
        """Return the same to ask by requests, whatever is cheaper."""
        made = copy.copy(self)
        made.via = "requests"
        return made

    def weights(self) -> str:
        """Describe where the model is, and how it is asked."""
        return f"{self.model.weights()}{way_of(self.model, self.via)}"

    def keep_in(self, folder: str) -> None:
        """Keep in the folder of the run what it has used, and its answers unless the user has another for them."""
        self._folder = folder

    def sharing(self, rates: Rates, shares: Shares | None) -> Self:
        """Return the same with rates and a budget that are for all machines, until the output is complete."""
        budget, models = self.settings.budget, (self.model, *self.settings.fallback.values())
        if not budget and not any(isinstance(model, Endpoint) and model.rated for model in models):
            return self
        if shares is not None and budget and (budget.caps["output"] or budget.caps["day"]):
            raise PlanError(
                f"{self.who} has {budget!r}, and machines can only share what is for one run. Give run= or "
                "run_tokens=: it is for all machines together, until the output is complete"
            )
        made = copy.copy(self)
        made._rates, made._budgeted = rates, shares if budget else None
        return made

    async def load(self) -> None:
        """Open the store of answers, and make ready to ask."""
        cache = self.settings.cache
        store = AnswerStore(cache or self._folder, "" if self._folder else self.run, what=self._what())
        self._begun = Begun(store, self._counting_in(store), self._output_account())
        if BatchLedger.there(self._folder, self.batches):
            self._begun.batches = BatchLedger(self._folder, self.batches)
        await self._add_way(self.model, self._begun.used)

    async def _add_way(self, model: Any, used: AnswerStore) -> None:
        """Make ready to ask a model; ``used`` is where what it costs is counted."""
        asker: Client | EngineClient
        if isinstance(model, Endpoint):
            asker = Client(model, self.path)
            if self._rates is not None:
                asker.take_turns(self._rates)
        else:
            from headrace.annex.llm.engine_kinds import EngineClient

            asker = EngineClient(model)
        budget, output = self.settings.budget, self.begun.output
        asker.spending = Spending(budget, model, used, self.who, output=output, shares=self._budgeted)
        self.begun.ways.append(Way(model, asker, used, Guard(self.settings.runaway, self.who)))
        await asker.spending.open()
        await asker.open()

    def _what(self, label: str = "") -> str:
        """What is asked, as the record names it: the model and the version of the prompt."""
        return ", ".join(filter(None, (label or self.label, self.prompt_version)))

    def _counting_in(self, store: AnswerStore) -> AnswerStore:
        """Return where is counted what this run uses: in its folder, or, without any, where other workers see it."""
        settings = self.settings
        if settings.cache and self._folder:
            return AnswerStore(self._folder, what=self._what())
        if self._folder or settings.cache or not settings.budget:
            return store
        shared = own_folder("headrace-spent")
        if shared is None:
            raise no_folder("The budget of a run without an output", "TMPDIR")
        return AnswerStore(shared, self.run)

    def _output_account(self) -> AnswerStore | None:
        """Return where is counted what all runs of the output have used that have a budget: beside their folders."""
        if not self._folder or not self.settings.budget:
            return None
        return AnswerStore(os.path.dirname(os.path.dirname(self._folder)), name="spent")

    async def close(self) -> None:
        """Close connections and stores."""
        if self._begun is None:
            return
        begun, self._begun = self._begun, None
        for way in begun.ways:
            await way.asker.spending.close()
            await way.asker.close()
        for kept in {begun.store, begun.used, begun.output, begun.batches, *(way.used for way in begun.ways)}:
            if kept is not None:
                kept.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_begun": None}

    def most(self, request: Mapping[str, Any]) -> tuple[int, float]:
        """Return the tokens that a request may use, and what they may cost by batches, if there is a budget."""
        if not self.settings.budget:
            return 0, 0.0
        prompt, answer = most_tokens(request)
        return prompt + answer, self.model.cost(prompt, answer, batch=True)

    def other_rows(self) -> EngineError:
        """Return the error of a run whose rows ask something else than they did when its batches were made."""
        return other_rows(self.who)


@dataclass(frozen=True, slots=True)
class Way:
    """A model that is asked. ``used`` counts for the caps."""

    model: Any
    asker: Client | EngineClient
    used: AnswerStore
    guard: Guard


@dataclass(slots=True)
class Begun:
    """What a worker has while it asks; the first of the ``ways`` is the one that was asked for."""

    store: AnswerStore
    used: AnswerStore
    output: AnswerStore | None
    batches: BatchLedger | None = None
    ways: list[Way] = field(default_factory=list)
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    session: str = field(default_factory=lambda: secrets.token_hex(4))
    given: int = 0
    said: ModelAsked | None = None
    said_at: float = -math.inf

    def note(self, *, over: bool = False) -> None:
        """Have it said what was used so far, if that is due; ``over``: nothing is under way."""
        now = time.monotonic()
        if now - self.said_at < NOTE_SECONDS and not over:
            return
        try:
            spent, parts = self.used.spent(), self.used.spent_for()
        except BlockingIOError:  # the next one says it
            return
        self.said_at = now
        total = Tokens(spent.requests, spent.prompt_tokens, spent.completion_tokens, spent.cost)
        own = sum((way.asker.spending.own for way in self.ways), Tokens())
        priced = self.ways[0].model.prices is not None
        self.said = ModelAsked(
            0, "", self.session, own, self.given, 0, self.used.place, total, spent.sent,
            spent.ended, priced=priced, parts=parts,
        )  # fmt: skip
