"""What is asked by batches before a run begins: whether, for what money, and where that stands."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import os
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from headrace.annex.llm.batch_ledger import BatchLedger
from headrace.annex.llm.batch_services import PatientCalls
from headrace.annex.llm.batch_work import Asking, BatchWork
from headrace.annex.llm.client import Client, NothingThere
from headrace.annex.llm.limiter import key_name
from headrace.annex.llm.spending import Account, Accounts, accounts_of, day_account
from headrace.annex.llm.store import AnswerStore, Caps, Spent
from headrace.core.answered import Tokens
from headrace.core.events import BatchesAtWork, ModelAsked
from headrace.errors import ArgumentError, EndpointRefused

if TYPE_CHECKING:
    from headrace.annex.llm.endpoint import Endpoint

_SERVICES = {"openai": "/batches", "anthropic": "/messages/batches"}
"""Where the batches are listed of each kind of service."""


def name_of(*about: str) -> str:
    """Return the name of what is asked by batches, by what tells it from others of the same run."""
    return f"batches-{hashlib.blake2b(repr(about).encode(), digest_size=4).hexdigest()}"


class Ahead:
    """The work of a batch service for all rows, see ``PredictorParts.ahead``."""

    def __init__(self, looking: Any, asking: Asking) -> None:
        self.looking = looking
        self._asking = asking
        self._folder = ""
        self._ledger: BatchLedger | None = None
        self._accounts = Accounts()
        self._tell: Callable[[Any], None] = lambda event: None
        self._alive: Callable[[], None] = lambda: None
        self._noted: BatchesAtWork | None = None
        self.words = ""

    # ------------------------------------------------------------ whether

    @property
    def may(self) -> bool:
        """Whether rows may be looked at."""
        return self._asking.via != "requests"

    def check(self, folder: str, after: Sequence[Any], *, elsewhere: bool) -> None:
        """Refuse where batches would be lost, or their answers not be found or not be needed."""
        if self._asking.via != "batch":
            return
        why = ""
        if elsewhere:
            why = "other machines do not see the answers. Use engine='local', and leave fleet= out"
        elif not folder:
            why = (
                "batches take up to a day, and are kept beside an output in a folder of this machine. So nothing is "
                "paid twice. Write the rows to such a folder, or look at some first without via="
            )
        elif any(step.row_limit is not None for step in after):
            why = "all rows are asked before the run begins, and a limit behind it would drop some. Put it before"
        if why:
            raise ArgumentError(f"{self._asking.label} with via='batch': {why}.")
        self._folder = folder

    def wanted(self, folder: str) -> bool:
        """Say whether there is anything to do: by ``via``, or as an earlier driver has sent something."""
        self._folder = folder
        return bool(folder) and (self.may or BatchLedger.there(folder, self._asking.name))

    # ------------------------------------------------------------ work

    def open(self, tell: Callable[[Any], None], alive: Callable[[], None]) -> None:
        """Begin, or go on."""
        self._tell, self._alive = tell, alive

    def close(self) -> None:
        """Let go of the databases."""
        for account in self._accounts.all:
            account.store.close()

    def carry_out(self) -> bool:
        """Have all that is noted answered; say whether rows are to be looked at, again or for the first time."""
        ledger, first, asking = self._ledger, self._ledger is None, self._asking
        if ledger is None:
            looks = self._looks()
            if not looks and not BatchLedger.there(self._folder, asking.name):
                return False
            ledger = self._ledger = BatchLedger(self._folder, asking.name)
            self._accounts = self._opened_accounts(ledger)
            for account in self._accounts.all:
                account.store.be_patient()
            ledger.check_place(asking.endpoint.base_url)
        sent = False
        if not first or ledger.parts():
            self._check_service()
            work = BatchWork(asking, self._service, ledger, self._accounts, self._folder, self._note)
            sent = asyncio.run(work.run(self._alive, more=not first))
        self._remove_files()
        self._say(ledger)
        again = looks if first else sent and asking.follows
        if again:
            ledger.begin()
        return again

    def _looks(self) -> bool:
        """Say whether rows are to be looked at, and so be asked by batches."""
        asking = self._asking
        if asking.via == "auto":
            return not asking.declined and bool(self._service)
        if asking.via == "batch":
            self._check_service()
        return asking.via == "batch"

    def _opened_accounts(self, ledger: BatchLedger) -> Accounts:
        """Return all that the budget holds for; the first is that of the batches of this run."""
        endpoint = self._asking.endpoint
        budget = endpoint.settings.budget
        if budget is None:
            return Accounts(Account("run", ledger, Caps(), Spent()))
        output = AnswerStore(os.path.dirname(os.path.dirname(self._folder)), name="spent")
        day = day_account(key_name(endpoint.server, endpoint.key()), budget.caps["day"])
        return Accounts(*accounts_of(budget, ledger, output), *([day] if day is not None else []))

    def _remove_files(self) -> None:
        """Remove what killed processes left of files that were sent or fetched."""
        for name in os.listdir(self._folder):
            if re.fullmatch(rf"{self._asking.name}-\d+-(requests|answers|gone)", name):
                os.unlink(os.path.join(self._folder, name))

    # ------------------------------------------------------------ what is said

    def _note(self, done: int, lines: int, batches: Sequence[str]) -> None:
        event = BatchesAtWork(self._asking.label, lines, done, tuple(batches))
        self.words = str(event)
        if event != self._noted:
            self._noted = event
            self._tell(event)

    def _say(self, ledger: BatchLedger) -> None:
        """Tell what batches have used."""
        spent = ledger.spent()
        total = Tokens(spent.requests, spent.prompt_tokens, spent.completion_tokens, spent.cost)
        priced = self._asking.endpoint.prices is not None
        self._tell(
            ModelAsked(
                -1, self._asking.label, ledger.place, Tokens(), 0, 0, ledger.place, total, spent.sent, spent.ended,
                priced=priced, parts=((f"{self._asking.label} by batches", total),) if total.answers else (),
            )
        )  # fmt: skip

    @functools.cached_property
    def _service(self) -> str:
        """Which batch service the endpoint has."""
        return asyncio.run(_service_of(self._asking.endpoint, self._asking.path))

    def _check_service(self) -> None:
        """Refuse an endpoint without a batch service, or a request that it could not take."""
        asking = self._asking
        if not self._service:
            raise EndpointRefused(
                f"The endpoint {asking.endpoint.base_url} has no batch service: it has nothing at /batches, nor at "
                f"/messages/batches. Nothing was sent. Leave via='batch' out of {asking.label}, to send the requests "
                "one by one."
            )
        settings = asking.endpoint.settings
        if self._service == "anthropic" and (
            settings.max_tokens is None or settings.n > 1 or settings.columns
        ):
            raise EndpointRefused(
                f"{asking.label}: the batch service of {asking.endpoint.base_url} is Anthropic's. It needs "
                "max_tokens in sampling=, gives one answer, and has no log probabilities: leave n= and columns= out."
            )


async def _service_of(endpoint: Endpoint, path: str) -> str:
    """Return which batch service an endpoint has: ``"openai"``, ``"anthropic"`` for chats, or ``""``."""
    calls = PatientCalls(f"The endpoint {endpoint.base_url}", endpoint.max_retries)
    for kind, place in _SERVICES.items() if path == "/chat/completions" else [("openai", "/batches")]:
        client = Client(endpoint, anthropic=kind == "anthropic")
        await client.open()
        try:
            await calls.patiently(lambda: client.call("GET", place, params={"limit": "1"}))  # noqa: B023
            return kind
        except NothingThere:
            pass
        finally:
            await client.close()
    return ""
