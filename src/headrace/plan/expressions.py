"""Which columns an Arrow expression reads. Arrow does not say, so it is asked for its result until it names none."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

_VALID = re.compile(r"is_valid\(([^(){}\[\],\"' ]+)\)")
_MISSING = re.compile(r"No match for FieldRef\.Name\((.*?)\) in", re.DOTALL)


@dataclass(frozen=True, slots=True)
class OpenSum:
    """An expression with a ``+`` of columns of unknown types: Arrow's for numbers, and the one that joins texts."""

    numbers: Any
    texts: Any

    def __str__(self) -> str:
        return str(self.numbers)


def meanings(expression: Any) -> tuple[Any, ...]:
    """Return the Arrow expressions that ``expression`` may stand for; the types of columns decide."""
    return (expression.numbers, expression.texts) if isinstance(expression, OpenSum) else (expression,)


def shape_of(expression: Any) -> str:
    """Return the text of an expression with a digest: the text leaves out the middle of long lists."""
    import hashlib
    import pickle

    exact = hashlib.sha256(pickle.dumps(meanings(expression)[0])).hexdigest()[:16]
    return f"{expression} ({exact})"


def missing_field(error: Exception) -> str | None:
    """Return the name of the column that an expression did not find, if that is what the error says."""
    found = _MISSING.search(str(error))
    return found[1] if found else None


def fields_of(expression: Any, schema: pa.Schema) -> frozenset[str] | None:
    """Return the names of the columns that ``expression`` reads; None if that cannot be told.

    ``schema`` tells the types of columns; one that is not in it may have any.

    >>> import pyarrow as pa, pyarrow.compute as pc
    >>> rides = pa.schema({"km": pa.float64(), "city": pa.string(), "fare": pa.float64()})
    >>> sorted(fields_of((pc.field("km") > 1) & pc.field("city").isin(["Oslo"]), rides))
    ['city', 'km']
    """
    types = {field.name: field.type for field in schema}
    found = [names for names, complete in (_found(each, types) for each in meanings(expression)) if complete]
    return frozenset(found[0]) if found else None


def named_fields(expression: Any) -> tuple[str, ...]:
    """Return names of columns that ``expression`` reads, whatever their types: those that are certain.

    >>> import pyarrow.compute as pc
    >>> named_fields(pc.utf8_upper(pc.field("city")))
    ('city',)
    """
    return _found(meanings(expression)[0], {})[0]


def _found(expression: Any, types: Mapping[str, pa.DataType]) -> tuple[tuple[str, ...], bool]:
    """Return the names that were found, and whether these are all."""
    import pyarrow as pa

    # `Table.filter` and the public module import pyarrow.dataset, and that pandas.
    from pyarrow._acero import Declaration, ProjectNodeOptions, TableSourceNodeOptions

    names: dict[str, pa.Array] = {}
    while True:
        source = Declaration("table_source", TableSourceNodeOptions(pa.table(names)))
        project = Declaration("project", ProjectNodeOptions([expression], ["result"]), [source])
        try:
            project.to_table(use_threads=False)
        except Exception as error:
            name = missing_field(error)
            if name is None or name in names:
                return tuple(names), False
            names[name] = pa.nulls(0, types.get(name))
        else:
            return tuple(names), True


def valid_fields(expression: Any) -> frozenset[str]:
    """Return the names of columns that hold no null where ``expression`` is true, as far as its text says so.

    >>> import pyarrow.compute as pc
    >>> sorted(valid_fields(pc.field("km").is_valid() & (pc.field("fare") > 1)))
    ['km']
    >>> sorted(valid_fields(pc.field("km").is_valid() | (pc.field("fare") > 1)))
    []
    """
    found = (_VALID.fullmatch(each) for each in _conjuncts(str(expression)))
    return frozenset(each[1] for each in found if each is not None)


def _conjuncts(text: str) -> Iterator[str]:
    """Cut the text of an expression, as Arrow writes it, at the ``and`` that hold it together."""
    if text.startswith("(") and text.endswith(")"):
        depth = 0
        for at, letter in enumerate(text):
            if letter in "\"'":
                break  # a value that may hold anything
            depth += (letter in "([{") - (letter in ")]}")
            if depth == 1 and text.startswith(" and ", at):
                yield from _conjuncts(text[1:at])
                yield from _conjuncts(text[at + len(" and ") : -1])
                return
    yield text
