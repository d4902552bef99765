"""The predictor behind ``Dataset.prompt``: rows to requests, answers to columns."""

from __future__ import annotations

import asyncio
import copy
import math
import os
import secrets
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from headrace.annex.llm.ahead import Ahead, name_of
from headrace.annex.llm.answers import (
    AnswerColumns,
    Asked,
    added,
    answer_of,
    reason_of,
    with_max_tokens,
)
from headrace.annex.llm.batch_ledger import BatchLedger, NotAsked, other_rows
from headrace.annex.llm.client import Client, Reply
from headrace.annex.llm.endpoint import Endpoint
from headrace.annex.llm.limiter import own_folder
from headrace.annex.llm.order import Order
from headrace.annex.llm.outliers import Guard, Runaway, script_of
from headrace.annex.llm.refusals import BadRow, ContextTooLong, RowError
from headrace.annex.llm.spending import Spending, most_tokens, no_folder
from headrace.annex.llm.store import Answer, AnswerStore, key_of
from headrace.annex.llm.template import text_of
from headrace.annex.llm.under_way import Shared, UnderWay, asker_of
from headrace.core.answered import Tokens
from headrace.core.events import ModelAsked
from headrace.core.process import when_free
from headrace.errors import ArgumentError

if TYPE_CHECKING:
    from headrace.annex.llm.engine_client import EngineClient

BATCH_ROWS = 16
"""Rows that are handed on together."""
WINDOW = 32
"""So many times the requests under way are rows read ahead: one slow request does not keep the others from
going on."""
NOTE_SECONDS = 0.25


