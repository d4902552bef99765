"""Has a provider's batch service answer what is noted in a ledger: uploads it in parts, waits, and keeps what came.

A part is written down before it is sent, by a name that it has there too. Killed at any moment, the next process
finds what was sent, and sends nothing twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.annex.llm.batch_ledger import NO_WORD, BatchLedger, Part, PartState, Said, Used
from headrace.annex.llm.batch_services import (
    AnthropicBatches,
    Batch,
    BatchService,
    LineOutcome,
    OpenAIBatches,
    PatientCalls,
    number_of,
)
from headrace.annex.llm.client import Client, NothingThere
from headrace.annex.llm.refusals import Again, Doubtful, NoAnswer, RequestRefused, RowError, judged
from headrace.annex.llm.spending import Accounts, tokens_of
from headrace.core import failpoints
from headrace.core.files import safe_files
from headrace.core.waiting import backoff
from headrace.errors import EndpointRefused, SpendingCapReached

if TYPE_CHECKING:
    from headrace.annex.llm.endpoint import Endpoint

OPEN = 8
"""So many batches at a time; with more, providers say that too many tokens wait."""
FIRST_LOOK, LONGEST_LOOK = 2.0, 60.0
"""Seconds between two looks at a batch."""
ALIVE_SECONDS = 0.2
"""Seconds after which who had this begun is asked whether it is to go on."""


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


@dataclass(slots=True)
class _Here:
    """A part at work here."""

    part: Part
    done: int = 0


class BatchWork:
    """Requests on their way through a batch service. One event loop, and all on it.

    ``tell`` is told how many requests are done, of how many, and the names of the batches at work.
    """

    def __init__(
        self,
        asking: Asking,
        service: str,
        ledger: BatchLedger,
        accounts: Accounts,
        folder: str,
        tell: Callable[[int, int, Sequence[str]], None],
    ) -> None:
        endpoint = asking.endpoint
        self._asking, self._ledger, self._accounts = asking, ledger, accounts
        self._folder, self._tell_others = folder, tell
        self._where = f"The endpoint {endpoint.base_url}"
        self._client = Client(endpoint, anthropic=service == "anthropic")
        made = AnthropicBatches if service == "anthropic" else OpenAIBatches
        self._service: BatchService = made(self._client, f"/v1{asking.path}")
        self._calls = PatientCalls(self._where, endpoint.max_retries)
        self._here: dict[int, _Here] = {}
        self._all = self._done = 0

    async def run(self, alive: Callable[[], None], *, more: bool) -> bool:
        """Have answered what was begun, and with ``more`` all that is noted; say whether there was anything.

        What ``alive`` raises ends it.
        """
        work = asyncio.ensure_future(self._run(more=more))
        try:
            while not (await asyncio.wait({work}, timeout=ALIVE_SECONDS))[0]:
                alive()
        except BaseException:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            raise
        return work.result()

    async def _run(self, *, more: bool) -> bool:
        sent = False
        await self._client.open()
        try:
            while parts := self._ledger.parts() or (self._chosen() if more else []):
                sent = True
                await self._answered(parts)
        finally:
            await self._client.close()
        return sent

    def _chosen(self) -> list[Part]:
        """Return new parts with what is noted, as far as the caps allow."""
        chosen, left = self._ledger.choose(self._accounts, self._service.most_lines, self._service.most_bytes)
        if not chosen and left:
            raise SpendingCapReached(
                f"{self._asking.label} has reached {self._asking.endpoint.settings.budget!r}: {left:,} requests are "
                "left, and the next may need more than is left of it. They were not sent. What was answered is kept: "
                "run the same program with a higher cap to go on, and none of it is asked again."
            )
        failpoints.hit("batch.chosen")
        return self._ledger.parts()

    async def _answered(self, parts: list[Part]) -> None:
        """Have parts answered, some at a time."""
        waiting, tasks = list(parts), set[asyncio.Task[None]]()
        self._all, self._done = sum(map(self._ledger.size, parts)), 0
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

    async def _part(self, part: Part) -> None:
        """Have a part answered, from where it is."""
        size = self._ledger.size(part)
        here = self._here[part.number] = _Here(part)
        try:
            if part.state == "uploading":  # a process died in the midst of an upload
                found = await self._calls.found(lambda: self._service.find_file(part), part.since)
                part.file = found or ""
                self._note(part, "creating" if found else "planned", since=time.time())
            if part.state == "creating":  # or before it had heard of its batch
                batch = await self._calls.found(lambda: self._found(part, size), part.since)
                if batch is not None:
                    part.batch = batch.id
                    self._note(part, "open")
                elif self._service.uploads:
                    await self._create(part, "", size)
                else:
                    self._note(part, "planned")
            if part.state == "planned":
                await self._send(part, size)
            stopped = await self._settled(part, await self._ended(part, here))
            self._done += size
            if part.file:  # what was sent is only in the way by now
                with contextlib.suppress(Again, RowError, EndpointRefused):
                    await self._service.forget(part)
        finally:
            del self._here[part.number]
        self._tell()
        if stopped is not None:
            raise stopped

    async def _send(self, part: Part, size: int) -> None:
        """Send a part for the first time."""
        self._note(part, "uploading" if self._service.uploads else "creating", since=time.time())
        failpoints.hit("batch.sending")
        path = self._path(part, "requests")
        with safe_files.new_file(_without(path)) as file:
            self._service.write(file, part, self._ledger.requests(part))
        if self._service.uploads:
            part.file = await self._calls.once(
                lambda: self._service.upload(part, path), lambda: self._service.find_file(part)
            )
            failpoints.hit("batch.uploaded")
            self._note(part, "creating", since=time.time())
            failpoints.hit("batch.creating")
        await self._create(part, path, size)
        os.unlink(path)

    async def _create(self, part: Part, path: str, size: int) -> None:
        batch = await self._calls.once(
            lambda: self._service.create(part, path), lambda: self._found(part, size)
        )
        failpoints.hit("batch.created")
        part.batch = batch.id
        self._note(part, "open")
        failpoints.hit("batch.open")

    async def _found(self, part: Part, size: int) -> Batch | None:
        return await self._service.find(part, size, self._ledger.batches())

    async def _ended(self, part: Part, here: _Here) -> Batch:
        """Wait until a batch has ended."""
        looks = 0
        while True:
            self._tell()
            try:
                batch = await self._calls.patiently(lambda: self._service.look(part.batch))
            except NothingThere:
                return self._gone(part)
            if batch.state != "open":
                return batch
            here.done = batch.done
            looks += 1
            await asyncio.sleep(backoff(looks, FIRST_LOOK, LONGEST_LOOK, spread=0.2))

    def _gone(self, part: Part) -> Batch:
        """Return a batch that its service does not know, if it is to be sent again; the user has to say so."""
        mark = self._path(part, "gone")
        if part.state == "gone" and not os.path.exists(mark):
            return Batch(part.batch, "gone")
        safe_files.write(mark, b"")
        self._note(part, "gone")
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
                f"The batch {batch.id} at {self._asking.endpoint.base_url} was cancelled. What it has answered is "
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
        endpoint = self._asking.endpoint
        if found.again:
            return Again(NoAnswer, f"{found.code}: {found.message}"), None
        if found.data is not None:
            prompt, completion = tokens_of(found.data, 1)
            used = prompt, completion, endpoint.cost(prompt, completion, batch=True)
            try:
                return self._asking.read(found.data), used
            except (Again, RowError) as problem:
                return problem, used
        body = msgspec.json.encode({"error": {"message": found.message, "code": found.code}})
        why = judged(found.status, body, {}, where=self._where, request={"model": endpoint.model})
        why = why.row if isinstance(why, Doubtful) else why
        if isinstance(why, (RowError, Again)):
            return why, None
        stopped.append(why)
        return None, None

    def _path(self, part: Part, what: str) -> str:
        return os.path.join(self._folder, f"{self._asking.name}-{part.number}-{what}")

    def _note(self, part: Part, state: PartState, *, since: float | None = None) -> None:
        part.state = state
        part.since = part.since if since is None else since
        self._ledger.note_part(part)

    def _tell(self) -> None:
        done = self._done + sum(here.done for here in self._here.values())
        batches = [here.part.batch for here in self._here.values() if here.part.batch]
        self._tell_others(min(done, self._all), self._all, batches)


def _without(path: str) -> str:
    """Return a path, where nothing is any more."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    return path
