"""``map_groups``: each group is one row on its way, with a list for each column, so that nothing ever divides it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.types as pt

from headrace.annex.queries.duckdb_types import plain, quoted
from headrace.annex.queries.packing import unpacked
from headrace.core.tables import type_text
from headrace.errors import ArgumentError
from headrace.plan.parameters import given_batch_format, given_function, given_resources
from headrace.plan.steps.base import StepFunction
from headrace.plan.steps.map_batches import MapBatches
from headrace.worker.calls import Caller
from headrace.worker.rows import Rows
from headrace.worker.steps.base import StepContext, runs
from headrace.worker.steps.map_batches import MappingBatches, map_batches

if TYPE_CHECKING:
    from headrace.dataset.dataset import Dataset


@dataclass(frozen=True, slots=True)
class MapGroups(MapBatches):
    """Rows that are groups in, what the function returns for each out; ``schema`` is that of the rows in a group."""

    schema: pa.Schema = field(default_factory=lambda: pa.schema([]))
    verb = "map_groups"

    def functions(self) -> tuple[StepFunction, ...]:
        """Return the function; how many rows a group has is not ours to say."""
        return (StepFunction(self.function, self.label(), self.label(), batch_size=self.batch_size),)


@runs(MapGroups)
class MappingGroups(MappingBatches):
    """Calls a function with the rows of each group."""

    def run(self, rows: Iterator[Rows], callers: Sequence[Caller], context: StepContext) -> Iterator[Rows]:
        """Call the function with one group after the other."""
        user_code = context.user_code(self.step.label(), "a group")
        return map_batches(rows, self.step, callers[0], user_code, context.eager, opened=self._unpacked)

    def on_no_rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Call a plain function with no rows."""
        return super().on_no_rows(self._unpacked(batch))

    def _unpacked(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return unpacked(batch, self.step.schema)  # type: ignore[attr-defined]


def grouped(
    dataset: Dataset,
    keys: tuple[str, ...],
    schema: pa.Schema,
    fn: Any,
    batch_format: Any,
    options: Mapping[str, Any],
    *,
    writable: bool,
) -> Dataset:
    """Return the dataset of what a function makes of each group."""
    function = given_function("map_groups", fn, options)
    for key in keys:
        if pt.is_nested(plain(schema.field(key).type)):
            raise ArgumentError(
                f"map_groups: the key {key!r} is {type_text(schema.field(key).type)}, and a key is one value "
                "in each row."
            )
    order = ", ".join(f"{quoted(key)} NULLS LAST" for key in keys)
    text = f"SELECT * EXCLUDE (_row) FROM data ORDER BY {f'{order}, ' if order else ''}_row"
    label = f"groupby({list(keys)}).map_groups"
    groups = dataset._answered(label, text, packed=keys)
    step = MapGroups(
        function,
        1,
        given_batch_format(batch_format),
        None,
        given_resources(options),
        writable=writable,
        schema=schema,
    )
    return groups.with_step(step)
