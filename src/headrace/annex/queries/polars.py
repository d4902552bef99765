"""Polars: in this process, in as much memory as the query takes."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from headrace.annex.queries.engines import ROW, Answer, Input, Query, Work
from headrace.core.arrow.batch import empty_batch
from headrace.core.door import library
from headrace.core.terminal import one_line
from headrace.errors import OutputWriteFailed, PlanError, SourceError

_READS = re.compile(r"\bread_(csv|parquet|json|ipc)\s*\(", re.IGNORECASE)
_BEGINS = re.compile(r"\s*(\(\s*)*(select|with|from)\b", re.IGNORECASE)


class Polars:
    """Answers queries with Polars' own SQL."""

    name = "polars"
    bounded = False

    def __init__(self) -> None:
        self._polars: Any = library("hr.sql", "polars")

    @property
    def version(self) -> str:
        """The version of the package."""
        return str(self._polars.__version__)

    def refusal(self, kind: pa.DataType) -> str:
        """Decimals of more than 38 digits, and what only Arrow has."""
        inner = (kind.field(i).type for i in range(kind.num_fields)) if pt.is_nested(kind) else ()
        odd = isinstance(kind, pa.BaseExtensionType) and not isinstance(kind, pa.FixedShapeTensorType)
        tests = (pt.is_decimal256, pt.is_date64, pt.is_interval, pt.is_union, pt.is_run_end_encoded)
        if odd or any(test(kind) for test in tests) or any(map(self.refusal, inner)):
            return "Polars has no type with all of its values"
        return ""

    def reads(self, given: Input) -> bool:
        """It reads what pyarrow reads, with the types that the files have."""
        return not given.outside

    def schema(self, query: Query) -> pa.Schema:
        """Answer the query from no rows."""
        frames = {
            name: self._polars.from_arrow(pa.Table.from_batches([empty_batch(each)])).lazy()
            for name, each in query.schemas.items()
        }
        if query.numbered:
            frames = {name: each.with_row_index(ROW) for name, each in frames.items()}
        data = io.BytesIO()
        try:
            self._asked(query, frames).collect().write_parquet(data)
        except BaseException as error:
            raise self._failed(error, query) from error
        return pq.read_schema(data).remove_metadata()

    def answer(self, query: Query, work: Work) -> Answer:
        """Stream the result into a Parquet file."""
        polars, frames, read = self._polars, {}, {}
        try:
            for name, each in work.inputs.items():
                if each.files:
                    frame = polars.scan_parquet(
                        list(each.files), row_index_name=ROW if query.numbered else None, glob=False
                    )
                else:
                    frame = polars.from_arrow(pa.Table.from_batches([empty_batch(each.schema)])).lazy()
                frames[name] = frame = frame.select([*each.schema.names, *[ROW] * query.numbered])
                read[name] = int(frame.select(polars.len()).collect().item())
            self._asked(query, frames).sink_parquet(str(work.result), compression="snappy")
        except BaseException as error:
            raise self._failed(error, query, work) from error
        return Answer(read, pq.read_metadata(work.result).num_rows)

    def _asked(self, query: Query, frames: Mapping[str, Any]) -> Any:
        if not _BEGINS.match(query.text):
            raise PlanError(f"{query.label}: the text has to be one SELECT.")
        if _READS.search(query.text):
            raise PlanError(
                f"{query.label}: the query reads a file by itself, and a run would not notice if that changed. Give "
                "it as a dataset, such as hr.sql(text, zones=hr.read_csv(path))."
            )
        return self._polars.SQLContext(frames=dict(frames), eager=False).execute(query.text)

    def _failed(self, error: BaseException, query: Query, work: Work | None = None) -> BaseException:
        panic = type(error).__name__ == "PanicException"
        if not isinstance(error, self._polars.exceptions.PolarsError | OSError) and not panic:
            return error
        said = one_line(str(error).partition("\n\n")[0]).rstrip(".")
        if work is None:
            given = ", ".join(query.schemas)
            return PlanError(
                f"{query.label}: Polars does not take the query: {said}. Datasets given: {given}."
            )
        if "No space left" in said:
            return OutputWriteFailed(
                f"{query.label}: there is no space for the result in {work.result.parent}: {said}. Free space, and "
                "run the same program again."
            )
        return SourceError(
            f"{query.label}: Polars failed in the query: {said}. Correct the query, or the values in a step before."
        )
