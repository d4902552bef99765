"""``hr.sql``, and what every verb uses that is answered by a query."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from headrace.annex.queries.engines import Query, engine_named
from headrace.annex.queries.source import QueryInput, QuerySource
from headrace.core.human import short_repr
from headrace.core.tables import type_text
from headrace.dataset.dataset import Dataset
from headrace.errors import ArgumentError, PlanError
from headrace.options import RunOptions
from headrace.plan.logical import Plan


def sql(text: str, /, *, query_engine: str = "duckdb", **datasets: Dataset) -> Dataset:
    """Return the result of a query as a dataset: joins, groups, sorts, windows, whatever SQL says.

    Nothing runs yet, but the query is looked at: its columns are known, and what is wrong with it is said at once.
    When a run begins, such as ``write_parquet``, the query is answered once, and the run reads its result. A run that
    was killed and goes on does not answer it again. docs/queries.md has the rest.

    Parameters
    ----------
    text
        One SELECT. Its tables are ``datasets``, and nothing else.
    query_engine
        ``"duckdb"``; ``"polars"``, for what fits into memory; or one that an installed package brings. DuckDB keeps
        to the memory of the run, and spills what does not fit.
    datasets
        The datasets that the text names. Parquet files are read by the engine itself, and those of Delta and Iceberg
        tables where that gives the same rows. What has steps, or is of another kind, is written as Parquet first.

    Raises
    ------
    PlanError
        The engine does not take the query; a name in it is not given; or a column is of a type whose values the
        engine would change. ``ArgumentError``: something that is given is no dataset, or is not in the text.
        ``MissingLibrary``: the engine's library is not installed.

    Examples
    --------
    >>> import pytest, headrace as hr
    >>> _ = pytest.importorskip("duckdb")
    >>> rides = hr.from_items([{"zone": 1, "fare": 5.0}, {"zone": 2, "fare": 7.5}, {"zone": 1, "fare": 6.0}])
    >>> zones = hr.from_items([{"zone": 1, "name": "Harbour"}, {"zone": 2, "name": "Hill"}])
    >>> query = "SELECT name, sum(fare) AS fares FROM rides JOIN zones USING (zone) GROUP BY name ORDER BY name"
    >>> hr.sql(query, rides=rides, zones=zones).take_all()
    [{'name': 'Harbour', 'fares': 11.0}, {'name': 'Hill', 'fares': 7.5}]
    """
    if not isinstance(text, str):
        raise ArgumentError(f"sql({short_repr(text)}): the query is a text, such as 'SELECT * FROM rides'.")
    return queried(text, datasets, engine=query_engine)


def queried(
    text: str,
    datasets: Mapping[str, Any],
    *,
    label: str = "sql",
    engine: str = "duckdb",
    options: RunOptions | None = None,
    numbered: bool = False,
    packed: tuple[str, ...] | None = None,
) -> Dataset:
    """Return the dataset of a query's rows. The primitive below every verb that is answered by an engine.

    Parameters
    ----------
    text
        One SELECT.
    datasets
        What it names, each a ``Dataset``.
    label
        What messages call it, such as ``"sort"``.
    engine
        The name of the engine.
    options
        Those of the dataset that is returned. Default: the usual ones.
    numbered
        Whether each dataset has the column ``_row`` besides: the number of the row in it, from 0.
    packed
        The keys that the result is sorted by, if each group of rows is to be one row, with a list for each column.

    Raises
    ------
    PlanError, ArgumentError, MissingLibrary
        As ``sql`` does.
    """
    answers = engine_named(engine)
    inputs = [QueryInput(name, *_checked(name, given, label)) for name, given in datasets.items()]
    for each in inputs:
        for field in each.schema:
            why = answers.refusal(field.type)
            if why:
                raise PlanError(
                    f"{label}: the column {field.name!r} of {each.name} is {type_text(field.type)}, and {why}. Leave "
                    f"it out with drop_columns([{field.name!r}]), or convert it in a step before."
                )
    query = Query(text, {each.name: each.schema for each in inputs}, label, numbered)
    source = QuerySource(query, inputs, answers, packed)
    unused = next((name for name in datasets if not re.search(rf"\b{re.escape(name)}\b", text, re.I)), None)
    if unused is not None:
        raise ArgumentError(f"{label}: {unused}= is given, and the query does not name it. Leave it out.")
    return Dataset(Plan(source), options or RunOptions.from_environment())


def _checked(name: str, given: Any, label: str) -> tuple[Plan, Any]:
    """Return the plan of a dataset and its columns; refuse what cannot come before a query."""
    if not isinstance(given, Dataset):
        raise ArgumentError(
            f"{label}: {name} is {type(given).__name__}, and no dataset; read_* and from_* make datasets."
        )
    given._check_unrequired(label)
    plan = given._plan
    if plan.accumulates:
        raise ArgumentError(
            f"{label}: {name} has {plan.accumulates[0].label()}, and metrics count the rows that are written. Put "
            f"accumulate behind {label}."
        )
    return plan, given._schema()
