"""What is known on disk of batches: of what rows ask and what came of it, and of a file that a provider works on."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

import msgspec

from headrace.annex.llm import refusals
from headrace.annex.llm.refusals import Again, RowError
from headrace.annex.llm.spending import Accounts
from headrace.annex.llm.store import AnswerStore
from headrace.core.files import safe_files
from headrace.errors import EngineError

TRIES = 3
"""How often a request is answered with what is no answer, until that is the row's fault."""

_ROWS = """
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
        self._db.executescript(_ROWS)
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

    def choose(self, accounts: Accounts) -> tuple[int, int]:
        """Begin a round with what is left to ask, as far as all accounts have room for it, and reserve it there.

        Returns how many requests it has, and how many are left. The first account is this one.
        """
        open_now = "good is null and round = 0 and look = (select number from looks)"
        with self.together():
            left_tokens, left_cost = accounts.room()
            tokens, cost, last, chosen = 0, 0.0, 0, 0
            for each, more_tokens, more_cost in self._run_statement(
                f"select id, tokens, cost from asked where {open_now} order by id"
            ):
                if tokens + more_tokens > left_tokens or cost + more_cost > left_cost:
                    break
                tokens, cost, last, chosen = tokens + more_tokens, cost + more_cost, each, chosen + 1
            if chosen and Accounts(*accounts.all[1:]).reserve(tokens, cost) is None:
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


def other_rows(label: str) -> EngineError:
    """Return the error of a run whose rows ask something else than they did when its batches were made."""
    error = EngineError(
        f"{label} with via='batch': a row asks something that none asked when the batches were made. The steps "
        "before it have to make the same rows each time. If one fails now and then, run the same program again. If "
        "not, write their rows to files first, and read these. What was answered is kept."
    )
    error.ends_run = True
    return error


# ---------------------------------------------------------------- a file that a provider works on
# One database beside the output: the lines, their batches, and their answers. What is about to be done is written
# down before it is done, so that whoever goes on after a crash looks for it before doing it again.

PartState = Literal["planned", "uploading", "creating", "open", "done"]

_LINES = """
create table if not exists lines (number integer primary key, at integer, size integer, part integer,
    tries integer not null default 0, good integer, said blob);
create index if not exists lines_of_part on lines (part);
create table if not exists parts (number integer primary key, url text, state text, tag text, since real, file text,
    batch text);
