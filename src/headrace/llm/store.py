"""Answers that were paid for, on disk: who is killed and goes on does not ask again.

One SQLite database for each machine. An answer and what it cost are one transaction, made before the answer is used;
it outlives the death of the process at any moment, not a loss of power.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import secrets
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from headrace.core.files import safe_files
from headrace.errors import OutputWriteFailed

_TABLES = """
create table if not exists answers (key blob primary key, answer blob not null) without rowid;
create table if not exists requests_by_run (run text primary key, sent integer, ended integer) without rowid;
create table if not exists place (only integer primary key check (only = 1), id text);
create table if not exists spent_by_run (run text primary key, requests integer, prompt integer,
    completion integer, cost real) without rowid;
"""


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a model said. ``tries``: how many answers it took, where some had to be asked for again.

    ``tool_calls``: which tools it calls, as JSON text. ``cached_tokens`` of the prompt were computed before;
    ``first_token``: seconds until there was one, 0 where nobody says. ``asked_longer``: with more ``max_tokens`` than
    at first; ``repairs``: how often the model was shown what is wrong. ``refusal``: why it does not answer.
    """

    text: str | None
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    latency: float
    raw: str = ""
    tries: int = 1
    tool_calls: str = ""
    cached_tokens: int = 0
    first_token: float = 0.0
    asked_longer: bool = False
    repairs: int = 0
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class Spent:
    """What a run has used so far."""

    requests: int
    prompt_tokens: int
    completion_tokens: int
    cost: float

    @property
    def tokens(self) -> int:
        """All tokens."""
        return self.prompt_tokens + self.completion_tokens


class AnswerStore:
    """Answers, by the hash of their requests, and what a run has used.

    ``folder`` "": for this worker alone, until it ends. ``run`` tells runs from one another that share a folder.
    ``place`` names what counts for the run.
    """

    def __init__(self, folder: str, run: str = "") -> None:
        self._run = run
        self._path = ""  # a database of its own, in a temporary file
        if folder:
            self._path = os.path.join(folder, f"answers-{_host()}.sqlite")
            try:
                safe_files.make_folder(folder, 0o700)
                for ending in ("", "-wal", "-shm"):
                    if os.path.lexists(self._path + ending):
                        os.close(safe_files.opened(self._path + ending, os.O_RDWR))
            except OSError as error:
                raise _failed(self._path, error) from error
        try:
            self._db = sqlite3.connect(self._path, timeout=60, isolation_level=None, check_same_thread=False)
            if self._path:
                self._db.execute("pragma journal_mode = wal")
            self._db.execute("pragma synchronous = normal")
            self._db.executescript(_TABLES)
            self._db.execute("insert or ignore into spent_by_run values (?, 0, 0, 0, 0.0)", (run,))
            self._db.execute("insert or ignore into requests_by_run values (?, 0, 0)", (run,))
            self._db.execute("insert or ignore into place values (1, ?)", (secrets.token_hex(4),))
            (place,) = self._db.execute("select id from place").fetchone()
        except sqlite3.Error as error:
            raise _failed(self._path, error) from error
        self.place = f"{place}{run}"

    def count_request(self, ended: bool) -> None:
        """Count that a request goes out, or that it has ended, whatever came of it."""
        name = "ended" if ended else "sent"
        self._write(f"update requests_by_run set {name} = {name} + 1 where run = ?", (self._run,))

    def requests(self) -> tuple[int, int]:
        """Return how many requests of the run went out on this machine, and how many of them have ended."""
        try:
            found = self._db.execute("select sent, ended from requests_by_run where run = ?", (self._run,))
            sent, ended = found.fetchone()
        except sqlite3.Error as error:
            raise _failed(self._path, error) from error
        return sent, ended

    def find(self, key: bytes) -> bytes | None:
        """Return what was kept of the answer to a request, if it was answered."""
        try:
            row = self._db.execute("select answer from answers where key = ?", (key,)).fetchone()
        except sqlite3.Error as error:
            raise _failed(self._path, error) from error
        return None if row is None else bytes(row[0])

    def add(self, key: bytes, answer: bytes) -> None:
        """Keep an answer."""
        self._write("insert or replace into answers values (?, ?)", (key, answer))

    def forget(self, keys: Sequence[bytes]) -> None:
        """Let go of answers that are elsewhere by now."""
        with self.together():
            for key in keys:
                self._write("delete from answers where key = ?", (key,))

    def spend(self, prompt_tokens: int, completion_tokens: int, cost: float) -> None:
        """Count what one request used."""
        self._write(
            "update spent_by_run set requests = requests + 1, prompt = prompt + ?, "
            "completion = completion + ?, cost = cost + ? where run = ?",
            (prompt_tokens, completion_tokens, cost, self._run),
        )

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Have what is written within be there as a whole, or not at all."""
        self._write("begin immediate", ())
        try:
            yield
        except BaseException:
            self._write("rollback", ())
            raise
        self._write("commit", ())

    def spent(self) -> Spent:
        """Return what all workers of this machine have used in this run."""
        try:
            found = self._db.execute(
                "select requests, prompt, completion, cost from spent_by_run where run = ?", (self._run,)
            )
            return Spent(*found.fetchone())
        except sqlite3.Error as error:
            raise _failed(self._path, error) from error

    def _write(self, statement: str, values: tuple[Any, ...]) -> None:
        try:
            self._db.execute(statement, values)
        except sqlite3.Error as error:
            raise _failed(self._path, error) from error

    def close(self) -> None:
        """Close the database."""
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
