"""What rows ask of a batch service, and what came of it: one database in the folder of the run."""

from __future__ import annotations

import hashlib
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import msgspec

from headrace.annex.llm import refusals
from headrace.annex.llm.refusals import Again, RowError
from headrace.annex.llm.spending import Account
from headrace.annex.llm.store import AnswerStore
from headrace.errors import EngineError

TRIES = 3
"""How often a request is answered with what is no answer, until that is the row's fault."""

_TABLES = """
create table if not exists asked (id integer primary key, request blob not null, own text not null, body blob,
    tokens integer, cost real, look integer, round integer not null default 0, tries integer not null default 0,
    good integer, said blob, unique (request, own));
create index if not exists open_requests on asked (round, id) where good is null;
create table if not exists looks (number integer);
"""


class Refusal(msgspec.Struct, frozen=True):
    """Why there is no answer: the name of a ``RowError``, and its words."""

    kind: str
    words: str

    def raised(self) -> NoReturn:
        """Raise it as the error of a row."""
        raise getattr(refusals, self.kind, RowError)(self.words)


class NotAsked(RowError):
    """A row asks what nobody has asked yet."""

    def __init__(self, key: bytes, own: str, body: Mapping[str, Any]) -> None:
        super().__init__("its request was not among those that were sent as a batch")
        self.key, self.own, self.body = key, own, body


