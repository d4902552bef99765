"""Answers that were paid for, and what was spent, on disk: who is killed and goes on does not ask again.

One SQLite database for each machine. What an answer cost is written down as it comes, and the answer before it is
used; both outlive the death of the process at any moment, not a loss of power. All that comes in one turn of the
event loop is one transaction. Where another worker is writing, ``BlockingIOError`` says so at once, as an event loop
must not wait.

What was spent is a row for each worker, so that all workers of the machine share one budget. Before a request goes
out, the most that it may cost is reserved; when it has ended, what it did cost takes the place of that. What a worker
had reserved when it was killed stays reserved: nobody knows whether it has to be paid for. A database of this kind
counts for a run, one for all runs of an output, and one for what each key has used on each day.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import glob
import hashlib
import operator
import os
import platform
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from headrace.core.answered import Tokens
from headrace.core.files import safe_files
from headrace.core.process import backoff
from headrace.errors import OutputWriteFailed

_TABLES = """
create table if not exists answers (key blob primary key, answer blob not null) without rowid;
create table if not exists place (only integer primary key check (only = 1), id text);
create table if not exists spending (run text, worker text, seen real,
    sent integer, ended integer, requests integer, prompt integer, completion integer, cost real,
    reserved_tokens integer, reserved_cost real, lost_tokens integer, lost_cost real,
    primary key (run, worker)) without rowid;
"""
_SUMS = """
select sum(sent), sum(ended), sum(requests), sum(prompt), sum(completion), total(cost),
    sum(reserved_tokens), total(reserved_cost), sum(lost_tokens), total(lost_cost),
    sum(reserved_tokens > 0 and abs(seen - ?) < ?)
from spending where run = ?
"""
_BEGIN = f"insert or ignore into spending values (?, ?, ?{', 0' * 10}, ?)"
DAY = 86_400.0
SILENT_SECONDS = 15.0
"""A worker that was not heard of for so long is gone: what it has reserved will not come free."""
FORGET_SECONDS = 30 * DAY
"""So long is kept what runs have used that have no output of their own to keep it in."""


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a model said.

    ``tool_calls``: which tools it calls, as JSON text. ``cached_tokens`` of the prompt were computed before;
    ``first_token``: seconds until there was one, 0 where nobody says. ``asked_longer``: with more ``max_tokens`` than
    at first; ``repairs``: how often the model was shown what is wrong. ``refusal``: why it does not answer.
    ``runaway``: it is far longer than others. ``cost``: by the prices of who was asked, when it was.
    ``reasoning``, ``logprobs`` and ``model`` are there where a column of them was asked for.
    ``choices`` are all answers, where several were asked for.
    """

    text: str | None
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    latency: float
    raw: str = ""
    tool_calls: str = ""
    cached_tokens: int = 0
    first_token: float = 0.0
    asked_longer: bool = False
    repairs: int = 0
    refusal: str = ""
    reasoning: str = ""
    logprobs: tuple[float, ...] = ()
    model: str = ""
    choices: tuple[Answer, ...] = ()
    runaway: bool = False
    cost: float | None = None


@dataclass(frozen=True, slots=True)
class Caps:
    """What may be spent, as a price and as a number of tokens; None: any amount."""

    cost: float | None = None
    tokens: int | None = None

    def __bool__(self) -> bool:
        """Say whether there is any."""
        return self.cost is not None or self.tokens is not None


@dataclass(frozen=True, slots=True)
class Spent:
    """What a run has used so far: requests that went out, those that have ended, answers, their tokens and cost.

    ``reserved``: the most that requests may use that are under way, or were when their worker was killed; ``lost``:
    the most that those have used which ended without anybody knowing whether they were answered. ``at_work``: how
    many workers that live have reserved something.
    """

    sent: int = 0
    ended: int = 0
    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0
    reserved_tokens: int = 0
    reserved_cost: float = 0.0
    lost_tokens: int = 0
    lost_cost: float = 0.0
    at_work: int = 0

    def __add__(self, other: Spent) -> Spent:
        """Return both together."""
        return Spent(*map(operator.add, dataclasses.astuple(self), dataclasses.astuple(other)))

    @property
    def most_tokens(self) -> int:
        """All tokens that may have to be paid for, with those of requests whose end is not known."""
        return self.prompt_tokens + self.completion_tokens + self.reserved_tokens + self.lost_tokens

    @property
    def most_cost(self) -> float:
        """The same as a price."""
        return self.cost + self.reserved_cost + self.lost_cost


