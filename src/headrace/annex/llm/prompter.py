"""The predictor behind ``Dataset.prompt``: rows to requests, answers to columns."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec
import pyarrow as pa

from headrace.annex.llm.ahead import Ahead
from headrace.annex.llm.answers import (
    AnswerColumns,
    added,
    answer_of,
    ended,
    reason_of,
    with_max_tokens,
)
from headrace.annex.llm.asking import Asking, Way
from headrace.annex.llm.batch_ledger import NotAsked
from headrace.annex.llm.client import Reply
from headrace.annex.llm.endpoint import Endpoint
from headrace.annex.llm.order import Order
from headrace.annex.llm.outliers import Runaway, script_of
from headrace.annex.llm.refusals import BadRow, ContextTooLong, RowError
from headrace.annex.llm.schema import AnswerSchema
from headrace.annex.llm.store import Answer, AnswerStore, key_of
from headrace.annex.llm.template import Template, text_of
from headrace.annex.llm.under_way import Shared, UnderWay
from headrace.annex.llm.usage import usage_of
from headrace.core.process import when_free
from headrace.errors import ArgumentError

BATCH_ROWS = 16
"""Rows that are handed on together."""
WINDOW = 32
"""So many times the requests under way are rows read ahead: one slow request does not keep the others from
going on."""


class Prompter(AnswerColumns, Asking):
    """Asks a model about each row. Equal requests are asked once, where the model would answer them alike."""

    names_column = "\0name"

    def __init__(
        self,
        template: Template,
        model: Any,
        output: str,
        schema: AnswerSchema | None = None,
        via: str = "requests",
        run: str = "",
    ) -> None:
        AnswerColumns.__init__(self, template, model, output, schema)
        label = getattr(model, "label", "") or model.model
        Asking.__init__(self, "prompt", model, via, (label, output), run)
        self._under_way: UnderWay | None = None

    @property
    def ahead(self) -> Ahead | None:
        """What a batch service does for all rows before the run."""
        return Ahead(self) if isinstance(self.model, Endpoint) else None

    def read_line(self, data: Mapping[str, Any]) -> bytes:
        """Return the answer in a line of a batch, as it is kept."""
        return msgspec.msgpack.encode(answer_of(Reply(dict(data), usage_of(data)), self.settings))

    async def load(self) -> None:
        """Make ready to ask the model, and those that stand in for it."""
        await super().load()
        first = self.begun.ways[0].asker
        for other in self.settings.fallback.values():
            folder = self._folder
            used = AnswerStore(folder, what=self._what(other.model)) if folder else self.begun.used
            await self._add_way(other, used)
            self.begun.ways[-1].asker.retried = first.retried
        self._under_way = UnderWay(self._answered, first.most, Order(self.model.order), first.end)
        for way in self.begun.ways:
            way.asker.pause = self._under_way.pause

    async def close(self) -> None:
        """Close connections and stores."""
        await super().close()
        if self._under_way is not None:
            self._under_way.ended.cancel()
            self._under_way = None

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_under_way": None}

    def input_ends(self, ended: bool) -> None:
        """Note whether rows come but those that were given; called from another thread."""
        if self._under_way is not None:
            self.begun.loop.call_soon_threadsafe(self._under_way.order.input_ends, ended)

    async def predict(self, batch: pa.Table) -> pa.RecordBatch:
        """Return the answers to some rows, or raise ``RowsFailed`` with those that there are."""
        assert self._under_way is not None
        begun = self.begun
        try:
            answers, errors = await self._found(batch.to_pylist(), self._under_way)
        except BaseException:
            begun.note(over=True)  # who comes after this counts what was paid for it, too
            raise
        if self.looks:
            return await self._noted(errors, batch.num_rows)
        begun.given += batch.num_rows
        begun.note(over=not self._under_way)
        return self.batch_of(answers, errors)

    async def _noted(self, errors: Mapping[int, BaseException], rows: int) -> pa.RecordBatch:
        """Note what rows ask that nobody has asked yet, and return rows without values."""
        for each in errors.values():
            if not isinstance(each, RowError):
                raise each
        assert self.begun.batches is not None
        requests = [each for each in errors.values() if isinstance(each, NotAsked)]
        await when_free(self.begun.batches.note, requests, self.most)
        return self.without_values(rows)

    async def _found(
        self, rows: list[dict[str, Any]], under_way: UnderWay
    ) -> tuple[list[Answer | None], dict[int, BaseException]]:
        """Return the answers to rows, and why there is none, by places."""
        answers: list[Answer | None] = [None] * len(rows)
        errors: dict[int, BaseException] = {}
        asking: dict[int, tuple[bytes, dict[str, Any], tuple[str, ...]]] = {}
        for place, row in enumerate(rows):
            try:
                asking[place] = self._asking_for(row)
            except RowError as error:
                errors[place] = error
        known = await when_free(self.begun.store.find, [key for key, _, _ in asking.values()])
        joined: dict[int, Shared] = {}
        for place, (key, request, own) in asking.items():
            answer = decoded(known[key]) if key in known else None
            if answer is not None and not self.follows:
                answers[place] = answer
            else:
                joined[place] = under_way.join(key, self._text(request), request, own, answer)
        try:
            if joined:
                await under_way.wait(joined.values())
        finally:
            for shared in joined.values():
                under_way.leave(shared)
        for place, shared in joined.items():
            outcome = shared.outcome()
            if isinstance(outcome, Answer):
                answers[place] = outcome
            else:
                errors[place] = self._told(outcome, rows[place])
        return answers, errors

    def _told(self, error: BaseException, row: Mapping[str, Any]) -> BaseException:
        """Return the error of a row; that of an answer which ran away names the script of the row's letters."""
        if not isinstance(error, Runaway):
            return error
        script = script_of([row[name] for name in self.template.columns])
        return Runaway(f"{error}. Most letters of the row are {script}") if script else error

    def _asking_for(self, row: Mapping[str, Any]) -> tuple[bytes, dict[str, Any], tuple[str, ...]]:
        """Return the key of a row's request, the request, and the row's name if its answer is for no other."""
        request = self._request(self.template.render(row), row)
        own = () if self._shares(request) else (self.output, row[self.names_column])
        return self._key(request, own), request, own

    def _key(self, request: dict[str, Any], own: tuple[str, ...]) -> bytes:
        return key_of(request, None, None, self.settings.keep_raw, *self.settings.more, *own)

    def _request(self, messages: list[dict[str, Any]], row: Mapping[str, Any]) -> dict[str, Any]:
        model, settings = self.model, self.settings
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
        return text_of(request["messages"]) if self.model.order != "arrival" else ""

    def _shares(self, request: Mapping[str, Any]) -> bool:
        """Say whether one answer is for all rows that ask the same: it would be the same, or ``cache=`` asks for it.

        Endpoints draw answers unless they are told otherwise; engines in the worker take the likeliest.
        """
        temperature = request.get("temperature")
        greedy = temperature == 0 or (temperature is None and not self.model.is_served)
        return greedy or request.get("seed") is not None or bool(self.settings.cache)

    # ------------------------------------------------------------ asking

    async def _answered(self, shared: Shared) -> None:
        """Ask, and ask another model where there is one for what came of it; it is told when it is kept."""
        request, own, known = shared.given  # ``own`` names the row, where its answer is for no other
        assert self._under_way is not None
        first, *others = self.begun.ways
        by_reason = dict(zip(self.settings.fallback, others, strict=True))
        before: Answer | None = None
        try:
            answer, last, sent, problem = await self._attempts(first, request, own, known)
            other = by_reason.get(reason_of(problem))
            if other is not None:
                before = answer
                await self._keep(sent, own, last)
        except RowError as error:
            other = by_reason.get(reason_of(error))
            if other is None:
                raise
        if other is not None:
            if request["model"] == first.model.model:  # else the row says which
                request = {**request, "model": other.model.model}
            with self._under_way.aside():
                answer, last, sent, _ = await self._attempts(other, request, own)
        if before is not None:
            told = {"repairs": answer.repairs, "asked_longer": answer.asked_longer}
            answer = msgspec.structs.replace(added(before, answer), **told)
        if last is known:
            shared.answer.set_result(answer)
            return
        if self.begun.used is not self.begun.store:
            await self.begun.used.written()
        key = shared.key if sent is shared.given[0] else self._key(sent, own)
        self.begun.store.add_and_tell(key, msgspec.msgpack.encode(last), (shared.answer, answer))

    async def _attempts(
        self, way: Way, request: dict[str, Any], own: tuple[str, ...], known: Answer | None = None
    ) -> tuple[Answer, Answer, dict[str, Any], RowError | None]:
        """Ask a model, and again where its answer was cut or is not as asked.

        Returns what all answers are together, the last of them, the request that it answers, and what is wrong with
        it, if anything may follow from that.
        """
        look = way is not self.begun.ways[0]
        last = answer = known or await self._step(way, request, own, look=look)
        problem = self.problem_of(answer) if self.follows else None
        larger = self.settings.on_truncated
        limit = request.get("max_completion_tokens", request.get("max_tokens", 0))
        if reason_of(problem) == "truncated" and isinstance(larger, int) and limit < larger:
            await self._keep(request, own, last)
            request = with_max_tokens(request, larger)
            last = await self._step(way, request, own, look=True)
            answer = msgspec.structs.replace(added(answer, last), asked_longer=True)
            problem = self.problem_of(answer)
        while (
            reason_of(problem) == "invalid"
            and answer.repairs < self._repairs
            and answer.finish_reason != "length"
        ):
            assert self.schema is not None
            await self._keep(request, own, last)
            repairing = self.schema.repairing(request, answer.text or "", problem)
            try:
                last = await self._step(way, repairing, own, look=True)
            except ContextTooLong:  # the repair is: the row's error is that its answer is not as asked
                break
            request = repairing
            answer = msgspec.structs.replace(added(answer, last), repairs=answer.repairs + 1)
            problem = self.problem_of(answer)
        return answer, last, request, problem

    @property
    def _repairs(self) -> int:
        """How often a model is shown what is wrong with its answer."""
        return self.settings.repairs if self.schema is not None and self.settings.n == 1 else 0

    @property
    def follows(self) -> bool:
        """Whether an answer may lead to another request: it is known by its own, and what follows is looked for."""
        settings = self.settings
        return isinstance(settings.on_truncated, int) or self._repairs > 0 or bool(settings.fallback)

    async def _step(
        self, way: Way, request: dict[str, Any], own: tuple[str, ...], *, look: bool = False
    ) -> Answer:
        """Return the answer to a request; ``look``: it may be known, and nobody has looked yet."""
        begun = self.begun
        if look:
            key = self._key(request, own)
            known = (await when_free(begun.store.find, [key])).get(key)
            if known is not None:
                return decoded(known)
        if begun.batches is not None and way is begun.ways[0]:
            key, row = self._key(request, ()), "\0".join(own)
            said = await when_free(begun.batches.answer, key, row, exact=self.looks)
            if said is not None:
                answer = ended(decoded(said), request)
                who = request["model"] if "model" in self.more else ""
                return msgspec.structs.replace(answer, model=who, cost=cost_of(answer, way, batch=True))
            if self.looks:
                raise NotAsked(key, row, request)
            if self.via == "batch":
                raise self.other_rows()
        return await self._ask(way, request)

    async def _keep(self, request: dict[str, Any], own: tuple[str, ...], answer: Answer) -> None:
        """Keep an answer that is followed by another request: others may have their turn before that."""
        if not self.looks:
            await self.begun.store.add(self._key(request, own), msgspec.msgpack.encode(answer))

    async def _ask(self, way: Way, request: dict[str, Any]) -> Answer:
        """Ask, and have it noted what that used."""
        begun, under_way, guard = self.begun, self._under_way, way.guard
        sent: Mapping[str, Any] = request

        def shorten(body: Mapping[str, Any]) -> Mapping[str, Any]:
            nonlocal sent
            sent = guard.shortened(request)
            return sent

        try:
            answer: Answer = await way.asker.ask(
                request, read=self._read, shorten=shorten if guard.stops else None
            )
        finally:
            if self._begun is begun:  # else it was closed
                begun.note()
        answer = ended(answer, sent)
        if under_way is not None and way is begun.ways[0]:
            under_way.order.learn(self._text(request), answer.latency)
        written, cost = answer.completion_tokens, cost_of(answer, way)
        spent = answer.prompt_tokens + written if cost is None else cost
        if sent is not request and answer.finish_reason == "length":
            raise guard.stopped(written, spent=spent)
        far = guard.add(written, spent=spent)
        who = request["model"] if "model" in self.more else ""
        return msgspec.structs.replace(answer, model=who, cost=cost, runaway=far)

    def _read(self, reply: Reply) -> Answer:
        return answer_of(reply, self.settings)


decoded = msgspec.msgpack.Decoder(Answer).decode


def cost_of(answer: Answer, way: Way, *, batch: bool = False) -> float | None:
    """Return what an answer costs by the prices of who was asked; None without any."""
    if way.model.prices is None:
        return None
    cost: float = way.model.cost(answer.prompt_tokens, answer.completion_tokens, batch=batch)
    return cost


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
