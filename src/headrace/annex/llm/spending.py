"""How much a run may use, and what it has used: one budget for all its workers on a machine."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

import msgspec

from headrace.annex.llm.hedge import has_lost
from headrace.annex.llm.refusals import Again, BadRow, Doubtful, RowError
from headrace.annex.llm.store import SILENT_SECONDS, AnswerStore, Caps, Spent
from headrace.core.answered import Tokens
from headrace.core.waiting import when_free
from headrace.errors import HeadraceError, SpendingCapReached

BYTES_PER_TOKEN = 3
"""So many bytes a token of a text has, where nobody has counted."""
MEDIA_TOKENS = 50_000
"""No image or sound is taken for more tokens: its bytes say little of them. A large photograph has some thousands."""
LOOK_SECONDS = 0.05
"""So often who waits for others looks whether they need less than they have reserved."""


class Bill:
    """What one request is charged with: the most that it may use, until it is known what it has used."""

    def __init__(self, spending: Spending, tokens: int, cost: float, likely: Callable[[], int]) -> None:
        self._spending, self._likely = spending, likely
        self._most = {"tokens": tokens, "cost": cost}
        self.sent = False

    @contextlib.contextmanager
    def sending(self) -> Iterator[None]:
        """Count a request that goes out within, and how it ends. One that is cancelled has no end, unless it lost.

        Whatever may have been answered without our knowing is charged with the most that it may cost.
        """
        self.sent = True
        self._spending.count(sent=1)
        try:
            yield
        except asyncio.CancelledError:
            self._end(ended=int(has_lost()), **self._lost())
            raise
        except (HeadraceError, Doubtful, RowError):
            self._end(ended=1)
            raise
        except Again as again:
            self._end(ended=1, **(self._lost() if again.paid else {}))
            raise
        except BaseException:
            self._end(ended=1, **self._lost())
            raise

    def answered(self, data: Mapping[str, Any]) -> None:
        """Charge what an answer has used."""
        self._end(ended=int(self.sent), **self._spending.used(*tokens_of(data, self._likely())))

    def release(self) -> None:
        """Charge nothing: it was not sent."""
        self._end()

    def _lost(self) -> dict[str, float]:
        return {f"lost_{name}": value for name, value in self._most.items()}

    def _end(self, **more: float) -> None:
        reserved = {f"reserved_{name}": -value for name, value in self._most.items() if value}
        if reserved or more:
            self._spending.count(**reserved, **more)
        self._most = {}


class Spending:
    """Lets requests begin while the most that they may use is left. Used on one event loop.

    ``store`` is where all workers of the run count, None: nobody counts. A request waits while others have reserved
    more than they may need. Where nobody has, and it would still go beyond a cap, the run ends.

    What a request may use at most is an answer of ``max_tokens``, and as many tokens as its text has bytes.
    """

    def __init__(
        self, caps: Caps | None = None, model: Any = None, store: AnswerStore | None = None, label: str = ""
    ) -> None:
        self._caps, self._model, self._store, self._label = caps or Caps(), model, store, label
        self._turn = asyncio.Lock()
        self._elsewhere = Spent()
        self._heartbeat: asyncio.Task[None] | None = None
        self.own = Tokens()

    async def open(self) -> None:
        """Let other workers know that this one lives, as long as it does."""
        if self._caps and self._store is not None:
            self._elsewhere = self._store.spent_elsewhere()
            self._heartbeat = asyncio.create_task(self._be_heard())

    async def close(self) -> None:
        """End what ``open`` began."""
        if self._heartbeat is not None:
            self._heartbeat.cancel()

    async def _be_heard(self) -> None:
        while True:
            await asyncio.sleep(SILENT_SECONDS / 3)
            self.count()

    @contextlib.asynccontextmanager
    async def request(
        self, body: Mapping[str, Any], *, room: int | None = None, wait: bool = True
    ) -> AsyncIterator[Bill]:
        """Wait until a request may begin, and yield what it is charged with; ``room``: what the model has for it.

        Raises ``SpendingCapReached`` where no budget is left for it, or none at once without ``wait``.
        """
        bill = await self._reserved(body, room, wait=wait)
        try:
            yield bill
        finally:
            if not bill.sent:
                bill.release()

    async def _reserved(self, body: Mapping[str, Any], room: int | None, *, wait: bool) -> Bill:
        def likely() -> int:
            return len(msgspec.json.encode(body.get("messages", body))) // BYTES_PER_TOKEN + 1

        if not self._caps or self._store is None:
            return Bill(self, 0, 0.0, likely)
        prompt, answer = most_tokens(body, room)
        tokens = prompt + answer if room is None else min(prompt + answer, room)
        cost = self._model.cost(prompt, answer) if self._caps.cost is not None else 0.0
        if not wait and self._turn.locked():  # others wait already
            raise await self._reached(tokens, cost)
        async with self._turn:  # who comes first is first, however much it needs
            reserve = self._store.reserve
            while (may := await when_free(reserve, tokens, cost, self._caps, self._elsewhere)) != "reserved":
                if may == "never" or not wait:
                    raise await self._reached(tokens, cost)
                await asyncio.sleep(LOOK_SECONDS)
        return Bill(self, tokens, cost, likely)

    def used(self, prompt: int, completion: int) -> dict[str, float]:
        """Return what an answer of so many tokens adds to the columns of the store."""
        cost = self._model.cost(prompt, completion) if self._model is not None else 0.0
        self.own += Tokens(1, prompt, completion, cost)
        return {"requests": 1, "prompt": prompt, "completion": completion, "cost": cost}

    def count(self, **more: float) -> None:
        """Add to the columns of the store."""
        if self._store is not None:
            self._store.count(**more)

    def second(self, data: Mapping[str, Any]) -> None:
        """Take it that a request which lost against another has used the same: of the most that it was charged with.

        It has to be paid for as well, as far as anybody knows.
        """
        used = self.used(*tokens_of(data, 1))
        tokens = {"lost_tokens": -used["prompt"] - used["completion"]} if self._caps else {}
        cost = {"lost_cost": -used["cost"]} if self._caps.cost is not None else {}
        self.count(**used, **tokens, **cost)

    async def _reached(self, tokens: int, cost: float) -> SpendingCapReached:
        assert self._store is not None
        spent = await when_free(self._store.spent) + self._elsewhere
        caps, priced = self._caps, self._model.prices is not None
        cap = f"max_cost={caps.cost:g}" if caps.cost is not None else ""
        if caps.tokens is not None:
            cap = f"{cap} and " * bool(cap) + f"max_total_tokens={caps.tokens:,}"
        lost = spent.reserved_tokens + spent.lost_tokens
        unknown = (
            f", and up to {lost:,} tokens{f', {spent.reserved_cost + spent.lost_cost:,.4f}' if priced else ''} are "
            "counted for requests without a known end"
        )
        return SpendingCapReached(
            f"{self._label} has reached {cap}: {spent.requests:,} answers have used {spent.prompt_tokens:,} tokens "
            f"in and {spent.completion_tokens:,} out{f', {spent.cost:,.4f} by prices=' if priced else ''}"
            f"{unknown if lost else ''}. The next request may use up to {tokens:,} tokens"
            f"{f', {cost:,.4f}' if caps.cost is not None else ''}. What was answered for an output is kept: run the "
            "same program with a higher cap to go on, and none of it is asked again."
        )


def most_tokens(body: Mapping[str, Any], room: int | None = None) -> tuple[int, int]:
    """Return how many tokens a request may use at most, in and out; ``room``: what the model has for both.

    No tokenizer makes more tokens of a text than it has bytes, and what a server puts around each message is shorter
    than the JSON here. Images and sounds have as many tokens as bytes, up to ``MEDIA_TOKENS``. Raises ``BadRow`` for
    a request that does not say how long its answer may be.

    >>> most_tokens({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5})
    (60, 5)
    """
    limits = [body[name] for name in ("max_completion_tokens", "max_tokens") if body.get(name) is not None]
    if not limits and room is None:
        raise BadRow("a cap needs max_tokens in sampling=, because the length of this answer is not known")
    text = len(msgspec.json.encode(body))
    media = 0
    for part in _parts(body.get("messages")):
        for kind, field in (("image_url", "url"), ("input_audio", "data")):
            inner = part.get(kind)
            source = inner.get(field) if isinstance(inner, Mapping) else inner
            if isinstance(source, str):
                text -= len(source)
                media += MEDIA_TOKENS if not source.startswith("data:") else min(len(source), MEDIA_TOKENS)
    return text + media, int(max(limits)) * int(body.get("n", 1)) if limits else int(room or 0)


def _parts(messages: Any) -> Iterator[Mapping[str, Any]]:
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content")
        yield from (
            (part for part in content if isinstance(part, Mapping)) if isinstance(content, list) else ()
        )


def tokens_of(data: Mapping[str, Any], prompt_tokens: int) -> tuple[int, int]:
    """Return how many tokens went in and came out; where the server does not say, what their bytes let expect."""
    usage = data.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    read, written = count_of(usage, "prompt_tokens"), count_of(usage, "completion_tokens")
    if written is None:
        _, message = first_choice(data)
        said = {**(message or {}), "content": text_in((message or {}).get("content"))}
        texts = [text for name, text in said.items() if name != "role" and isinstance(text, str)]
        written = max(1, sum(len(text.encode("utf-8", "replace")) for text in texts) // BYTES_PER_TOKEN)
        written *= max(1, len(data.get("choices") or ()))
    return prompt_tokens if read is None else read, written


def first_choice(data: Mapping[str, Any]) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """Return the first choice of an answer, and its message."""
    choices = data.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = choice.get("message") if isinstance(choice, dict) else None
    return choice if isinstance(choice, dict) else None, message if isinstance(message, dict) else None


def text_in(content: Any) -> str | None:
    """Return the text of an answer. It may come in parts; only those of text count."""
    if isinstance(content, list):
        parts = [
            part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "text"
        ]
        return "".join(map(str, parts)) if parts else None
    return content if isinstance(content, str) else None


def count_of(usage: Mapping[str, Any], name: str) -> int | None:
    """Return a number of tokens that a server has counted."""
    value = usage.get(name)
    return value if isinstance(value, int) and value >= 0 else None