class BatchAnswers(AnswerStore):
    """What rows ask, and what came of it. ``key`` stands for a request, ``own`` for the row if its answer is its own.

    Used by the driver, and by workers of its machine.
    """

    def __init__(self, folder: str, name: str) -> None:
        super().__init__(folder, host=name)
        self.be_patient()
        self._db.executescript(_TABLES)
        self._db.execute("insert into looks select 0 where not exists (select * from looks)")
        self._db.execute("pragma busy_timeout = 0")

    @staticmethod
    def there(folder: str, name: str) -> bool:
        """Say whether anything was asked by batches in this folder."""
        return bool(folder) and os.path.exists(os.path.join(folder, f"answers-{name}.sqlite"))

    # ------------------------------------------------------------ rows

    def answer(self, key: bytes, own: str, *, exact: bool) -> bytes | None:
        """Return the answer to a request, None if there is none; raises a ``RowError`` if there will be none.

        Without ``exact`` it may be that of another row which asks the same.
        """
        row = self._run_statement(
            "select good, said from asked where request = ? and own = ? and good is not null", (key, own)
        ).fetchone()
        if row is None and not exact:
            query = "select {} from asked where request = ? and good is not null"
            (count,) = self._run_statement(query.format("count(*)"), (key,)).fetchone()
            if count:
                place = int.from_bytes(hashlib.blake2b(own.encode(), digest_size=6).digest()) % count
                query = query.format("good, said") + " order by id limit 1 offset ?"
                row = self._run_statement(query, (key, place)).fetchone()
        if row is None:
            return None
        if not row[0]:
            msgspec.msgpack.decode(row[1], type=Refusal).raised()
        return bytes(row[1])

    def begin(self) -> None:
        """All rows are looked at, from the first: what none of them asks by then is not asked any more."""
        self._run_statement("update looks set number = number + 1")

    def note(
        self, requests: Sequence[NotAsked], most: Callable[[Mapping[str, Any]], tuple[int, float]]
    ) -> None:
        """Note what rows ask; ``most`` tells the tokens and the cost of a request at most."""
        if not requests:
            return
        with self.together():
            (look,) = self._run_statement("select number from looks").fetchone()
            for each in requests:
                body = msgspec.json.encode(each.body)
                self._run_statement(
                    "insert into asked (request, own, body, tokens, cost, look) values (?, ?, ?, ?, ?, ?) "
                    "on conflict (request, own) do update set look = excluded.look, "
                    "tokens = iif(round = 0, excluded.tokens, tokens), cost = iif(round = 0, excluded.cost, cost)",
                    (each.key, each.own, body, *most(each.body), look),
                )

    # ------------------------------------------------------------ rounds

    def round_at_work(self) -> int:
        """Return the number of the round that was begun and is not complete; 0 if there is none."""
        (number,) = self._run_statement(
            "select max(round) from asked where good is null and round > 0"
        ).fetchone()
        return number or 0

    def choose(self, accounts: Sequence[Account]) -> tuple[int, int]:
        """Begin a round with what is left to ask, as far as all accounts have room for it, and reserve it there.

        Returns how many requests it has, and how many are left. The first account is this one.
        """
        open_now = "good is null and round = 0 and look = (select number from looks)"
        with self.together():
            left_tokens, left_cost = _room(accounts)
            tokens, cost, last, chosen = 0, 0.0, 0, 0
            for each, more_tokens, more_cost in self._run_statement(
                f"select id, tokens, cost from asked where {open_now} order by id"
            ):
                if tokens + more_tokens > left_tokens or cost + more_cost > left_cost:
                    break
                tokens, cost, last, chosen = tokens + more_tokens, cost + more_cost, each, chosen + 1
            if chosen and _reserved(accounts[1:], tokens, cost):
                number = "(select coalesce(max(round), 0) + 1 from asked)"
                self._run_statement(
                    f"update asked set round = {number} where {open_now} and id <= ?", (last,)
                )
                self.count(reserved_tokens=tokens, reserved_cost=cost)
            else:
                chosen = 0
            (left,) = self._run_statement(f"select count(*) from asked where {open_now}").fetchone()
        return chosen, left

    def requests(self, number: int) -> Iterator[tuple[int, bytes]]:
        """Yield the requests of a round that have no answer yet, with their numbers."""
        query = "select id, body from asked where round = ? and good is null order by id"
        for each, body in self._run_statement(query, (number,)):
            yield each, bytes(body)

    def left_open(self, number: int) -> dict[str, float]:
        """Take it that what a round did not say a word of was not asked; return what comes free by that."""
        with self.together():
            sums = "select count(*), total(tokens), total(cost) from asked where good is null and round = ?"
            count, tokens, cost = self._run_statement(sums, (number,)).fetchone()
            free = {"reserved_tokens": -tokens, "reserved_cost": -cost}
            if count:
                self._run_statement("update asked set round = 0 where good is null and round = ?", (number,))
                self.count(**free)
        return free

    def keep(
        self,
        number: int,
        outcomes: Sequence[tuple[int, bytes | RowError | Again | None]],
        used: Callable[[int], tuple[int, int, float]],
    ) -> dict[str, float]:
        """Keep what became of requests of a round, and what it cost, each once; None: it is to be asked again.

        ``used`` tells the tokens, in and out, and the cost of the answer at this place. Returns what was counted.
        """
        counted: Counter[str] = Counter()
        money = {"reserved_cost": 0.0, "cost": 0.0}
        with self.together():
            for place, (each, said) in enumerate(outcomes):
                query = "select tokens, cost, tries from asked where id = ? and round = ? and good is null"
                row = self._run_statement(query, (each, number)).fetchone()
                if row is None:
                    continue
                tokens, cost, tries = row
                prompt, completion, paid = used(place)
                counted.update(
                    {
                        "reserved_tokens": -tokens,
                        "sent": 1,
                        "ended": 1,
                        "requests": int(isinstance(said, (bytes, Again))),
                        "prompt": prompt,
                        "completion": completion,
                    }
                )
                money["reserved_cost"] -= cost
                money["cost"] += paid
                if isinstance(said, Again):
                    said = (
                        None
                        if tries + 1 < TRIES
                        else said.kind(f"answered {TRIES} times in batches, with {said}")
                    )
                if said is None:
                    self._run_statement("update asked set round = 0, tries = tries + 1 where id = ?", (each,))
                    continue
                good = isinstance(said, bytes)
                kept = said if good else msgspec.msgpack.encode(Refusal(type(said).__name__, str(said)))
                self._run_statement(
                    "update asked set good = ?, said = ?, body = null where id = ?", (good, kept, each)
                )
            self.count(**counted, **money)
        return {**counted, **money}

    def retried(self) -> bool:
        """Say whether requests are left whose answer was none."""
        query = "select 1 from asked where good is null and tries > 0 limit 1"
        return self._run_statement(query).fetchone() is not None


def _reserved(accounts: Sequence[Account], tokens: int, cost: float) -> bool:
    """Reserve in all accounts, or in none: another run may have spent meanwhile."""
    held = []
    for account in accounts:
        if account.store.reserve(tokens, cost, account.caps, account.elsewhere) != "reserved":
            break
        held.append(account)
    else:
        return True
    for account in held:
        account.store.count(reserved_tokens=-tokens, reserved_cost=-cost)
    return False


def _room(accounts: Sequence[Account]) -> tuple[float, float]:
    """Return how many tokens, and how much money, all accounts have left."""
    tokens, cost = math.inf, math.inf
    for each in accounts:
        spent = each.store.spent() + each.elsewhere
        if each.caps.tokens is not None:
            tokens = min(tokens, each.caps.tokens - spent.most_tokens)
        if each.caps.cost is not None:
            cost = min(cost, each.caps.cost - spent.most_cost)
    return tokens, cost


def other_rows(label: str) -> EngineError:
    """Return the error of a run whose rows ask something else than they did when its batches were made."""
    error = EngineError(
        f"{label} with via='batch': a row asks something that none asked when the batches were made. The steps "
        "before it have to make the same rows each time. If one fails now and then, run the same program again. If "
        "not, write their rows to files first, and read these. What was answered is kept."
    )
    error.ends_run = True
    return error
