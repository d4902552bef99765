"""The ledger of batches: what rows ask, which batch asks it, what came of it, and what that cost.

What is about to be done is written down before it is done. So whoever goes on after a crash looks for it before doing
it again.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, TypeAlias

import msgspec

from headrace.annex.llm import refusals
from headrace.annex.llm.refusals import Again, NoAnswer, RequestRefused, RowError
from headrace.annex.llm.spending import Accounts
from headrace.annex.llm.store import AnswerStore, Used, charge
from headrace.errors import EngineError, PlanChanged

TRIES = 3
"""How often a request is sent that gets no answer, until that is the row's fault."""
TOGETHER = 10_000
NAME_BYTES = 160
"""What a request has beside its body, at most."""

_TABLES = """
create table if not exists asked (id integer primary key, request blob not null, own text not null, model text,
    body blob, tokens integer, cost real, look integer, part integer not null default 0,
    tries integer not null default 0, good integer, said blob, unique (request, own));
create index if not exists open_requests on asked (part, id) where good is null;
create table if not exists parts (number integer primary key, state text, tag text, since real, file text,
    batch text);
create table if not exists about (look integer, run text, place text);
"""
_OPEN = "good is null and part = 0 and look = (select look from about)"

PartState = Literal["planned", "uploading", "creating", "open", "gone", "done"]
Said: TypeAlias = bytes | RowError | Again | None


@dataclass(slots=True)
class Part:
    """Requests that go out together. ``tag`` names it at the provider, ``since`` is when that was begun."""

    number: int
    state: PartState
    tag: str
    since: float = 0.0
    file: str = ""
    batch: str = ""


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


class _NoRoom(Exception):
    """Another run has taken what there was."""


