"""What a model raises that can tell which rows of a batch failed."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa


class RowsFailed(Exception):
    """Some rows of a batch failed by themselves; the others have their results.

    ``errors``: by the number of the row in the batch, from 0. ``results``: a row for each row of the batch; what it
    holds for those that failed does not matter. A predictor that raises it is not called again for parts of the
    batch to find the rows at fault, which may cost something.

    >>> failed = RowsFailed({1: ValueError("no number")}, pa.record_batch({"half": [1.0, None, 3.0]}))
    >>> print(failed)
    1 of 3 rows failed; the first: no number
    """

    def __init__(self, errors: Mapping[int, BaseException], results: pa.RecordBatch) -> None:
        super().__init__(errors, results)
        self.errors = dict(errors)
        self.results = results

    def __str__(self) -> str:
        first = self.errors[min(self.errors)] if self.errors else None
        return f"{len(self.errors)} of {self.results.num_rows} rows failed; the first: {first}"
