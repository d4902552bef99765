"""Has a provider's batch service answer a batch file: uploads it in parts, waits, and puts the answers in order.

A part is written down before it is sent, by a name that it has there too. Killed at any moment, the next process
finds what was sent, and sends nothing twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.annex.llm.batch_lines import (
    BatchLine,
    answered_line,
    failed_line,
    line_of,
    lines_of,
    state_of,
    tokens_in,
)
from headrace.annex.llm.batch_services import (
    AnthropicBatches,
    Batch,
    BatchService,
    LineOutcome,
    OpenAIBatches,
    PatientCalls,
    number_of,
)
from headrace.annex.llm.batch_state import BatchJournal, Part, PartState
from headrace.annex.llm.client import Client, NothingThere
from headrace.annex.llm.refusals import Again, RowError
from headrace.core import failpoints
from headrace.core.files import safe_files
from headrace.core.waiting import backoff
from headrace.errors import EndpointRefused, PlanChanged, UnreadableFile

if TYPE_CHECKING:
    from headrace.annex.llm.batch_lines import BatchCounts, BatchFiles, Progress
    from headrace.annex.llm.endpoint import Endpoint

TRIES = 3
"""How often a line is sent that has no answer, though nothing is wrong with it."""
OPEN = 8
"""So many batches at a time; with more, providers say that too many tokens wait."""
FIRST_LOOK, LONGEST_LOOK = 2.0, 60.0
"""Seconds between two looks at a batch."""
ALIVE_SECONDS = 0.2
"""Seconds after which who had this begun is asked whether it is to go on."""
NAME_BYTES = 80
"""What a request has beside its body, at most."""
_WRITTEN = 10_000


@dataclass(slots=True)
class _Here:
    """A part at work here."""

    part: Part
    size: int
    done: int = 0


class BatchApi:
    """A batch file on its way through a batch service. One event loop, and all on it."""

    def __init__(
        self,
        files: BatchFiles,
        endpoint: Endpoint,
        out: int,
        errors: int,
        counts: BatchCounts,
        progress: Progress,
        alive: Callable[[], None] | None = None,
    ) -> None:
        self._files, self._counts, self._progress, self._alive = files, counts, progress, alive
        self._out, self._errors = out, errors
        self._journal = BatchJournal(files.state, secrets.token_hex(5))
        first = next(lines_of(files.source))
        self._client = Client(endpoint, anthropic=first.is_anthropic)
        made = AnthropicBatches if first.is_anthropic else OpenAIBatches
        self._service: BatchService = made(self._client)
        self._where = f"the endpoint {endpoint.base_url}"
        self._here: dict[int, _Here] = {}
        self._source = open(files.source, "rb")  # noqa: SIM115 - closed at the end of the run
        self._source_state = state_of(self._source)
        self._calls = PatientCalls(f"The endpoint {endpoint.base_url}", endpoint.max_retries)
        self._settled = 0

    async def run(self) -> None:
        """Send what is not sent, wait for the rest, and write in order. What ``alive`` raises ends it."""
        work = asyncio.ensure_future(self._run())
        try:
            while not (await asyncio.wait({work}, timeout=ALIVE_SECONDS if self._alive else None))[0]:
                assert self._alive is not None
                self._alive()
        except BaseException:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            raise
        work.result()

    async def _run(self) -> None:
        try:
            if not self._journal.planned:
                self._plan()
            self._check_same_service()
            self._counts.before = self._settled = sum(self._journal.counts())
            await self._client.open()
            await self._all_parts()
            self._write()
        finally:
            self._source.close()
            await self._client.close()
            self._journal.close()

    def _check_same_service(self) -> None:
        """Refuse to look for our batches where they are not: they would be sent, and paid for, again."""
        here, before = self._client.endpoint.base_url, self._journal.place
        if self._journal.has_sent() and before != here:
            raise PlanChanged(
                f"{self._files.out} was begun at the batch service of {before}, and batches of it are there. Nothing "
                f"was sent to {here}: go on with that one, or remove {self._files.state} to begin anew; what was "
                "answered is lost then."
            )
        self._journal.set_place(here)

    def _check_unchanged(self) -> None:
        """Refuse a file that somebody has written into: lines are found by where they were."""
        if state_of(self._source) != self._source_state:
            raise PlanChanged(
                f"{self._files.source} has changed while its batches were at work, so answers would get the names of "
                "other requests. What was answered is kept: bring back what the file was, with its time, and run the "
                f"same again; or remove {self._files.state} to begin anew."
            )

    def _plan(self) -> None:
        """Divide the lines into parts: each of one address and one model, and within what the service takes."""
        service, journal = self._service, self._journal
        room: dict[tuple[str, str], tuple[int, int, int]] = {}  # the part that is filled, its lines and bytes
        parts = 0
        with journal.together():
            planned: list[tuple[int, int, int, int]] = []
            for line in lines_of(self._files.source):
                kind = line.path, str(line.body.get("model"))
                number, lines, size = room.get(kind, (-1, 0, 0))
                taken = line.size + NAME_BYTES
                if taken > service.most_bytes:
                    raise UnreadableFile(
                        f"{self._files.source}, line {line.number:,}: it has {line.size:,} bytes, and a batch may "
                        f"have {service.most_bytes:,}. Nothing was sent: take it out, and run it again."
                    )
                if number < 0 or lines + 1 > service.most_lines or size + taken > service.most_bytes:
                    number, lines, size = parts, 0, 0
                    parts += 1
                    journal.add_part(number, "/v1" + line.path)
                room[kind] = number, lines + 1, size + taken
                planned.append((line.number, line.at, taken, number))
                if len(planned) >= _WRITTEN:
                    journal.add_lines(planned)
                    planned = []
            journal.add_lines(planned)
            journal.lines_are_planned()

    # ------------------------------------------------------------ parts

    async def _all_parts(self) -> None:
        """Have all parts done, some at a time; those that are there already come first."""
        waiting = sorted(self._journal.parts(), key=lambda part: (part.state == "planned", part.number))
        tasks: dict[asyncio.Task[list[Part]], Part] = {}
        try:
            while waiting or tasks:
                while waiting and len(tasks) < OPEN:
                    part = waiting.pop(0)
                    tasks[asyncio.ensure_future(self._part(part))] = part
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    self._here.pop(tasks.pop(task).number, None)
                    waiting += await task
                    self._tell()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _part(self, part: Part) -> list[Part]:
        """Have a part answered; return what has to be sent again."""
        size = self._journal.waiting(part)
        here = self._here[part.number] = _Here(part, size)
        if part.state == "uploading":
            await self._upload_or_find(part)
        if part.state == "creating":
            await self._create_or_find(part, size)
        if part.state == "planned":
            await self._send(part, size)
        batch = await self._ended(part, here)
        if batch.state == "failed":
            left = await self._failed(part, batch)
            await self._forget(part)
            return left
        path = await self._download(part, batch)
        failpoints.hit("batch.fetched")
        left = self._settle(part, path)
        failpoints.hit("batch.settled")
        os.unlink(path)
        await self._forget(part)
        if batch.state == "cancelled" and left:
            raise EndpointRefused(
                f"The batch {batch.id} at {self._where} was cancelled. What it has answered is kept: run the same "
                "again to have the rest sent in another batch."
            )
        return left

    async def _forget(self, part: Part) -> None:
        """Remove what was sent, which is only in the way by now."""
        with contextlib.suppress(Again, RowError, EndpointRefused):
            if part.file:
                await self._service.forget(part)

    async def _send(self, part: Part, size: int) -> None:
        """Send a part for the first time."""
        failpoints.hit("batch.planned")
        self._note(part, "uploading" if self._service.uploads else "creating", since=time.time())
        failpoints.hit("batch.sending")
        path = self._path(part)
        self._write_part(part, path)
        if self._service.uploads:
            part.file = await self._calls.once(
                lambda: self._service.upload(part, path), lambda: self._service.find_file(part)
            )
            failpoints.hit("batch.uploaded")
            self._note(part, "creating", since=time.time())
            failpoints.hit("batch.creating")
        await self._create(part, path, size)

    async def _upload_or_find(self, part: Part) -> None:
        """Go on where a process died in the midst of an upload."""
        found = await self._calls.found(lambda: self._service.find_file(part), part.since)
        if found is None:
            self._note(part, "planned")
            return
        part.file = found
        self._note(part, "creating", since=time.time())

    async def _create_or_find(self, part: Part, size: int) -> None:
        """Go on where a process died before it had heard of its batch."""
        found = await self._calls.found(lambda: self._found(part, size), part.since)
        if found is not None:
            part.batch = found.id
            self._note(part, "open")
        elif self._service.uploads:
            await self._create(part, "", size)
        else:
            self._note(part, "planned")

    async def _create(self, part: Part, path: str, size: int) -> None:
        batch = await self._calls.once(
            lambda: self._service.create(part, path), lambda: self._found(part, size)
        )
        failpoints.hit("batch.created")
        part.batch = batch.id
        self._note(part, "open")
        failpoints.hit("batch.open")
        if path:
            os.unlink(path)

    async def _found(self, part: Part, size: int) -> Batch | None:
        return await self._service.find(part, size, self._journal.batches())

    async def _ended(self, part: Part, here: _Here) -> Batch:
        """Wait until a batch has ended."""
        looks = 0
        while True:
            try:
                batch = await self._calls.patiently(lambda: self._service.look(part.batch))
            except NothingThere:
                raise EndpointRefused(
                    f"{self._where} does not know the batch {part.batch} any more, so its answers cannot be had. "
                    "With a key of another account, it is there: give the key that it was made with. If it was "
                    f"deleted there, remove {self._files.state}, and run the same again: its requests are sent and "
                    "paid for again then."
                ) from None
            if batch.state != "open":
                return batch
            here.done = batch.done
            self._tell()
            looks += 1
            await asyncio.sleep(backoff(looks, FIRST_LOOK, LONGEST_LOOK, spread=0.2))

    async def _failed(self, part: Part, batch: Batch) -> list[Part]:
        """Judge a batch that the service did not take: lines may be at fault, or others that wait."""
        journal = self._journal
        if batch.full and len(self._here) > 1:  # when others have ended there is room
            with journal.together():
                _, more = journal.again(part, TRIES, counted=False)
                self._done(part)
            await asyncio.sleep(backoff(1, LONGEST_LOOK, LONGEST_LOOK))
            return [more] if more is not None else []
        lines = list(journal.lines_of(part))
        wrong = {lines[place - 1]: said for place, said in batch.wrong.items() if 0 < place <= len(lines)}
        if not wrong:
            with journal.together():  # so that the next process sends it anew
                journal.again(part, TRIES, counted=False)
                self._done(part)
            raise EndpointRefused(
                f"{self._where} did not take a batch of {len(lines):,} requests ({batch.id}): {batch.why}. What was "
                "answered before is kept: correct what is wrong there, and run the same again."
            )
        self._check_unchanged()
        with journal.together():
            for (number, at), said in wrong.items():
                line = self._line(number, at)
                journal.settle(part, number, False, failed_line(line, "RequestRefused", said))
            _, more = journal.again(part, TRIES, counted=False)
            self._done(part)
        return [more] if more is not None else []

    async def _download(self, part: Part, batch: Batch) -> str:
        """Fetch what a batch has answered, into a file here."""
        path = self._path(part, "answers")

        async def fetch() -> None:
            with safe_files.new_file(path) as file:
                await self._service.download(batch, file)

        async def fetched() -> None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            await fetch()

        await self._calls.patiently(fetched)
        return path

    def _settle(self, part: Part, path: str) -> list[Part]:
        """Keep the answers of a batch; return what has to be sent again. All of it, or nothing."""
        self._check_unchanged()
        places = dict(self._journal.lines_of(part))
        reasons: dict[int, str] = {}
        with self._journal.together():
            with open(path, "rb") as file:
                for raw in file:
                    if raw.strip():
                        self._keep(part, self._service.outcome(raw), places, reasons)
            spent, more = self._journal.again(part, TRIES)
            for number, at in spent:
                reason = reasons.get(number, "its batch ended without a word of it")
                said = f"sent in {TRIES} batches without an answer; the last time: {reason}"
                self._journal.settle(
                    part, number, False, failed_line(self._line(number, at), "NoAnswer", said)
                )
            self._done(part)
        self._settled = sum(self._journal.counts())
        return [more] if more is not None else []

    def _keep(
        self, part: Part, outcome: LineOutcome, places: Mapping[int, int], reasons: dict[int, str]
    ) -> None:
        number = number_of(part, outcome.name)
        if number is None or number not in places:
            return  # of nobody's request
        if outcome.again:
            reasons[number] = f"{outcome.code}: {outcome.message}"
            return
        line = self._line(number, places[number])
        good = outcome.data is not None
        if outcome.data is not None:
            said = answered_line(line, outcome.data)
        else:
            said = failed_line(line, outcome.code, outcome.message)
        if self._journal.settle(part, number, good, said) and outcome.data is not None:
            self._journal.count_tokens(*tokens_in(outcome.data))

    # ------------------------------------------------------------ files here

    def _write_part(self, part: Part, path: str) -> None:
        """Write what is sent for a part."""
        self._check_unchanged()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        with safe_files.new_file(path) as file:
            self._service.write(file, part, (self._line(*each) for each in self._journal.lines_of(part)))

    def _path(self, part: Part, what: str = "requests") -> str:
        return os.path.join(self._files.state, f"{what}-{part.number}.jsonl")

    def _line(self, number: int, at: int) -> BatchLine:
        self._source.seek(at)
        return line_of(self._files.source, number, self._source.readline(), at)

    def _note(self, part: Part, state: PartState, *, since: float | None = None) -> None:
        part.state = state
        part.since = part.since if since is None else since
        self._journal.note(part)

    def _done(self, part: Part) -> None:
        self._note(part, "done")

    def _tell(self) -> None:
        done = self._settled + sum(here.done for here in self._here.values())
        batches = [here.part.batch for here in self._here.values() if here.part.batch]
        self._progress(min(done, self._counts.lines), self._counts.lines, batches)

    def _write(self) -> None:
        """Write all lines in the order of the requests."""
        for fd in (self._out, self._errors):
            os.ftruncate(fd, 0)
            os.lseek(fd, 0, os.SEEK_SET)
        with os.fdopen(os.dup(self._out), "wb") as out, os.fdopen(os.dup(self._errors), "wb") as errors:
            for number, good, said in self._journal.outcomes():
                if good is None:
                    raise AssertionError(f"nothing is known of line {number}")
                (out if good else errors).write(said)
        self._counts.answered, self._counts.failed = self._journal.counts()
        self._counts.prompt_tokens, self._counts.completion_tokens = self._journal.tokens()
