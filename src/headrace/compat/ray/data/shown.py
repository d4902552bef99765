"""How Ray prints a dataset: as a table, with rows if they are in memory, or else its steps, the last one first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.compat.ray.data.block import BlockAccessor, shown_type

_WIDEST, _MOST_ROWS = 40, 10
# Ray knows the columns of these before a run; of others only after somebody asked for the schema.
_KNOWN = ("MemorySource", "ParquetSource", "QuerySource", "RangeSource", "UnionSource")


def shown(dataset: Any, is_materialized: bool) -> str:
    """Return the text. Nothing is run for it."""
    source, steps = dataset._plan.source, dataset._plan.steps
    known = dataset._found is not None or type(source).__name__ in _KNOWN
    schema = dataset.schema(fetch_if_missing=False) if known else None
    if schema is None or not schema.names:
        return _steps(source.known_schema() if known else None, _count(dataset), steps)
    names, types = [str(name) for name in schema.names], [*map(shown_type, schema.types)]
    count: Any = None if steps else _count(dataset)
    of, note = "?" if count is None else count, "(Dataset isn't materialized)"
    rows: list[list[str]] = []
    if is_materialized:
        ends = _ends(source, count) if count else ([], [])
        head, tail = ([[_cell(row[name]) for name in names] for row in end] for end in ends)
        rows, note = (
            head + [["…"] * len(names)] * bool(tail) + tail,
            f"(Showing {len(head) + len(tail)} of {of} rows)",
        )
    titles = [[*map(_cell, names)], ["---"] * len(names), [*map(_cell, types)]]
    lines = [f"shape: ({of}, {len(names)})", *_table(titles, rows), note]
    return "\n".join([f"name: {dataset.name}"] * (dataset.name is not None) + lines)


def _ends(source: Any, count: int) -> tuple[list[Any], list[Any]]:
    """Return the first and the last rows of what is in memory; all as the first, if they are few."""

    def rows(splits: Sequence[Any], place: slice) -> list[Any]:
        batches = (batch for split in splits for batch in source.read(split, None, 1024))
        return [*BlockAccessor.for_block(pa.Table.from_batches(batches)[place]).iter_rows()]

    splits, half = source.splits(), _MOST_ROWS // 2  # no split is empty
    if count <= _MOST_ROWS:
        return rows(splits, slice(None)), []
    return rows(splits[:half], slice(half)), rows(splits[-half:], slice(-half, None))


def _table(titles: Sequence[Sequence[str]], rows: Sequence[Sequence[str]]) -> list[str]:
    wide = [max(map(len, column)) for column in zip(*titles, *rows, strict=True)]

    def border(left: str, middle: str, right: str, line: str) -> str:
        return left + middle.join(line * (width + 2) for width in wide) + right

    def cells(row: Sequence[str]) -> str:
        return "│" + "┆".join(f" {text:<{width}} " for text, width in zip(row, wide, strict=True)) + "│"

    below = [border("╞", "╪", "╡", "═"), *map(cells, rows)] if rows else []
    return [border("╭", "┬", "╮", "─"), *map(cells, titles), *below, border("╰", "┴", "╯", "─")]


def _cell(value: Any) -> str:
    text = str(value.item() if isinstance(value, np.generic) else value).replace("\n", " ").replace("\r", " ")
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 1]}…"


def _count(dataset: Any) -> Any:
    source = dataset._plan.source
    if type(source).__name__ in ("BinarySource", "ImageSource"):  # a row for each file
        return len(dataset.input_files())
    return source.describe().get("rows") if type(source).__name__ in ("MemorySource", "RangeSource") else None


def _steps(schema: Any, count: int | None, steps: Sequence[Any]) -> str:
    columns = "Unknown schema"
    if schema is not None:
        columns = f"{{{', '.join(f'{field.name}: {shown_type(field.type)}' for field in schema)}}}"
    lines = [_name_of(step) for step in reversed(steps)]
    lines.append(f"Dataset(num_rows={'?' if count is None else count}, schema={columns})")
    return "\n".join("   " * (depth - 1) + "+- " * (depth > 0) + line for depth, line in enumerate(lines))


def _name_of(step: Any) -> str:
    verb, _, rest = step.label().partition("(")
    return f"{verb.title().replace('_', '')}({rest}"
