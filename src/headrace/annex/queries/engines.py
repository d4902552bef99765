"""The port of an engine that answers queries, and the engines that there are.

A package brings another by an entry point of ``headrace.query_engines`` that names its class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from headrace.core.door import Table
from headrace.errors import ArgumentError, nearest

if TYPE_CHECKING:
    import pyarrow as pa

ROW = "_row"
"""The column that an input has besides, if the query asks for it: the number of the row in its dataset, from 0."""


@dataclass(frozen=True, slots=True)
class Input:
    """A dataset of a query as Parquet files: their rows, one behind the other, have these columns.

    ``counts``: the rows of each file. ``outside``: columns that no file has, with the value of each file in an array.
    ``rejected``: how many rows failed before.
    """

    files: tuple[str, ...]
    schema: pa.Schema
    counts: tuple[int, ...]
    outside: Mapping[str, pa.Array] = field(default_factory=dict)
    rejected: int = 0

    @property
    def rows(self) -> int:
        """The rows of all files."""
        return sum(self.counts)


@dataclass(frozen=True, slots=True)
class Query:
    """A query: its text, and which columns each dataset has; ``numbered`` adds ``_row`` to all of them.

    ``label`` is what messages call it: ``sql``, or the verb that made it.
    """

    text: str
    schemas: Mapping[str, pa.Schema]
    label: str = "sql"
    numbered: bool = False

    @property
    def shown(self) -> str:
        """The text on one line, behind the verb that made it."""
        text = " ".join(self.text.split())
        return text if self.label == "sql" else f"{self.label}: {text}"


@dataclass(frozen=True, slots=True)
class Work:
    """What a query is answered from and with: inputs by name, the file for the result, a folder for what spills.

    ``memory`` (bytes) and ``cores`` bound it. ``say`` shows the part that is done, of 100.
    """

    inputs: Mapping[str, Input]
    result: Path
    spill: Path
    memory: int
    cores: int
    say: Callable[[float], None]


@dataclass(frozen=True, slots=True)
class Answer:
    """How many rows an engine has read of each input and written, and how many bytes it has spilled."""

    read: Mapping[str, int]
    rows: int
    spilled: int = 0


class QueryEngine(Protocol):
    """Answers a query from Parquet files, with a Parquet file. An object is made for each query, without arguments.

    A value is never changed: what the engine cannot hold is refused, before anything runs.
    """

    name: str
    bounded: bool
    """It keeps to the memory that it is given, and spills what does not fit."""

    @property
    def version(self) -> str:
        """The version of its library: another one is another query."""
        ...

    def refusal(self, kind: pa.DataType) -> str:
        """Say why a column of this type cannot be read without another value; "" if it can be."""
        ...

    def reads(self, given: Input) -> bool:
        """Say whether it reads these Parquet files itself, with the very columns and types of their schema."""
        ...

    def schema(self, query: Query) -> pa.Schema:
        """Return the columns of the result, as they are read from its file.

        Raises ``PlanError`` for a query that cannot be answered from these columns: with the engine's name, and what
        to do.
        """
        ...

    def answer(self, query: Query, work: Work) -> Answer:
        """Write the result to ``work.result``, in the order that the query asks for.

        Raises ``OutOfMemory``, ``OutputWriteFailed`` for a full folder, ``PlanError`` for values that fail in it.
        """
        ...


ENGINES: Table[type[QueryEngine]] = Table(
    "query_engines",
    {
        "duckdb": "headrace.annex.queries.duckdb:DuckDB",
        "polars": "headrace.annex.queries.polars:Polars",
    },
    attributes=("name", "bounded", "version", "refusal", "reads", "schema", "answer"),
    classes=True,
)


def engine_named(name: str) -> QueryEngine:
    """Return an engine by its name; raises ``ArgumentError`` if there is none, ``MissingLibrary`` without its own."""
    found = ENGINES.get(name) if isinstance(name, str) else None
    if found is None:
        known = ENGINES.names()
        raise ArgumentError(
            f"query_engine={name!r}: there is no such engine.{nearest(str(name), known)} The engines for queries are "
            f"{', '.join(known)}.{ENGINES.unusable()}"
        )
    return found()
