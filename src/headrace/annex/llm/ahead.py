"""What rows ask of a batch service before their run begins: noted, sent in files, and kept for the rows.

A run's folder holds a database for each model that is asked so, ``answers-batches-….sqlite``. Workers note what rows
ask. The driver writes the requests of a *round* into a batch file, and has it answered as ``headrace run-batch
--via-batch-api`` does. What a round has chosen is written down before anything is sent, so that whoever goes on
completes it first.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.annex.llm import refusals
from headrace.annex.llm.batch_file import run_batch
from headrace.annex.llm.batch_lines import BatchFiles, chat_of, params_of
from headrace.annex.llm.batch_services import PatientCalls
from headrace.annex.llm.batch_state import BatchAnswers
from headrace.annex.llm.client import Client, NothingThere
from headrace.annex.llm.limiter import key_name
from headrace.annex.llm.refusals import Again, Doubtful, RowError, judged
from headrace.annex.llm.spending import Account, Accounts, accounts_of, day_account, tokens_of
from headrace.annex.llm.store import AnswerStore, Caps, Spent
from headrace.core import failpoints
from headrace.core.answered import Tokens
from headrace.core.events import BatchesAtWork, ModelAsked
from headrace.core.files import safe_files
from headrace.errors import ArgumentError, EndpointRefused, SpendingCapReached

if TYPE_CHECKING:
    from headrace.annex.llm.endpoint import Endpoint

KEPT_TOGETHER = 1_000
_SERVICES = {"openai": "/batches", "anthropic": "/messages/batches"}
"""Where the batches are listed of each kind of service."""


def name_of(*about: str) -> str:
    """Return the name of what is asked by batches, by what tells it from others of the same run."""
    return f"batches-{hashlib.blake2b(repr(about).encode(), digest_size=4).hexdigest()}"


@dataclass(frozen=True, slots=True)
class Asking:
    """How a model is asked by batches. ``path`` is where its requests go, ``read`` makes what is kept of an answer.

    ``name`` tells it from others of the run. ``declined`` says why ``via="auto"`` does not ask so. ``follows``: an
    answer may lead to another request.
    """

    endpoint: Endpoint
    label: str
    name: str
    path: str
    read: Callable[[Mapping[str, Any]], bytes]
    via: str
    declined: str
    follows: bool = False


class Ahead:
    """The work of a batch service for all rows, see ``PredictorParts.ahead``."""

    def __init__(self, looking: Any, asking: Asking) -> None:
        self.looking = looking
        self._asking = asking
        self._folder = ""
        self._store: BatchAnswers | None = None
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
        return bool(folder) and (self.may or BatchAnswers.there(folder, self._asking.name))

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
        store, first = self._store, self._store is None
        if store is None:
            looks = self._looks()
            if not looks and not BatchAnswers.there(self._folder, self._asking.name):
                return False
            store = self._store = BatchAnswers(self._folder, self._asking.name)
            self._accounts = self._opened_accounts(store)
            for account in self._accounts.all:
                account.store.be_patient()
        sent = False
        while number := store.round_at_work() or (0 if first else self._chosen(store)):
            sent = True
            self._round(store, number)
        self._remove_files()
        self._say(store)
        again = looks if first else sent and (self._asking.follows or store.retried())
        if again:
            store.begin()
        return again

    def _looks(self) -> bool:
        """Say whether rows are to be looked at, and so be asked by batches."""
        asking = self._asking
        if asking.via == "auto":
            return not asking.declined and bool(self._service)
        if asking.via == "batch":
            self._check_service()
        return asking.via == "batch"

    def _chosen(self, store: BatchAnswers) -> int:
        """Return the number of a new round with what is noted, as far as the caps allow; 0 if nothing is left."""
        chosen, left = store.choose(self._accounts)
        if not chosen and left:
            raise self._reached(left)
        failpoints.hit("batch.chosen")
        return store.round_at_work()

    def _round(self, store: BatchAnswers, number: int) -> None:
        """Have a round answered, or complete it, and keep its answers."""
        files = BatchFiles(
            *(
                os.path.join(self._folder, f"{self._asking.name}-{number}{end}.jsonl")
                for end in ("", "-out", "-errors")
            )
        )
        if not os.path.exists(files.out):
            if not os.path.exists(files.source):
                self._write(store, number, files.source)
            failpoints.hit("batch.filed")
            run_batch(
                files, self._asking.endpoint, via_batch_api=True, progress=self._note, alive=self._alive
            )
        failpoints.hit("batch.answered")
        stopped = self._keep(store, number, files)
        failpoints.hit("batch.kept")
        self._remove_files()
        if stopped is not None:
            raise stopped

    def _write(self, store: BatchAnswers, number: int, path: str) -> None:
        url = f"/v1{self._asking.path}"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path + ".new")
        with safe_files.new_file(path + ".new") as file:
            for each, body in store.requests(number):
                said: dict[str, Any] = {"custom_id": str(each)}
                if self._service == "anthropic":
                    said["params"] = params_of(msgspec.json.decode(body))
                else:
                    said |= {"method": "POST", "url": url, "body": msgspec.Raw(body)}
                file.write(msgspec.json.encode(said) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(path + ".new", path)

    def _keep(self, store: BatchAnswers, number: int, files: BatchFiles) -> Exception | None:
        """Keep all outcomes of a round; return what ends the run, if one does."""
        asking = self._asking
        stopped: list[Exception] = []
        all_lines = chain(_lines(files.out), _lines(files.errors))
        while lines := list(islice(all_lines, KEPT_TOGETHER)):
            outcomes, used = [], []
            for line in lines:
                data, error = _answer_in(line)
                outcomes.append((int(line["custom_id"]), self._outcome(data, error, stopped)))
                prompt, completion = tokens_of(data, 1) if data is not None else (0, 0)
                used.append((prompt, completion, asking.endpoint.cost(prompt, completion, batch=True)))
            self._count(store.keep(number, outcomes, used.__getitem__))
            failpoints.hit("batch.stored")
        self._count(store.left_open(number))
        return stopped[0] if stopped else None

    def _opened_accounts(self, store: BatchAnswers) -> Accounts:
        """Return all that the budget holds for; the first is that of the batches of this run."""
        endpoint = self._asking.endpoint
        budget = endpoint.settings.budget
        if budget is None:
            return Accounts(Account("run", store, Caps(), Spent()))
        output = AnswerStore(os.path.dirname(os.path.dirname(self._folder)), name="spent")
        day = day_account(key_name(endpoint.server, endpoint.key()), budget.caps["day"])
        return Accounts(*accounts_of(budget, store, output), *([day] if day is not None else []))

    def _count(self, counted: Mapping[str, float]) -> None:
        """Count in the other accounts what has been counted in that of the batches."""
        Accounts(*self._accounts.all[1:]).count(**counted)

    def _outcome(
        self, data: Mapping[str, Any] | None, error: Mapping[str, Any], stopped: list[Exception]
    ) -> bytes | RowError | Again | None:
        """Return what is kept of an answer, or why there is none; None where the row is not at fault."""
        if data is not None:
            try:
                return self._asking.read(data)
            except (Again, RowError) as problem:
                return problem
        code, words = str(error.get("code") or error.get("type")), str(error.get("message"))
        if code in ("NoAnswer", "RequestRefused"):
            return getattr(refusals, code)(words)  # type: ignore[no-any-return]
        status, _, words = words.partition(": ") if re.match(r"\d{3}: ", words) else ("400", "", words)
        body = msgspec.json.encode({"error": {"message": words, "code": code}})
        where = f"The endpoint {self._asking.endpoint.base_url}"
        found = judged(int(status), body, {}, where=where, request={"model": self._asking.endpoint.model})
        found = found.row if isinstance(found, Doubtful) else found
        if isinstance(found, (RowError, Again)):
            return found
        stopped.append(found)
        return None

    def _remove_files(self) -> None:
        for name in os.listdir(self._folder):
            if re.match(rf"{self._asking.name}-\d+(-out|-errors)?\.jsonl", name):
                path = os.path.join(self._folder, name)
                shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)

    # ------------------------------------------------------------ what is said

    def _note(self, done: int, lines: int, batches: Sequence[str]) -> None:
        event = BatchesAtWork(self._asking.label, lines, done, tuple(batches))
        self.words = str(event)
        if event != self._noted:
            self._noted = event
            self._tell(event)

    def _say(self, store: BatchAnswers) -> None:
        """Tell what batches have used."""
        spent = store.spent()
        total = Tokens(spent.requests, spent.prompt_tokens, spent.completion_tokens, spent.cost)
        priced = self._asking.endpoint.prices is not None
        self._tell(
            ModelAsked(
                -1, self._asking.label, store.place, Tokens(), 0, 0, store.place, total, spent.sent, spent.ended,
                priced=priced, parts=((f"{self._asking.label} by batches", total),) if total.answers else (),
            )
        )  # fmt: skip

    def _reached(self, left: int) -> SpendingCapReached:
        return SpendingCapReached(
            f"{self._asking.label} has reached {self._asking.endpoint.settings.budget!r}: {left:,} requests are "
            "left, and the next may need more than is left of it. They were not sent. What was answered is kept: run "
            "the same program with a higher cap to go on, and none of it is asked again."
        )

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


def _lines(path: str) -> Iterator[dict[str, Any]]:
    with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
        for line in file:
            yield msgspec.json.decode(line)


def _answer_in(line: Mapping[str, Any]) -> tuple[Mapping[str, Any] | None, Mapping[str, Any]]:
    """Return the answer in a line of the output, or the error in one of the file of errors."""
    if "result" in line:
        result = line["result"]
        message = result.get("message")
        return (chat_of(message), {}) if message is not None else (None, result["error"]["error"])
    response = line.get("response")
    return (response["body"], {}) if response is not None else (None, line["error"])