create table if not exists run (id text, planned integer, prompt integer, completion integer, place text);
"""


@dataclass(slots=True)
class Part:
    """Some lines that go out together. ``tag`` names it at the provider, ``since`` is when that was begun."""

    number: int
    url: str
    state: PartState
    tag: str
    since: float = 0.0
    file: str = ""
    batch: str = ""


class BatchJournal:
    """Used by one process at a time, which holds the lock of the output."""

    def __init__(self, folder: str, run: str) -> None:
        """``run`` names a run that begins; one that goes on has a name already."""
        path = os.path.join(folder, "batches.sqlite")
        for ending in ("", "-journal"):
            if os.path.lexists(path + ending):
                os.close(safe_files.opened(path + ending, os.O_RDWR))
        self._db = sqlite3.connect(path, isolation_level=None)
        self._db.execute("pragma synchronous = full")
        self._db.executescript(_LINES)
        if self._db.execute("select count(*) from run").fetchone() == (0,):
            self._db.execute("insert into run values (?, 0, 0, 0, '')", (run,))
        self.run, self.planned = self._db.execute("select id, planned from run").fetchone()
        (self.place,) = self._db.execute("select place from run").fetchone()

    def close(self) -> None:
        """Close the database."""
        self._db.close()

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Have what is written within be there as a whole, or not at all."""
        self._db.execute("begin immediate")
        try:
            yield
        except BaseException:
            self._db.execute("rollback")
            raise
        self._db.execute("commit")

    # ------------------------------------------------------------ lines

    def add_lines(self, lines: Iterable[tuple[int, int, int, int]]) -> None:
        """Add lines, each with its number, where it begins, its bytes, and its part."""
        self._db.executemany("insert into lines (number, at, size, part) values (?, ?, ?, ?)", lines)

    def lines_are_planned(self) -> None:
        """Note that all lines have a part."""
        self._db.execute("update run set planned = 1")
        self.planned = 1

    def lines_of(self, part: Part) -> Iterator[tuple[int, int]]:
        """Yield number and place of the lines of a part that have no answer yet, in order."""
        found = self._db.cursor().execute(
            "select number, at from lines where part = ? and good is null order by number", (part.number,)
        )
        yield from found

    def waiting(self, part: Part) -> int:
        """Return how many lines of a part have no answer yet."""
        query = "select count(*) from lines where part = ? and good is null"
        return int(self._db.execute(query, (part.number,)).fetchone()[0])

    def settle(self, part: Part, number: int, good: bool, said: bytes) -> bool:
        """Keep what became of a line; False if it is no line of the part, or has an answer already."""
        done = self._db.execute(
            "update lines set good = ?, said = ? where number = ? and part = ? and good is null",
            (good, said, number, part.number),
        )
        return done.rowcount == 1

    def outcomes(self) -> Iterator[tuple[int, bool | None, bytes]]:
        """Yield each line in order: its number, whether it was answered (None: not known), and what is said of it."""
        for number, good, said in self._db.cursor().execute(
            "select number, good, said from lines order by number"
        ):
            yield number, None if good is None else bool(good), said or b""

    def count_tokens(self, prompt: int, completion: int) -> None:
        """Count tokens of an answer."""
        self._db.execute(
            "update run set prompt = prompt + ?, completion = completion + ?", (prompt, completion)
        )

    def tokens(self) -> tuple[int, int]:
        """Return how many tokens were used, in and out."""
        prompt, completion = self._db.execute("select prompt, completion from run").fetchone()
        return prompt, completion

    def counts(self) -> tuple[int, int]:
        """Return how many lines were answered, and how many were not and will not be."""
        good, bad = self._db.execute(
            "select coalesce(sum(good = 1), 0), coalesce(sum(good = 0), 0) from lines where good is not null"
        ).fetchone()
        return good, bad

    # ------------------------------------------------------------ parts

    def add_part(self, number: int, url: str) -> None:
        """Add a part without lines."""
        tag = f"headrace-{self.run}-{number}"
        self._db.execute("insert into parts values (?, ?, 'planned', ?, 0, '', '')", (number, url, tag))

    def parts(self) -> list[Part]:
        """Return the parts that are not done."""
        query = "select number, url, state, tag, since, file, batch from parts where state != 'done' order by number"
        return [Part(*row) for row in self._db.execute(query)]

    def has_sent(self) -> bool:
        """Say whether it is known that something of ours is at the service."""
        return self._db.execute("select 1 from parts where file != '' or batch != ''").fetchone() is not None

    def set_place(self, url: str) -> None:
        """Note whose service it is."""
        self._db.execute("update run set place = ?", (url,))

    def batches(self) -> set[str]:
        """Return the names of all batches that are ours."""
        return {batch for (batch,) in self._db.execute("select batch from parts where batch != ''")}

    def note(self, part: Part) -> None:
        """Write down how a part is."""
        self._db.execute(
            "update parts set state = ?, since = ?, file = ?, batch = ? where number = ?",
            (part.state, part.since, part.file, part.batch, part.number),
        )

    def again(
        self, part: Part, most: int, *, counted: bool = True
    ) -> tuple[list[tuple[int, int]], Part | None]:
        """Put the lines of a part that have no answer into a part of their own.

        Returns those that had ``most`` tries, with their places, and the new part; ``counted``: this was a try.
        """
        if counted:
            self._db.execute(
                "update lines set tries = tries + 1 where part = ? and good is null", (part.number,)
            )
        spent = list(
            self._db.execute(
                "select number, at from lines where part = ? and good is null and tries >= ?",
                (part.number, most),
            )
        )
        left = "part = ? and good is null and tries < ?"
        if not self._db.execute(f"select 1 from lines where {left} limit 1", (part.number, most)).fetchone():
            return spent, None
        (number,) = self._db.execute("select max(number) + 1 from parts").fetchone()
        self.add_part(number, part.url)
        self._db.execute(f"update lines set part = ? where {left}", (number, part.number, most))
        return spent, next(each for each in self.parts() if each.number == number)