class Prompter(AnswerColumns):
    """Asks a model about each row. Equal requests are asked once, where the model would answer them alike."""

    batch_format = "pyarrow"
    names_column = "\0name"

    def __init__(self, asked: Asked, run: str = "") -> None:
        super().__init__(asked)
        self._folder = ""  # of the run, if it has one
        self.run = run or secrets.token_hex(8)  # else what it has used is counted by this name
        self._started: _Started | None = None
        self._others = {
            reason: Prompter(replace(asked, model=model.standing_in(asked.model), via="requests"))
            for reason, model in self.settings.fallback.items()
        }
        self._batches = name_of(self.label, asked.output)
        self.looks = False  # for what rows ask: what nobody has asked is noted for a batch service

    @property
    def asked_so_far(self) -> ModelAsked | None:
        """What was asked and used so far, as it was noted last; ``step`` and ``taken`` are for others to know."""
        return self._started.said if self._started is not None else None

    @property
    def retried(self) -> deque[str] | None:
        """Why requests were sent again, since somebody looked."""
        return self._started.asker.retried if self._started is not None else None

    @property
    def ahead(self) -> Ahead | None:
        """What a batch service does for all rows before the run."""
        asked, settings = self.asked, self.settings
        if not isinstance(asked.model, Endpoint):
            return None
        looking = copy.copy(self)
        looking.looks = True

        def read(data: Mapping[str, Any]) -> bytes:
            return msgspec.msgpack.encode(answer_of(Reply(dict(data), 0.0), settings))

        label = f"prompt({self.label})"
        return Ahead(
            looking,
            asked.model,
            label,
            self._batches,
            "/chat/completions",
            read,
            asked.via,
            follows=self._follows,
        )

    def keep_in(self, folder: str) -> None:
        """Keep in the folder of the run what it has used, and its answers unless the user has another for them."""
        self._folder = folder

    async def load(self) -> None:
        """Open the store of answers, and make ready to ask."""
        run = "" if self._folder else self.run
        store = AnswerStore(self.settings.cache or self._folder, run, what=self._what)
        used = self._counting_in(store)
        output = self._output_account()
        self._started = await self._begun(asker_of(self.asked.model), store, used, output)
        if BatchLedger.there(self._folder, self._batches):
            self._started.batches = BatchLedger(self._folder, self._batches)
        for other in self._others.values():
            asker = asker_of(other.asked.model)
            asker.retried = self._started.asker.retried
            own = AnswerStore(self._folder, what=other._what) if self._folder else used
            other._started = await other._begun(asker, store, own, output)
            self._started.others.append(other._started)

    async def _begun(
        self, asker: Client | EngineClient, store: AnswerStore, used: AnswerStore, output: AnswerStore | None
    ) -> _Started:
        label = f"prompt({self.label})"
        asker.spending = Spending(self.settings.budget, self.asked.model, used, label, output=output)
        await asker.spending.open()
        await asker.open()
        loop = asyncio.get_running_loop()
        priced = self.asked.model.prices is not None
        guard = Guard(self.settings.runaway, label)
        ended: asyncio.Future[BaseException] = loop.create_future()
        asking = UnderWay(self._answered, asker.most, Order(self.asked.model.order), ended, asker.end)
        asker.pause = asking.pause
        return _Started(asker, store, used, loop, ended, guard, asking, priced, output)

    @property
    def _what(self) -> str:
        """What is asked, as the record names it: the model and the version of the prompt."""
        return f"{self.label}, {self.prompt_version}"

    def _counting_in(self, store: AnswerStore) -> AnswerStore:
        """Return where is counted what this run uses: in its folder, or, without any, where other workers see it."""
        if self.settings.cache and self._folder:
            return AnswerStore(self._folder, what=self._what)
        if self._folder or self.settings.cache or not self.settings.budget:
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

    def input_ends(self, ended: bool) -> None:
        """Note whether rows come but those that were given; called from another thread."""
        started = self._started
        if started is not None:
            for each in (started, *started.others):
                started.loop.call_soon_threadsafe(each.asking.order.input_ends, ended)

    async def close(self) -> None:
        """Close connections and store."""
        if self._started is not None:
            started, self._started = self._started, None
            for each in (started, *started.others):
                await each.asker.spending.close()
                await each.asker.close()
                each.ended.cancel()
                each.used.close()
            started.store.close()
            for kept in (started.output, started.batches):
                if kept is not None:
                    kept.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_started": None}

    async def predict(self, batch: pa.Table) -> pa.RecordBatch:
        """Return the answers to some rows, or raise ``RowsFailed`` with those that there are."""
        started = self._started
        assert started is not None
        answers: list[Answer | None] = [None] * batch.num_rows
        errors: dict[int, BaseException] = {}
        try:
            await self._find(dict(enumerate(batch.to_pylist())), answers, errors)
        except BaseException:
            started.note(over=True)  # who comes after this counts what was paid for it, too
            raise
        if self.looks:
            return await self._noted(errors, batch.num_rows)
        started.given += batch.num_rows
        started.note(over=not started.asking)
        return self.batch_of(answers, errors)

    async def _noted(self, errors: Mapping[int, BaseException], rows: int) -> pa.RecordBatch:
        """Note what rows ask that nobody has asked yet, and return rows without values."""
        started = self._started
        assert started is not None and started.batches is not None
        for each in errors.values():
            if not isinstance(each, RowError):
                raise each
        requests = [each for each in errors.values() if isinstance(each, NotAsked)]
        await when_free(started.batches.note, requests, self._most)
        return self.without_values(rows)

    def _most(self, request: Mapping[str, Any]) -> tuple[int, float]:
        """Return the tokens that a request may use, and what they may cost by batches, if there is a budget."""
        if not self.settings.budget:
            return 0, 0.0
        prompt, answer = most_tokens(request)
        return prompt + answer, self.asked.model.cost(prompt, answer, batch=True)

    async def _find(
        self,
        rows: Mapping[int, Mapping[str, Any]],
        answers: list[Answer | None],
        errors: dict[int, BaseException],
    ) -> None:
        """Find the answers to rows, or why there is none, by their places: of this model, or of another."""
        started = self._started
        assert started is not None
        found: dict[int, Answer | BaseException] = {}
        asking: dict[int, tuple[bytes, dict[str, Any], tuple[str, ...]]] = {}
        for place, row in rows.items():
            try:
                asking[place] = self._asking_for(row)
            except RowError as error:
                found[place] = error
        known = await when_free(started.store.find, [key for key, _, _ in asking.values()])
        ways: dict[int, Shared] = {}
        for place, (key, request, own) in asking.items():
            answer = decoded(known[key]) if key in known else None
            if answer is not None and not self._follows:
                found[place] = answer
            else:
                ways[place] = started.asking.join(key, self._text(request), request, own, answer)
        try:
            if ways:
                waits = [each.answer for each in ways.values()]
                together: asyncio.Future[Any] = asyncio.gather(*waits, return_exceptions=True)
                ends: set[asyncio.Future[Any]] = {together, started.ended}
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if started.ended.done():
                raise started.ended.result()
        finally:
            for way in ways.values():
                started.asking.leave(way)
        for place, way in ways.items():
            found[place] = self._told(way.outcome(), rows[place])
        for place, outcome in found.items():
            before = answers[place]
            if isinstance(outcome, BaseException):
                errors[place] = outcome
            elif before is None:
                answers[place] = outcome
            else:  # of another model
                told = {"repairs": outcome.repairs, "asked_longer": outcome.asked_longer}
                answers[place] = msgspec.structs.replace(added(before, outcome), **told)
        if self._others:
            await self._find_elsewhere(rows, answers, errors)

    def _told(self, outcome: Answer | BaseException, row: Mapping[str, Any]) -> Answer | BaseException:
        """Return what came of a row; the error of an answer that ran away names the script of its letters."""
        if not isinstance(outcome, Runaway):
            return outcome
        script = script_of([row[name] for name in self.asked.template.columns])
        return Runaway(f"{outcome}. Most letters of the row are {script}") if script else outcome

    async def _find_elsewhere(
        self,
        rows: Mapping[int, Mapping[str, Any]],
        answers: list[Answer | None],
        errors: dict[int, BaseException],
    ) -> None:
        """Ask others for rows that have no answer, where there is one for the reason."""
        left: dict[str, dict[int, Mapping[str, Any]]] = {}
        for place, row in rows.items():
            answer, error = answers[place], errors.get(place)
            try:
                if error is None and answer is not None:
                    self.row_of(answer)
            except RowError as problem:
                error = problem
            if isinstance(error, RowError) and reason_of(error) in self._others:
                errors.pop(place, None)
                left.setdefault(reason_of(error), {})[place] = row
        await asyncio.gather(*(self._others[why]._find(some, answers, errors) for why, some in left.items()))

    def _asking_for(self, row: Mapping[str, Any]) -> tuple[bytes, dict[str, Any], tuple[str, ...]]:
        """Return the key of a row's request, the request, and the row's name if its answer is for no other."""
        request = self._request(self.asked.template.render(row), row)
        own = () if self._shares(request) else (self.asked.output, row[self.names_column])
        return self._key(request, own), request, own

    def _key(self, request: dict[str, Any], own: tuple[str, ...]) -> bytes:
        return key_of(request, None, None, self.settings.keep_raw, *self.settings.more, *own)

    def _request(self, messages: list[dict[str, Any]], row: Mapping[str, Any]) -> dict[str, Any]:
        model, settings = self.asked.model, self.settings
        request = {"model": model.model, "messages": messages, **settings.sampling}
        for name, column in settings.overrides.items():
            if row[column] is not None:
                request[name] = parameter(name, row[column], column, model)
        if settings.n > 1:
            request["n"] = settings.n
        if "logprobs" in settings.columns:
            request["logprobs"] = True
        if settings.tools:
            request["tools"] = settings.tools
        return request if self.schema is None else self.schema.asking(request)

    def _text(self, request: Mapping[str, Any]) -> str:
        """Return what decides about the place of a request in the order, if it is not that of the rows."""
        return text_of(request["messages"]) if self.asked.model.order != "arrival" else ""

    def _shares(self, request: Mapping[str, Any]) -> bool:
        """Say whether one answer is for all rows that ask the same: it would be the same, or ``cache=`` asks for it.

        Endpoints draw answers unless they are told otherwise; engines in the worker take the likeliest.
        """
        temperature = request.get("temperature")
        greedy = temperature == 0 or (temperature is None and not self.asked.model.is_served)
        return greedy or request.get("seed") is not None or bool(self.settings.cache)

    # ------------------------------------------------------------ asking

    async def _answered(self, shared: Shared) -> None:
        """Ask, and ask again where an answer was cut or is not as asked; it is told when it is kept."""
        started = self._started
        assert started is not None
        request, own, known = shared.given  # ``own`` names the row, where its answer is for no other
        last = answer = known or await self._step(request, own)
        larger = self.settings.on_truncated
        limit = request.get("max_completion_tokens", request.get("max_tokens", 0))
        if answer.finish_reason == "length" and isinstance(larger, int) and limit < larger:
            await self._keep(request, own, last)
            request = with_max_tokens(request, larger)
            last = await self._step(request, own, look=True)
            answer = msgspec.structs.replace(added(answer, last), asked_longer=True)
        for number in range(self.settings.repairs if self.schema is not None else 0):
            problem = self.problem_of(answer)
            if problem is None:
                break
            assert self.schema is not None
            await self._keep(request, own, last)
            repairing = self.schema.repairing(request, answer.text or "", problem)
            try:
                last = await self._step(repairing, own, look=True)
            except ContextTooLong:  # the repair is: the row's error is that its answer is not as asked
                break
            request = repairing
            answer = msgspec.structs.replace(added(answer, last), repairs=number + 1)
        if last is known:
            shared.answer.set_result(answer)
            return
        if started.used is not started.store:
            await started.used.written()
        kept = msgspec.msgpack.encode(last)
        started.store.add_and_tell(self._key(request, own), kept, (shared.answer, answer))

    @property
    def _follows(self) -> bool:
        """Whether an answer may lead to another request: it is known by its own, and what follows is looked for."""
        settings = self.settings
        return isinstance(settings.on_truncated, int) or (self.schema is not None and settings.repairs > 0)

    async def _step(self, request: dict[str, Any], own: tuple[str, ...], *, look: bool = False) -> Answer:
        """Return the answer to a request; ``look``: it may be known, and nobody has looked yet."""
        started = self._started
        assert started is not None
        if look:
            key = self._key(request, own)
            known = (await when_free(started.store.find, [key])).get(key)
            if known is not None:
                return decoded(known)
        if started.batches is not None:
            key, row = self._key(request, ()), "\0".join(own)
            said = await when_free(started.batches.answer, key, row, exact=self.looks)
            if said is not None:
                answer = decoded(said)
                who = request["model"] if "model" in self.more else ""
                return msgspec.structs.replace(answer, model=who)
            if self.looks:
                raise NotAsked(key, row, request)
            if self.asked.via == "batch":
                raise other_rows(f"prompt({self.label})")
        return await self._ask(request)

    async def _keep(self, request: dict[str, Any], own: tuple[str, ...], answer: Answer) -> None:
        """Keep an answer that is followed by another request: others may have their turn before that."""
        started = self._started
        assert started is not None
        if not self.looks:
            await started.store.add(self._key(request, own), msgspec.msgpack.encode(answer))

    async def _ask(self, request: dict[str, Any]) -> Answer:
        """Ask, and have it noted what that used."""
        started = self._started
        assert started is not None
        guard = started.guard
        sent: Mapping[str, Any] = request

        def shorten(body: Mapping[str, Any]) -> Mapping[str, Any]:
            nonlocal sent
            sent = guard.shortened(request)
            return sent

        try:
            answer: Answer = await started.asker.ask(
                request, read=self._read, shorten=shorten if guard.stops else None
            )
        finally:
            started.note()
        started.asking.order.learn(self._text(request), answer.latency)
        read, written = answer.prompt_tokens, answer.completion_tokens
        spent = self.asked.model.cost(read, written) if started.priced else read + written
        if sent is not request and answer.finish_reason == "length":
            raise guard.stopped(written, spent=spent)
        if "model" in self.more:
            answer = msgspec.structs.replace(answer, model=request["model"])
        far = guard.add(written, spent=spent)
        return msgspec.structs.replace(answer, runaway=True) if far else answer

    def _read(self, reply: Reply) -> Answer:
        return answer_of(reply, self.settings)


