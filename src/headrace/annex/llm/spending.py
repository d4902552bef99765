"""What may be spent, and what was: one budget for all who spend of it on a machine."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import msgspec

from headrace.annex.llm.limiter import lasting_folder
from headrace.annex.llm.outliers import has_lost
from headrace.annex.llm.refusals import Again, Doubtful, RowError
from headrace.annex.llm.store import SILENT_SECONDS, AnswerStore, Caps, Spent, Used, charge
from headrace.annex.llm.usage import BYTES_PER_TOKEN, Usage, most_tokens, tokens_of, usage_of
from headrace.core.answered import Tokens
from headrace.core.arguments import known_arguments
from headrace.core.model_ports import Shares
from headrace.core.process import when_free
from headrace.errors import ArgumentError, EngineError, HeadraceError, SpendingCapReached

LOOK_SECONDS = 0.05
"""So often who waits for others looks whether they need less than they have reserved."""


SCOPES = {
    "run": "in this run",
    "output": "for this output, in all its runs",
    "day": "with this key today (UTC), on this machine",
}


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Budget:
    """What may be spent on a language model. No request is sent that might go beyond it.

    Parameters
    ----------
    run, run_tokens
        What one run may cost, by the ``prices`` of the endpoint and in their currency, and how many tokens it may
        use, in and out; all workers together, and with what it has used before it was killed. None: any amount. For
        an output in an object store, a program that is started again does not know what it had used: give ``day``.
    output, output_tokens
        The same for all runs that write to one output, as far as they have a budget. It is counted in the folder of
        the output.
    day, day_tokens
        The same for a day of UTC with one key at one server: for all runs of this user on this machine that have a
        budget. It is counted in ``$XDG_STATE_HOME/headrace-spent``, or below ``~/.local/state``.

    Before a request is sent, the most that it may cost is set aside: one token for each byte of it, and
    ``max_tokens`` of answer. When it has ended, what it did cost takes the place of that. Where nobody knows whether
    it has to be paid for, the most counts.

    Raises ``ArgumentError`` for amounts that are not above 0, or if there is none.

    Examples
    --------
    >>> import headrace as hr
    >>> model = hr.llm.Endpoint("http://localhost:8000/v1", "qwen3-8b", prices={"input": 0.15, "output": 0.6})
    >>> hr.llm.Budget(run=5.0, day=15.0)
    Budget(run=5, day=15)
    """

    caps: Mapping[str, Caps]

    @known_arguments
    def __init__(
        self,
        *,
        run: float | None = None,
        run_tokens: int | None = None,
        output: float | None = None,
        output_tokens: int | None = None,
        day: float | None = None,
        day_tokens: int | None = None,
    ) -> None:
        costs, tokens = (run, output, day), (run_tokens, output_tokens, day_tokens)
        for scope, cost, count in zip(SCOPES, costs, tokens, strict=True):
            for name, value, kinds in ((scope, cost, (int, float)), (f"{scope}_tokens", count, (int,))):
                sound = isinstance(value, kinds) and not isinstance(value, bool) and 0 < value < float("inf")
                if value is not None and not sound:
                    noun = "number" if float in kinds else "whole number"
                    raise ArgumentError(f"Budget: {name}={value!r}: it takes a {noun} above 0.")
        caps = {
            scope: Caps(None if cost is None else float(cost), count)
            for scope, cost, count in zip(SCOPES, costs, tokens, strict=True)
        }
        object.__setattr__(self, "caps", caps)
        if not any(self.caps.values()):
            raise ArgumentError("Budget(): say what may be spent, such as Budget(run=5.0, day=15.0).")

    @property
    def priced(self) -> bool:
        """True if it has an amount of money."""
        return any(each.cost is not None for each in self.caps.values())

    def __repr__(self) -> str:
        parts = (_cap_words(scope, caps) for scope, caps in self.caps.items() if caps)
        return f"Budget({', '.join(parts)})"


def _cap_words(scope: str, caps: Caps) -> str:
    cost = f"{scope}={caps.cost:g}" if caps.cost is not None else ""
    tokens = f"{scope}_tokens={caps.tokens}" if caps.tokens is not None else ""
    return ", ".join(filter(None, (cost, tokens)))


@dataclass(slots=True)
class Account:
    """Where is counted what one cap of a budget holds for; ``elsewhere`` is what counts beside that.

    The cap of ``shared`` is what a worker has taken of a budget of many machines, and grows.
    """

    scope: str
    store: AnswerStore
    caps: Caps
    elsewhere: Spent


class Accounts:
    """All that a budget holds for: what is reserved is so in each of them, or in none."""

    def __init__(self, *accounts: Account) -> None:
        self.all = accounts

    def reserve(self, tokens: int, cost: float) -> tuple[Account, str] | None:
        """Reserve, and return None; or return which has no room, and for how long."""
        held: list[Account] = []
        try:
            for account in self.all:
                may = account.store.reserve(tokens, cost, account.caps, account.elsewhere)
                if may != "reserved":
                    return account, may
                held.append(account)
            held = []
            return None
        finally:
            for account in held:
                account.store.count(reserved_tokens=-tokens, reserved_cost=-cost)

    def count(self, **more: float) -> None:
        """Add to the columns of each."""
        for account in self.all:
            account.store.count(**more)

    def looked_again(self) -> Accounts:
        """Return the same by what others have used until now, such as another prompt of the run."""
        return Accounts(
            *(
                each if each.scope == "day" else replace(each, elsewhere=each.store.spent_elsewhere())
                for each in self.all
            )
        )

    def room(self) -> tuple[float, float]:
        """Return how many tokens, and how much money, all of them have left."""
        tokens, cost = math.inf, math.inf
        for each in self.all:
            spent = each.store.spent() + each.elsewhere
            if each.caps.tokens is not None:
                tokens = min(tokens, each.caps.tokens - spent.most_tokens)
            if each.caps.cost is not None:
                cost = min(cost, each.caps.cost - spent.most_cost)
        return tokens, cost


_NOT_CHARGED = (HeadraceError, Doubtful, RowError)
"""What a request fails with that was certainly not answered."""


class Bill:
    """What one request is charged with: the most that it may use, until it is known what it has used."""

    def __init__(
        self,
        spending: Spending,
        likely: Callable[[], int],
        accounts: Accounts,
        tokens: int = 0,
        cost: float = 0.0,
    ) -> None:
        self._spending, self._likely, self._accounts = spending, likely, accounts
        self._most = tokens, cost
        self.sent = False

    def begin(self) -> None:
        """Count a request that goes out."""
        self.sent = True
        self._spending.count(sent=1)

    def failed(self, error: BaseException) -> None:
        """Count how a request ended that has no answer. One that is cancelled has no end, unless it lost.

        Whatever may have been answered without our knowing is charged with the most that it may cost.
        """
        known = not error.paid if isinstance(error, Again) else isinstance(error, _NOT_CHARGED)
        ended = not isinstance(error, asyncio.CancelledError) or has_lost()
        self._end(None, ended=ended, known=known)

    def answered(self, data: Mapping[str, Any]) -> Usage:
        """Charge what an answer has used, or the most that it may have used where the server does not say.

        Returns what the server says.
        """
        usage = usage_of(data)
        prompt, completion = tokens_of(data, self._likely() if usage[0] is None else 0)
        used = prompt, completion, self._spending.paid(prompt, completion), None not in usage[:2]
        self._end(used, ended=self.sent)
        return usage

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if not self.sent and any(self._most):  # nothing is charged
            self._end(None)

    def _end(self, used: Used | None, *, ended: bool = False, known: bool = True) -> None:
        changes = {"ended": int(ended), **charge(*self._most, used, known=known)}
        more = {name: value for name, value in changes.items() if value}
        self._most = 0, 0.0
        if self._accounts.all:
            self._accounts.count(**more)
        elif more:
            self._spending.count(**more)


_NONE = Accounts()


class Spending:
    """Lets requests begin while the most that they may use is left. Used on one event loop.

    ``run`` is where all workers of the run count, None: nobody counts; ``output`` the same for all runs of an output.
    What a day has used is counted by key. With ``shares``, the cap of a run is for many machines. A request waits
    while others have reserved more than they may need. Where nobody has, and it would still go beyond a cap, the run
    ends.

    What a request may use at most is an answer of ``max_tokens``, and as many tokens as its text has bytes.
    """

    def __init__(
        self,
        budget: Budget | None = None,
        model: Any = None,
        run: AnswerStore | None = None,
        label: str = "",
        *,
        output: AnswerStore | None = None,
        shares: Shares | None = None,
    ) -> None:
        self._budget, self._model, self._run, self._label = budget, model, run, label
        self._output, self._shares = output, shares
        self._accounts: list[Account] = []
        self._of: dict[str, Accounts] = {}  # by the name of a key
        self._turn = asyncio.Lock()
        self._heartbeat: asyncio.Task[None] | None = None
        self.own = Tokens()

    async def open(self) -> None:
        """Let other workers know that this one lives, as long as it does."""
        if self._budget is None or self._run is None:
            return
        self._accounts = accounts_of(self._budget, self._run, self._output)
        if self._shares is not None:
            none = Caps(*(None if cap is None else 0 for cap in self._amounts(self._budget.caps["run"])))
            self._accounts = [
                Account("run", self._run, Caps(), Spent()),
                Account("shared", AnswerStore(""), none, Spent()),
            ]
        self._heartbeat = asyncio.create_task(self._be_heard())

    async def close(self) -> None:
        """End what ``open`` began."""
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        for account in self._accounts:
            if account.scope == "shared":
                await self._give_back(account)
                account.store.close()
        for accounts in self._of.values():
            for account in accounts.all[len(self._accounts) :]:
                account.store.close()

    async def _be_heard(self) -> None:
        while True:
            await asyncio.sleep(SILENT_SECONDS / 3)
            for accounts in self._of.values():
                accounts.count()

    async def request(
        self, body: Mapping[str, Any], *, key: str = "", room: int | None = None, wait: bool = True
    ) -> Bill:
        """Wait until a request may begin, and return what it is charged with, for a ``with`` block.

        ``key`` names who pays for it, ``room`` is what the model has for it. Raises ``SpendingCapReached`` where no
        budget is left for it, or none at once without ``wait``.
        """

        def likely() -> int:
            return len(msgspec.json.encode(body.get("messages", body))) // BYTES_PER_TOKEN + 1

        if not self._accounts:
            return Bill(self, likely, _NONE)
        prompt, answer = most_tokens(body, room)
        tokens = prompt + answer if room is None else min(prompt + answer, room * int(body.get("n") or 1))
        cost = self._model.cost(prompt, answer)
        accounts = self._accounts_of(key)
        if not wait and self._turn.locked():  # others wait already
            raise await self._reached(self._accounts[0], tokens, cost)
        async with self._turn:  # who comes first is first, however much it needs
            while (refused := await when_free(accounts.reserve, tokens, cost)) is not None:
                account, may = refused
                if account.scope == "shared" and await self._take(account, tokens, cost):
                    continue
                if may == "never" or not wait:
                    raise await self._reached(account, tokens, cost)
                await asyncio.sleep(LOOK_SECONDS)
        return Bill(self, likely, accounts, tokens, cost)

    @staticmethod
    def _amounts(caps: Caps) -> tuple[float | None, float | None]:
        return caps.cost, caps.tokens

    async def _take(self, account: Account, tokens: int, cost: float) -> bool:
        """Take a share for a request; False if all that is left was taken by others."""
        assert self._budget is not None and self._shares is not None
        spent, has = account.store.spent(), account.caps
        lacks = (
            spent.most_cost + cost - (has.cost or 0.0),
            spent.most_tokens + tokens - (has.tokens or 0),
        )
        caps = self._amounts(self._budget.caps["run"])
        taken = await asyncio.to_thread(self._shares.take, caps, lacks)
        if taken is None:
            return False
        account.caps = Caps(
            None if has.cost is None else has.cost + taken[0],
            None if has.tokens is None else has.tokens + int(taken[1]),
        )
        return True

    async def _give_back(self, account: Account) -> None:
        """Let others have what was not needed; requests that have no known end yet keep theirs."""
        assert self._shares is not None
        account.store.settle()
        spent = account.store.spent()
        both = zip(self._amounts(account.caps), (spent.most_cost, spent.most_tokens), strict=True)
        left = [0.0 if had is None else max(0.0, had - used) for had, used in both]
        account.caps = Caps(*(None if had is None else 0 for had in self._amounts(account.caps)))
        if any(left):
            with contextlib.suppress(HeadraceError, OSError):  # else it counts as spent
                await asyncio.to_thread(self._shares.give_back, left)

    def _accounts_of(self, key: str) -> Accounts:
        """Return where a request by this key counts: also for the day, for caps of this run and of others."""
        if key not in self._of:
            caps = self._budget.caps["day"] if self._budget is not None else Caps()
            day = day_account(key, caps) if key else None
            self._of[key] = Accounts(*self._accounts, *([] if day is None else [day]))
        return self._of[key]

    def paid(self, prompt: int, completion: int) -> float:
        """Note an answer of so many tokens, and return what it costs."""
        cost: float = self._model.cost(prompt, completion) if self._model is not None else 0.0
        self.own += Tokens(1, prompt, completion, cost)
        return cost

    def count(self, **more: float) -> None:
        """Add to the columns of the store of the run."""
        if self._run is not None:
            self._run.count(**more)

    def written(self) -> asyncio.Future[None] | None:
        """Return what is done when all that was counted is on disk; None where nobody counts."""
        return self._run.written() if self._run is not None else None

    def second(self, data: Mapping[str, Any]) -> None:
        """Take it that a request which lost against another has used the same: of the most that it was charged with.

        It has to be paid for as well, as far as anybody knows.
        """
        prompt, completion = tokens_of(data, 1)
        cost = self.paid(prompt, completion)
        lost = {"lost_tokens": -prompt - completion, "lost_cost": -cost} if self._accounts else {}
        self.count(requests=1, prompt=prompt, completion=completion, cost=cost, **lost)

    async def _reached(self, account: Account, tokens: int, cost: float) -> SpendingCapReached:
        spent = await when_free(account.store.spent) + account.elsewhere
        priced = self._model.prices is not None
        lost = spent.reserved_tokens + spent.lost_tokens
        unknown = (
            f", and up to {lost:,} tokens{f', {spent.reserved_cost + spent.lost_cost:,.4f}' if priced else ''} are "
            "counted for requests without a known end"
        )
        kept = "answered for an output"
        later = "after 00:00 UTC, or " if account.scope == "day" else ""
        where, cap = SCOPES.get(account.scope, ""), _cap_words(account.scope, account.caps)
        if account.scope == "shared" and self._budget is not None:
            cap = _cap_words("run", self._budget.caps["run"])
            where = "all machines together have taken it, and those that have some left go on. In this worker"
            kept = "committed by any of them"
        return SpendingCapReached(
            f"{self._label} has reached Budget({cap}): {where}, "
            f"{spent.requests:,} answers have used {spent.prompt_tokens:,} tokens in and "
            f"{spent.completion_tokens:,} out{f', {spent.cost:,.4f} by prices=' if priced else ''}"
            f"{unknown if lost else ''}. The next request may use up to {tokens:,} tokens"
            f"{f', {cost:,.4f}' if account.caps.cost is not None else ''}. What was {kept} is kept: "
            f"run the same program {later}with a higher cap to go on, and none of it is asked again."
        )


def accounts_of(budget: Budget, run: AnswerStore, output: AnswerStore | None) -> list[Account]:
    """Return where is counted what a run has used, and all runs of its output."""
    return [
        Account(scope, store, budget.caps[scope], store.spent_elsewhere())
        for scope, store in (("run", run), ("output", output))
        if store is not None
    ]


def day_account(key: str, caps: Caps) -> Account | None:
    """Return where is counted what a key has used today; None where nobody can count it, and there is no cap."""
    folder = lasting_folder("headrace-spent")
    if folder is not None:
        return Account("day", AnswerStore(folder, key, daily=True, name="spent"), caps, Spent())
    if caps:
        raise no_folder("Budget(day=…)", "XDG_STATE_HOME")
    return None


def no_folder(what: str, variable: str) -> EngineError:
    """Return what ends a run that cannot count where other workers see it."""
    return EngineError(
        f"{what} is counted in a folder that only this user can write, so that all workers see it, and there is "
        f"none here. Set {variable} to a folder of yours."
    )