class BatchLedger(AnswerStore):
    """What rows ask, and what came of it. ``key`` stands for a request, ``own`` for the row if its answer is its own.

    Used by the driver, and by workers of its machine. It is the account of its run.
    """

    def __init__(self, folder: str, name: str) -> None:
        super().__init__(folder, host=name)
        self.be_patient()
        self._db.executescript(_TABLES)
        self._db.execute(
            "insert into about select 0, ?, '' where not exists (select * from about)",
            (secrets.token_hex(5),),
        )
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
        self._run_statement("update about set look = look + 1")

    def note(
        self, requests: Sequence[NotAsked], most: Callable[[Mapping[str, Any]], tuple[int, float]]
    ) -> None:
        """Note what rows ask; ``most`` tells the tokens and the cost of a request at most."""
        if not requests:
            return
        with self.together():
            (look,) = self._run_statement("select look from about").fetchone()
            for each in requests:
                body = msgspec.json.encode(each.body)
                self._run_statement(
                    "insert into asked (request, own, model, body, tokens, cost, look) values (?, ?, ?, ?, ?, ?, ?) "
                    "on conflict (request, own) do update set look = excluded.look, "
                    "tokens = iif(part = 0, excluded.tokens, tokens), cost = iif(part = 0, excluded.cost, cost)",
                    (each.key, each.own, each.body.get("model"), body, *most(each.body), look),
                )

    # ------------------------------------------------------------ parts

    def choose(self, accounts: Accounts, most_lines: int, most_bytes: int) -> tuple[int, int]:
        """Put what is left to ask into parts, as far as all accounts have room for it, and reserve it there.

        Each part is of one model, and within what the service takes. Returns how many requests were chosen, and how
        many are left. The first account is this one.
        """
        chosen, tokens, cost, last, enough = 0, 0, 0.0, 0, False
        filled: dict[Any, tuple[int, int, int]] = {}  # by model: the part, its requests and its bytes
        try:
            with self.together():
                left_tokens, left_cost = accounts.room()
                while not enough and (found := self._open_after(last)):
                    placed: list[tuple[int, int]] = []
                    for last, model, size, more_tokens, more_cost in found:
                        if size + NAME_BYTES > most_bytes:
                            said = RequestRefused(f"it has {size:,} bytes, and a batch takes {most_bytes:,}")
                            self._close(last, said)
                            continue
                        enough = tokens + more_tokens > left_tokens or cost + more_cost > left_cost
                        if enough:
                            break
                        tokens, cost = tokens + more_tokens, cost + more_cost
                        number, lines, bytes_ = filled.get(model, (0, most_lines, 0))
                        if lines == most_lines or bytes_ + size + NAME_BYTES > most_bytes:
                            number, lines, bytes_ = self._new_part(), 0, 0
                        filled[model] = number, lines + 1, bytes_ + size + NAME_BYTES
                        placed.append((number, last))
                    chosen += len(placed)
                    self._run_statement("update asked set part = ? where id = ?", placed, many=True)
                if chosen and Accounts(*accounts.all[1:]).reserve(tokens, cost) is not None:
                    raise _NoRoom
                self.count(reserved_tokens=tokens, reserved_cost=cost)
        except _NoRoom:
            chosen = 0
        (left,) = self._run_statement(f"select count(*) from asked where {_OPEN}").fetchone()
        return chosen, left

    def _open_after(self, last: int) -> list[Any]:
        columns = "id, model, length(body), tokens, cost"
        query = f"select {columns} from asked where {_OPEN} and id > ? order by id limit ?"
        return self._run_statement(query, (last, TOGETHER)).fetchall()

    def _new_part(self) -> int:
        run, number = self._run_statement(
            "select run, (select coalesce(max(number), 0) + 1 from parts) from about"
        ).fetchone()
        tag = f"headrace-{run}-{number}"
        self._run_statement("insert into parts values (?, 'planned', ?, 0, '', '')", (number, tag))
        return int(number)

    def parts(self) -> list[Part]:
        """Return the parts that are not done; those that a service has come first."""
        query = "select * from parts where state != 'done' order by state = 'planned', number"
        return [Part(*row) for row in self._run_statement(query)]

    def note_part(self, part: Part) -> None:
        """Write down how a part is."""
        self._run_statement(
            "update parts set state = ?, since = ?, file = ?, batch = ? where number = ?",
            (part.state, part.since, part.file, part.batch, part.number),
        )

    def batches(self) -> set[str]:
        """Return the names of all batches that are ours."""
        return {each for (each,) in self._run_statement("select batch from parts where batch != ''")}

    def requests(self, part: Part) -> Iterator[tuple[int, bytes]]:
        """Yield the requests of a part that have no answer, with their numbers."""
        query = "select id, body from asked where part = ? and good is null order by id"
        for each, body in self._run_statement(query, (part.number,)):
            yield each, bytes(body)

    def size(self, part: Part) -> int:
        """Return how many requests of a part have no answer."""
        query = "select count(*) from asked where part = ? and good is null"
        return int(self._run_statement(query, (part.number,)).fetchone()[0])

    def settle_part(
        self, part: Part, outcomes: Iterable[tuple[int, Said, Used | None]], *, others: Again | None
    ) -> tuple[dict[str, float], int]:
        """Keep what became of a part and what that cost, all at once; with that, it is done.

        Each outcome is that of a request: its answer; why it has none; or that it is to be asked again, which counts
        as a try where it is ``Again``. With it comes what an answer has used, None: there was none. ``others`` holds
        for requests without an outcome. Returns what was counted, and how many requests are to be asked again.
        """
        counted: defaultdict[str, float] = defaultdict(float)
        again = 0
        open_here = "part = ? and good is null"

        def settle(each: int, said: Said, used: Used | None, *, known: bool) -> int:
            query = f"select tokens, cost, tries from asked where id = ? and {open_here}"
            row = self._run_statement(query, (each, part.number)).fetchone()
            if row is None:  # of nobody's request, or there twice
                return 0
            tokens, cost, tries = row
            for name, value in {"sent": 1, "ended": 1, **charge(tokens, cost, used, known=known)}.items():
                counted[name] += value
            if isinstance(said, Again) and tries + 1 >= TRIES:
                said = said.kind(f"asked in {TRIES} batches, the last time with this outcome: {said}")
            if isinstance(said, (bytes, RowError)):
                self._close(each, said)
                return 0
            more = int(said is not None)
            self._run_statement("update asked set part = 0, tries = tries + ? where id = ?", (more, each))
            return 1

        with self.together():
            for each, said, used in outcomes:
                again += settle(each, said, used, known=True)
            left = self._run_statement(f"select id from asked where {open_here}", (part.number,)).fetchall()
            for (each,) in left:
                again += settle(each, others, None, known=others is None)
            part.state = "done"
            self.note_part(part)
            self.count(**counted)
        return counted, again

    def _close(self, each: int, said: bytes | RowError) -> None:
        good = isinstance(said, bytes)
        kept = said if good else msgspec.msgpack.encode(Refusal(type(said).__name__, str(said)))
        self._run_statement(
            "update asked set good = ?, said = ?, body = null where id = ?", (good, kept, each)
        )

    def check_place(self, url: str) -> None:
        """Refuse to look for our batches where they are not: they would be sent, and paid for, again."""
        (before,) = self._run_statement("select place from about").fetchone()
        at_work = any(each.file or each.batch for each in self.parts())
        if before != url and at_work:
            raise PlanChanged(
                f"Batches of this output are at work at the batch service of {before}. Nothing was sent to {url}: go "
                "on with that one until they have ended."
            )
        self._run_statement("update about set place = ?", (url,))


NO_WORD = Again(NoAnswer, "its batch ended without a word of it")


def other_rows(label: str) -> EngineError:
    """Return the error of a run whose rows ask something else than they did when its batches were made."""
    error = EngineError(
        f"{label} with via='batch': a row asks something that none asked when the batches were made. The steps "
        "before it have to make the same rows each time. If one fails now and then, run the same program again. If "
        "not, write their rows to files first, and read these. What was answered is kept."
    )
    error.ends_run = True
    return error