@dataclass(slots=True)
class _Started:
    """What a worker has while it asks. ``used`` counts for the caps; ``ended`` gets the error that ends the run."""

    asker: Client | EngineClient
    store: AnswerStore
    used: AnswerStore
    loop: asyncio.AbstractEventLoop
    ended: asyncio.Future[BaseException]
    guard: Guard
    asking: UnderWay
    priced: bool = False
    output: AnswerStore | None = None
    batches: BatchLedger | None = None
    session: str = field(default_factory=lambda: secrets.token_hex(4))
    given: int = 0
    said: ModelAsked | None = None
    said_at: float = -math.inf
    others: list[_Started] = field(default_factory=list)

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
        own = sum((each.asker.spending.own for each in self.others), self.asker.spending.own)
        self.said = ModelAsked(
            0, "", self.session, own, self.given, 0, self.used.place, total, spent.sent,
            spent.ended, priced=self.priced, parts=parts,
        )  # fmt: skip


decoded = msgspec.msgpack.Decoder(Answer).decode


def parameter(name: str, value: Any, column: str, model: Any) -> Any:
    """Return a parameter of a request that a row gives; raises ``BadRow`` for a value that makes none."""
    try:
        if name in ("max_tokens", "max_completion_tokens"):
            if isinstance(value, bool) or value != int(value) or value < 1:
                raise ValueError("it takes a whole number of at least 1")
            value = int(value)
        if name == "model" and not (isinstance(value, str) and value):
            raise ValueError("it takes the name of a model")
        model.check_value(name, value)
        msgspec.json.encode(value)
        if isinstance(value, bytes) or (isinstance(value, float) and not math.isfinite(value)):
            raise ValueError("requests do not say that")
    except (TypeError, ValueError, ArgumentError) as error:
        raise BadRow(f"column {column!r} holds {value!r:.60} for {name}: {error}") from None
    return value
