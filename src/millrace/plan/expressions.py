"""Which columns an Arrow expression reads. Arrow does not say, so it is asked for its result until it names none."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

_MISSING = re.compile(r"No match for FieldRef\.Name\((.*?)\) in", re.DOTALL)


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
                return None
            names[name] = pa.nulls(0, schema.field(name).type if name in schema.names else None)
        else:
            return frozenset(names)
