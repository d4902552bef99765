"""What is asked by batches before a run begins: whether, for what money, and the way through a batch service.

A part is written down before it is sent, by a name that it has there too. Killed at any moment, the next process
finds what was sent, and sends nothing twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.annex.llm.answers import why_requests
from headrace.annex.llm.batch_ledger import NO_WORD, BatchLedger, Part, PartState, Said
from headrace.annex.llm.batch_services import (
    SERVICES,
    Batch,
    LineOutcome,
    OpenAIBatches,
    PatientCalls,
    number_of,
)
from headrace.annex.llm.client import Client, NothingThere
from headrace.annex.llm.limiter import key_name
from headrace.annex.llm.refusals import (
    Again,
    Doubtful,
    NoAnswer,
    RequestRefused,
    RowError,
    judged,
    refusal_of,
)
from headrace.annex.llm.spending import Account, Accounts, accounts_of, day_account
from headrace.annex.llm.store import AnswerStore, Caps, Spent, Used
from headrace.annex.llm.usage import tokens_of, usage_of
from headrace.core import failpoints
from headrace.core.answered import Tokens
from headrace.core.events import BatchesAtWork, ModelAsked
from headrace.core.files import safe_files
from headrace.core.process import backoff
from headrace.errors import ArgumentError, EndpointRefused, SpendingCapReached

if TYPE_CHECKING:
    from headrace.annex.llm.asking import Asking
    from headrace.annex.llm.endpoint import Endpoint

OPEN = 8
"""So many batches at a time; with more, providers say that too many tokens wait."""
FIRST_LOOK, LONGEST_LOOK = 2.0, 60.0
"""Seconds between two looks at a batch."""
ALIVE_SECONDS = 0.2
"""Seconds after which who had this begun is asked whether it is to go on."""


class Ahead:
    """The work of a batch service for all rows, see ``PredictorParts.ahead``."""

    def __init__(self, asking: Asking) -> None:
        endpoint: Endpoint = asking.model
        self._asking, self._endpoint, self._label = asking, endpoint, asking.who
        self._where = f"The endpoint {endpoint.base_url}"
        self._calls = PatientCalls(self._where, endpoint.max_retries)
        self._folder = ""
        self._opened: BatchLedger | None = None
        self._accounts = Accounts()
        self._tell: Callable[[Any], None] = lambda event: None
        self._alive: Callable[[], None] = lambda: None
        self._noted: BatchesAtWork | None = None
        self._service: OpenAIBatches = OpenAIBatches(Client(endpoint), asking.path)
        self._here: dict[int, tuple[Part, int]] = {}  # parts at work, and how many of their requests are done
        self._all = self._done = 0
        self.words = ""

    @property
    def looking(self) -> Any:
        """What is given all rows, and notes what they ask."""
        return self._asking.looking()

    @property
    def at_once(self) -> Any:
        """What asks by requests."""
        return self._asking.at_once()

    @property
    def shares(self) -> tuple[float, float]:
        """What batches cost of that, at least and at most."""
        via, share = self._asking.via, self._endpoint.batch_share
        return {"requests": (1.0, 1.0), "batch": (share, share)}.get(via, (min(1.0, share), 1.0))

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
            raise ArgumentError(f"{self._label} with via='batch': {why}.")
        self._folder = folder

    def wanted(self, folder: str) -> bool:
        """Say whether there is anything to do: by ``via``, or as an earlier driver has sent something."""
        self._folder = folder
        return bool(folder) and (self.may or BatchLedger.there(folder, self._asking.batches))

    @functools.cached_property
    def _kind(self) -> str:
        """Which batch service the endpoint has: ``"openai"``, ``"anthropic"`` for chats, or ``""``."""
        return asyncio.run(self._found_kind())

    async def _found_kind(self) -> str:
        for kind, made in SERVICES.items():
            if kind == "anthropic" and self._asking.path != "/chat/completions":
                continue
            client = Client(self._endpoint, anthropic=kind == "anthropic")
            await client.open()
            try:
                listed = functools.partial(client.call, "GET", made.place, params={"limit": "1"})
                await self._calls.patiently(listed)
                return kind
            except NothingThere:
                pass
            finally:
                await client.close()
        return ""

    def _check_service(self) -> None:
        """Refuse an endpoint without a batch service, or a request that it could not take."""
        if not self._kind:
            raise EndpointRefused(
                f"{self._where} has no batch service: it has nothing at /batches, nor at /messages/batches. Nothing "
                f"was sent. Leave via='batch' out of {self._label}, to send the requests one by one."
            )
        settings = self._endpoint.settings
        if self._kind == "anthropic" and (settings.max_tokens is None or settings.n > 1 or settings.columns):
            raise EndpointRefused(
                f"{self._label}: the batch service of {self._endpoint.base_url} is Anthropic's. It needs "
                "max_tokens in sampling=, gives one answer, and has no log probabilities: leave n= and columns= out."
            )

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
        first, looks = self._opened is None, False
        if first:
            if self._asking.via == "batch":
                self._check_service()
            looks = self._asking.via == "batch" or (
                self._asking.via == "auto" and not why_requests(self._endpoint) and bool(self._kind)
            )
            if not looks and not BatchLedger.there(self._folder, self._asking.batches):
                return False
            self._open_ledger()
        sent = False
        if not first or self._ledger.parts():
            self._check_service()
            sent = asyncio.run(self._worked(more=not first))
        for name in os.listdir(self._folder):  # what killed processes left of files that were sent or fetched
            if re.fullmatch(rf"{self._asking.batches}-\d+-(requests|answers|gone)", name):
                os.unlink(os.path.join(self._folder, name))
        self._say()
        again = looks if first else sent and self._asking.follows
        if again:
            self._ledger.begin()
        return again

    @property
    def _ledger(self) -> BatchLedger:
        assert self._opened is not None
        return self._opened

    def _open_ledger(self) -> None:
        """Open the ledger, and all that the budget holds for; the first account is that of this run's batches."""
        endpoint, budget = self._endpoint, self._endpoint.settings.budget
        ledger = self._opened = BatchLedger(self._folder, self._asking.batches)
        if budget is None:
            self._accounts = Accounts(Account("run", ledger, Caps(), Spent()))
        else:
            output = AnswerStore(os.path.dirname(os.path.dirname(self._folder)), name="spent")
            day = day_account(key_name(endpoint.server, endpoint.key()), budget.caps["day"])
            self._accounts = Accounts(
                *accounts_of(budget, ledger, output), *([day] if day is not None else [])
            )
        for account in self._accounts.all:
            account.store.be_patient()
        ledger.check_place(endpoint.base_url)

    async def _worked(self, *, more: bool) -> bool:
        """Have answered what was begun, and with ``more`` all that is noted; say whether there was anything."""
        client = Client(self._endpoint, anthropic=self._kind == "anthropic")
        self._service = SERVICES[self._kind](client, f"/v1{self._asking.path}")
        await client.open()
        work = asyncio.ensure_future(self._parts(more=more))
        try:
            while not (await asyncio.wait({work}, timeout=ALIVE_SECONDS))[0]:
                self._alive()
        except BaseException:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            raise
        finally:
            await client.close()
        return work.result()

    async def _parts(self, *, more: bool) -> bool:
        """Have parts answered, some at a time."""
        sent = False
        while waiting := self._ledger.parts() or (self._chosen() if more else []):
            sent, tasks = True, set[asyncio.Task[None]]()
            self._all, self._done = sum(map(self._ledger.size, waiting)), 0
            try:
                while waiting or tasks:
                    while waiting and len(tasks) < OPEN:
                        tasks.add(asyncio.ensure_future(self._part(waiting.pop(0))))
                    done, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                    for task in done:
                        task.result()
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        return sent

    def _chosen(self) -> list[Part]:
        """Return new parts with what is noted, as far as the caps allow."""
        self._accounts = self._accounts.looked_again()  # rows were looked at since, which others may ask for
        chosen, left = self._ledger.choose(self._accounts, self._service.most_lines, self._service.most_bytes)
        if not chosen and left:
            raise SpendingCapReached(
                f"{self._label} has reached {self._endpoint.settings.budget!r}: {left:,} requests are "
                "left, and the next may need more than is left of it. They were not sent. What was answered is kept: "
                "run the same program with a higher cap to go on, and none of it is asked again."
            )
        failpoints.hit("batch.chosen")
        return self._ledger.parts()

    # ------------------------------------------------------------ one part

    async def _part(self, part: Part) -> None:
        """Have a part answered, from where it is."""
        size = self._ledger.size(part)
        self._here[part.number] = part, 0
        try:
            if part.state == "uploading":  # a process died in the midst of an upload
                found = await self._calls.found(lambda: self._service.find_file(part), part.since)
                part.file = found or ""
                self._note_part(part, "creating" if found else "planned", since=time.time())
            if part.state == "creating":  # or before it had heard of its batch
                batch = await self._calls.found(lambda: self._found(part, size), part.since)
                if batch is not None:
                    part.batch = batch.id
                    self._note_part(part, "open")
                elif self._service.uploads:
                    await self._create(part, "", size)
                else:
                    self._note_part(part, "planned")
            if part.state == "planned":
                await self._send(part, size)
            stopped = await self._settled(part, await self._ended(part))
            self._done += size
            if part.file:  # what was sent is only in the way by now
                with contextlib.suppress(Again, RowError, EndpointRefused):
                    await self._service.forget(part)
        finally:
            del self._here[part.number]
        self._note_work()
        if stopped is not None:
            raise stopped

    async def _send(self, part: Part, size: int) -> None:
        """Send a part for the first time."""
        self._note_part(part, "uploading" if self._service.uploads else "creating", since=time.time())
        failpoints.hit("batch.sending")
        path = self._path(part, "requests")
        with safe_files.new_file(_without(path)) as file:
            self._service.write(file, part, self._ledger.requests(part))
        if self._service.uploads:
            part.file = await self._calls.once(
                lambda: self._service.upload(part, path), lambda: self._service.find_file(part)
            )
            failpoints.hit("batch.uploaded")
            self._note_part(part, "creating", since=time.time())
            failpoints.hit("batch.creating")
        await self._create(part, path, size)
        os.unlink(path)

    async def _create(self, part: Part, path: str, size: int) -> None:
        batch = await self._calls.once(
            lambda: self._service.create(part, path), lambda: self._found(part, size)
        )
        failpoints.hit("batch.created")
        part.batch = batch.id
        self._note_part(part, "open")
        failpoints.hit("batch.open")

    async def _found(self, part: Part, size: int) -> Batch | None:
        return await self._service.find(part, size, self._ledger.batches())

    async def _ended(self, part: Part) -> Batch:
        """Wait until a batch has ended."""
        looks = 0
        while True:
            self._note_work()
            try:
                batch = await self._calls.patiently(lambda: self._service.look(part.batch))
            except NothingThere:
                return self._gone(part)
            if batch.state != "open":
                return batch
            self._here[part.number] = part, batch.done
            looks += 1
            await asyncio.sleep(backoff(looks, FIRST_LOOK, LONGEST_LOOK, spread=0.2))

    def _gone(self, part: Part) -> Batch:
        """Return a batch that its service does not know, if it is to be sent again; the user has to say so."""
        mark = self._path(part, "gone")
        if part.state == "gone" and not os.path.exists(mark):
            return Batch(part.batch, "gone")
        safe_files.write(mark, b"")
        self._note_part(part, "gone")
        raise EndpointRefused(
            f"{self._where} does not know the batch {part.batch} any more, so its answers cannot be had. With a key "
            "of another account, it is there: give the key that it was made with. If it was deleted there, remove "
            f"{mark}, and run the same again: its requests are sent and paid for again then."
        )

    async def _settled(self, part: Part, batch: Batch) -> Exception | None:
        """Keep what became of a batch; return what ends the run, if something does."""
        stopped: list[Exception] = []
        if batch.state == "gone":
            self._keep(part, (), others=NO_WORD)
            return None
        if batch.state == "failed":
            return self._failed(part, batch)
        path = self._path(part, "answers")

        async def fetch() -> None:
            with safe_files.new_file(_without(path)) as file:
                await self._service.download(batch, file)

        await self._calls.patiently(fetch)
        failpoints.hit("batch.fetched")
        again = self._keep(part, self._outcomes(part, path, stopped), others=NO_WORD)
        failpoints.hit("batch.settled")
        os.unlink(path)
        if not stopped and batch.state == "cancelled" and again:
            return EndpointRefused(
                f"The batch {batch.id} at {self._endpoint.base_url} was cancelled. What it has answered is "
                "kept: run the same again to have the rest sent in another batch."
            )
        return stopped[0] if stopped else None

    def _failed(self, part: Part, batch: Batch) -> EndpointRefused | None:
        """Judge a batch that the service did not take: requests may be at fault, or others that wait."""
        numbers = [number for number, _ in self._ledger.requests(part)]
        wrong = [
            (numbers[place - 1], RequestRefused(said), None)
            for place, said in batch.wrong.items()
            if 0 < place <= len(numbers)
        ]
        self._keep(part, wrong, others=None)
        if wrong or (batch.full and (self._done or len(self._here) > 1)):  # there is room later
            return None
        return EndpointRefused(
            f"{self._where} did not take a batch of {len(numbers):,} requests ({batch.id}): {batch.why}. What was "
            "answered before is kept: correct what is wrong there, and run the same again."
        )

    def _keep(self, part: Part, outcomes: Any, *, others: Again | None) -> int:
        """Keep outcomes, and count what they cost in all accounts; return how many requests are asked again."""
        counted, again = self._ledger.settle_part(part, outcomes, others=others)
        for account in self._accounts.all[1:]:
            account.store.count(**counted)
            account.store.settle()
        return again

    def _outcomes(
        self, part: Part, path: str, stopped: list[Exception]
    ) -> Iterator[tuple[int, Said, Used | None]]:
        """Yield what became of requests; ``stopped`` gets what ends the run."""
        with open(path, "rb") as file:
            for raw in file:
                if raw.strip():
                    found = self._service.outcome(raw)
                    number = number_of(part, found.name)
                    if number is not None:
                        yield number, *self._read(found, stopped)

    def _read(self, found: LineOutcome, stopped: list[Exception]) -> tuple[Said, Used | None]:
        if found.status == 200:
            prompt, completion = tokens_of(found.data, 1)
            cost = self._endpoint.cost(prompt, completion, batch=True)
            used = prompt, completion, cost, None not in usage_of(found.data)[:2]
            try:
                return self._asking.read_line(found.data), used
            except (Again, RowError) as problem:
                return problem, used
        body = msgspec.json.encode(found.data)
        if not found.status:
            return Again(NoAnswer, f"no answer {refusal_of(0, body).said}"), None
        why = judged(found.status, body, {}, where=self._where, request={"model": self._endpoint.model})
        why = why.row if isinstance(why, Doubtful) else why
        if isinstance(why, (RowError, Again)):
            return why, None
        stopped.append(why)
        return None, None

    def _path(self, part: Part, what: str) -> str:
        return os.path.join(self._folder, f"{self._asking.batches}-{part.number}-{what}")

    def _note_part(self, part: Part, state: PartState, *, since: float | None = None) -> None:
        part.state = state
        part.since = part.since if since is None else since
        self._ledger.note_part(part)

    # ------------------------------------------------------------ what is said

    def _note_work(self) -> None:
        """Tell how many requests are done, and which batches are at work."""
        done = self._done + sum(done for _, done in self._here.values())
        batches = tuple(part.batch for part, _ in self._here.values() if part.batch)
        event = BatchesAtWork(self._label, self._all, min(done, self._all), batches)
        self.words = str(event)
        if event != self._noted:
            self._noted = event
            self._tell(event)

    def _say(self) -> None:
        """Tell what batches have used."""
        spent, place = self._ledger.spent(), self._ledger.place
        total = Tokens(spent.requests, spent.prompt_tokens, spent.completion_tokens, spent.cost)
        self._tell(
            ModelAsked(
                -1, self._label, place, Tokens(), 0, 0, place, total, spent.sent, spent.ended,
                priced=self._endpoint.prices is not None,
                parts=((f"{self._label} by batches", total),) if total.answers else (),
            )
        )  # fmt: skip


def _without(path: str) -> str:
    """Return a path, where nothing is any more."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    return path
