"""What is known of a batch file that a provider works on: its lines, their batches, and their answers.

One SQLite database beside the output. What is about to be done is written down before it is done, so that whoever
goes on after a crash looks for it before doing it again.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from headrace.core.files import safe_files

PartState = Literal["planned", "uploading", "creating", "open", "done"]

_TABLES = """
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
        self._db.executescript(_TABLES)
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
