"""What ``repartition`` and ``train_test_split`` ask an engine for: rows gathered by key, and divided by number."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.annex.queries.duckdb_types import quoted
from headrace.annex.queries.verbs import check_names, drawn_by
from headrace.errors import ArgumentError
from headrace.plan.parameters import given_names, given_number

if TYPE_CHECKING:
    from headrace.annex.queries.verbs import QueryVerbs


def gathered(dataset: QueryVerbs, keys: Any) -> QueryVerbs:
    """Return the rows with those of the same keys one behind the other; without keys in a random order."""
    if keys is None:
        return dataset.random_shuffle()
    names = given_names("repartition: keys", keys)
    label = f"repartition(keys={list(names)})"
    order = dataset._order(label, names, False)
    return dataset._answered(label, f"SELECT * EXCLUDE (_row) FROM data ORDER BY {order}, _row")


def split_exactly(
    dataset: QueryVerbs, test_size: float, seed: int | None, stratify: str | None
) -> list[QueryVerbs]:
    """Divide rows in two, of each group of ``stratify`` by itself: those to train with, and those to test with."""
    label = (
        f"train_test_split({test_size!r}, seed={seed or 0}{f', stratify={stratify!r}' if stratify else ''})"
    )
    size, drawn = given_number("train_test_split: test_size", test_size), f"{drawn_by(label, seed)}, _row"
    if size is None or size <= 0 or (size >= 1 and not isinstance(test_size, int)):
        raise ArgumentError(
            f"{label}: test_size is a part of the rows, such as 0.2, or a number of them, such as 1000."
        )
    place = "0"
    if stratify is not None:  # how far a row stands in its group, so that each gives its share
        (column,) = given_names("train_test_split: stratify", stratify)
        check_names(label, (column,), dataset._schema())
        group = f"PARTITION BY {quoted(column)}"
        place = f"(row_number() OVER ({group} ORDER BY {drawn}) - 0.5) / count(*) OVER ({group})"
    rows = str(test_size) if isinstance(test_size, int) else f"round({size!r} * count(*) OVER ())"
    places = f"SELECT _row, {place} AS place FROM data"
    test = f"SELECT _row FROM ({places}) QUALIFY row_number() OVER (ORDER BY place, {drawn}) <= {rows}"
    return [
        dataset._answered(
            f"{label} → {side}",
            f"SELECT * EXCLUDE (_row) FROM data WHERE _row {which} ({test}) ORDER BY _row",
        )
        for side, which in (("train", "NOT IN"), ("test", "IN"))
    ]