Used: TypeAlias = tuple[int, int, float, bool]
"""Tokens in and out, what they cost, and whether the server has counted them."""


def charge(tokens: int, cost: float, used: Used | None, *, known: bool = True) -> dict[str, float]:
    """Return by how much columns change when a request ends that had reserved so much.

    ``used`` None: it has no answer. Where that is not ``known``, or nobody has counted, the rest of the most is lost.
    """
    prompt, completion, paid, counted = used or (0, 0, 0.0, known)
    return {
        "reserved_tokens": -tokens,
        "reserved_cost": -cost,
        "requests": int(used is not None),
        "prompt": prompt,
        "completion": completion,
        "cost": paid,
        "lost_tokens": 0 if counted else max(0, tokens - prompt - completion),
        "lost_cost": 0.0 if counted else max(0.0, cost - paid),
    }


class AnswerStore:
    """Answers, by the hash of their requests, and what a run has used.

    ``folder`` "": for this worker alone, until it ends. ``run`` tells runs from one another that share a folder.
    ``daily``: each day of UTC counts for itself, and what is under way at midnight counts for both days. ``name`` and
    ``host`` are those of the file. With a ``host`` that is given, all count as one worker, which goes on where it was
    killed. ``what`` names what is asked: a model and a prompt. ``place`` names what counts for the
    run. ``clock`` gives seconds since 1970.
    """

    def __init__(
        self,
        folder: str,
        run: str = "",
        *,
        daily: bool = False,
        name: str = "answers",
        host: str = "",
        what: str = "",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._name, self._daily, self._kind, self._clock = run, daily, name, clock
        self._worker = host or secrets.token_hex(8)
        self._run = self._run_at(clock())
        self._uncounted: dict[str, float] = {}  # what was used and is not written yet
        self._unkept: dict[bytes, bytes] = {}  # answers that are not written yet
        self._waiting: list[tuple[asyncio.Future[Any], Any]] = []  # for all of that to be written
        self._due: asyncio.Handle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._path = ""  # a database of its own, in a temporary file
        if folder:
            self._path = os.path.join(folder, f"{name}-{host or _host()}.sqlite")
            try:
                safe_files.make_folder(folder, 0o700)
                for ending in ("", "-wal", "-shm"):
                    safe_files.check(self._path + ending)
            except OSError as error:
                raise _failed(self._path, error) from error
        try:
            self._db = sqlite3.connect(self._path, timeout=60, isolation_level=None, check_same_thread=False)
            if self._path:
                self._db.execute("pragma journal_mode = wal")
            self._db.execute("pragma synchronous = normal")
            self._db.executescript(_TABLES)
            self._db.execute("insert or ignore into place values (1, ?)", (secrets.token_hex(4),))
            (place,) = self._db.execute("select id from place").fetchone()
            with contextlib.suppress(sqlite3.OperationalError):  # it has that already
                self._db.execute("alter table spending add column what text")
            self._db.execute(_BEGIN, (self._run, self._worker, clock(), what))
            forgotten = clock() - FORGET_SECONDS
            self._db.execute("delete from spending where run <> '' and seen < ?", (forgotten,))
            self._db.execute("pragma busy_timeout = 0")
        except sqlite3.Error as error:
            raise _failed(self._path, error) from error
        self.place = f"{place}{run}"

    def be_patient(self) -> None:
        """Wait from now on for others that are writing, where no event loop is kept from its work."""
        self._db.execute("pragma busy_timeout = 60000")

    def find(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """Return what was kept of the answers to some requests, by their keys."""
        places = ", ".join("?" * len(keys))
        return dict(self._run_statement(f"select key, answer from answers where key in ({places})", keys))

    def add_and_tell(self, key: bytes, answer: bytes, told: tuple[asyncio.Future[Any], Any]) -> None:
        """Keep an answer; a future gets a value when it is written, with all that was counted before."""
        self._unkept[key] = answer
        self._waiting.append(told)
        self._soon()

    async def add(self, key: bytes, answer: bytes) -> None:
        """Keep an answer; return when it is written."""
        self._unkept[key] = answer
        await self.written()

    def written(self) -> asyncio.Future[None]:
        """Return what is done when all that was counted is written: with what others have to write at this moment."""
        done = asyncio.get_running_loop().create_future()
        self._waiting.append((done, None))
        self._soon()
        return done

    def _soon(self) -> None:
        loop = asyncio.get_running_loop()
        if self._due is None or self._loop is not loop:
            self._loop, self._due = loop, loop.call_soon(self._write_all)

    def _write_all(self, tries: int = 1) -> None:
        """Write what there is, and let those go on who wait for it."""
        self._due, waiting = None, self._waiting
        error: BaseException | None = None
        try:
            self._write()
        except BlockingIOError:
            loop = asyncio.get_running_loop()
            self._due = loop.call_later(backoff(tries, 0.001, 0.1), self._write_all, tries + 1)
            return
        except OutputWriteFailed as failed:
            error = failed
        self._waiting = []
        for each, value in waiting:
            if not each.done():
                each.set_result(value) if error is None else each.set_exception(error)

    def _write(self) -> None:
        self._change_day()
        with self.together():
            self.settle()

    # ------------------------------------------------------------ what was spent

    def reserve(
        self, tokens: int, cost: float, caps: Caps, elsewhere: Spent
    ) -> Literal["reserved", "later", "never"]:
        """Reserve the most that a request may use, if the run has so much left; no two workers get the same.

        ``"later"``: it may fit when requests under way have ended. ``elsewhere`` is what counts beside what is here.
        """
        self._change_day()
        with self.together():
            spent = self.spent() + elsewhere
            if (caps.tokens is None or spent.most_tokens + tokens <= caps.tokens) and (
                caps.cost is None or spent.most_cost + cost <= caps.cost
            ):
                self.count(reserved_tokens=tokens, reserved_cost=cost)
                return "reserved"
            return "later" if spent.at_work else "never"

    def count(self, **more: float) -> None:
        """Add to what this worker has used, by the names of columns; all at once. It is heard of by that.

        On an event loop it is written at the end of its turn, and later where another worker is writing. Until then,
        more is reserved than needed.
        """
        for name, value in more.items():
            self._uncounted[name] = self._uncounted.get(name, 0) + value
        if self._db.in_transaction:
            self.settle()
            return
        try:
            self._soon()
        except RuntimeError:  # there is no event loop
            with contextlib.suppress(BlockingIOError):
                self.settle()

    def settle(self) -> None:
        """Write down what ``count`` could not, with the answers that it counts; this worker is heard of by that."""
        if not self._db.in_transaction:
            self._change_day()
        if self._unkept:
            self._run_statement(
                "insert or replace into answers values (?, ?)", self._unkept.items(), many=True
            )
            self._unkept = {}
        changes = "".join(f", {name} = {name} + :{name}" for name in self._uncounted)
        self._run_statement(
            f"update spending set seen = :seen{changes} where run = :run and worker = :worker",
            {"seen": self._clock(), "run": self._run, "worker": self._worker, **self._uncounted},
        )
        self._uncounted = {}

    def spent(self) -> Spent:
        """Return what all workers of this machine have used in this run."""
        now = self._clock()
        found = self._sums(self._run_at(now))
        if not self._daily:
            return found
        # The server may count for today what is under way; what another has settled for a dead worker is below 0.
        before = self._run_statement(
            "select sum(max(reserved_tokens, 0)), total(max(reserved_cost, 0)), "
            "sum(reserved_tokens > 0 and abs(seen - ?) < ?) from spending where run = ?",
            (now, SILENT_SECONDS, self._run_at(now - DAY)),
        ).fetchone()
        tokens, cost, at_work = (each or 0 for each in before)
        return found + Spent(reserved_tokens=tokens, reserved_cost=cost, at_work=at_work)

    def spent_for(self) -> tuple[tuple[str, Tokens], ...]:
        """Return the answers of this run and what they have cost, for each ``what``."""
        sums = "sum(requests), sum(prompt), sum(completion), total(cost)"
        found = self._run_statement(
            f"select what, {sums} from spending where run = ? group by what having sum(requests) > 0",
            (self._run,),
        )
        return tuple((what or "", Tokens(*used)) for what, *used in found)

    def _sums(self, run: str) -> Spent:
        found = self._run_statement(_SUMS, (self._clock(), SILENT_SECONDS, run)).fetchone()
        return Spent(*(each or 0 for each in found))

    def _run_at(self, now: float) -> str:
        return f"{self._name} {time.strftime('%Y-%m-%d', time.gmtime(now))}" if self._daily else self._name

    def _change_day(self) -> None:
        """Count for the day that has begun, if one has, and take along what is under way."""
        names = {"was": self._run, "now": self._run_at(self._clock()), "worker": self._worker}
        if names["was"] == names["now"]:
            return
        with self.together():
            self._run_statement(_BEGIN, (names["now"], self._worker, self._clock(), ""))
            for name in ("reserved_tokens", "reserved_cost"):
                own = f"(select max({name}, 0) from spending where run = :was and worker = :worker)"
                self._run_statement(
                    f"update spending set {name} = {name} + {own} where run = :now and worker = :worker",
                    names,
                )
            self._run_statement(
                "update spending set reserved_tokens = min(reserved_tokens, 0), "
                "reserved_cost = min(reserved_cost, 0) where run = :was and worker = :worker",
                names,
            )
        self._run = names["now"]

    def spent_elsewhere(self) -> Spent:
        """Return what the same run has used on other machines, before it went on here."""
        found = Spent()
        for path in glob.glob(
            os.path.join(glob.escape(os.path.dirname(self._path)), f"{self._kind}-*.sqlite")
        ):
            if path != self._path:
                try:
                    with contextlib.closing(
                        sqlite3.connect(f"{Path(path).as_uri()}?mode=ro", uri=True)
                    ) as other:
                        sums = other.execute(_SUMS, (self._clock(), SILENT_SECONDS, self._run)).fetchone()
                except sqlite3.Error as error:
                    raise _failed(path, error) from error
                found += Spent(*(each or 0 for each in sums))
        return found

    # ------------------------------------------------------------ how it is written

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Have what is written within be there as a whole, or not at all."""
        self._run_statement("begin immediate")
        try:
            yield
        except BaseException:
            self._run_statement("rollback")
            raise
        self._run_statement("commit")

    def _run_statement(self, statement: str, values: Any = (), *, many: bool = False) -> sqlite3.Cursor:
        try:
            return self._db.executemany(statement, values) if many else self._db.execute(statement, values)
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise BlockingIOError(f"another worker writes to {self._path}") from error
            raise _failed(self._path, error) from error

    def close(self) -> None:
        """Write down what was used, and close the database."""
        if self._due is not None:
            self._due.cancel()
        if self._uncounted or self._unkept:
            self._db.execute("pragma busy_timeout = 60000")
            try:
                self._write()
            except BlockingIOError as error:
                raise _failed(self._path, error) from error
        self._db.close()


def key_of(request: Mapping[str, Any], *others: Any) -> bytes:
    """Return the hash of a request, and of what else decides about its answer."""
    data = msgspec.json.encode([request, *others], order="deterministic")
    return hashlib.blake2b(data, digest_size=16).digest()


def _host() -> str:
    name = platform.node() or "here"
    return "".join(each if each.isalnum() else "-" for each in name)[:60]


def _failed(path: str, error: Exception) -> OutputWriteFailed:
    failed = OutputWriteFailed(
        f"The answers of a language model could not be kept in {path or 'a temporary file'}: {error}. "
        "Nothing more was "
        "asked. Make room there, or have it writable, and run the same program again."
    )
    failed.ends_run = True
    return failed
