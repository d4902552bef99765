"""Arrow expressions, evaluated for a batch; rows at which one fails are found by halving."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from headrace.core.arrow.batch import one_array
from headrace.core.arrow.forms import EXACT
from headrace.errors import StepError, unknown_column
from headrace.plan.expressions import meanings, missing_field
from headrace.worker.rows import Rows
from headrace.worker.user_code import UserCode

_ROUNDED = (
    "it mixes fractions with integers beyond 2**53, which floats cannot hold exactly. Compare integers with whole "
    "numbers (`id > 0` instead of `id > 0.5`), or use a function of a row, which is exact: filter(lambda row: …)"
)

_JOIN = ". + joins texts only with texts: cast other values first, hr.col('n').cast('string')"


def evaluated(
    part: Rows,
    expression: Any,
    label: str,
    user_code: UserCode,
    check: Callable[[str, pa.Array], None] = lambda label, column: None,
    *,
    keep: bool = False,
) -> Iterator[tuple[Rows, pa.Array]]:
    """Yield rows with what the expression gives for them; where it fails, rows that fail by themselves are rejected.

    ``check(label, column)`` raises ``StepError`` if a result is of no use. ``keep``: where the policy has it so, rows
    that fail go on with a null.
    """
    try:
        with user_code.timed(len(part)):
            column = evaluate(expression, label, part.batch)
            check(label, column)
    except StepError as error:
        if not user_code.tolerant or not error.__cause__:
            raise
        if len(part) <= 1:
            user_code.reject_row(part, user_code.fault_of(error.__cause__), keep=keep)
            if keep and user_code.nulls_failures:
                yield part, pa.nulls(len(part), evaluate(expression, label, part.batch.slice(0, 0)).type)
            return
        half = len(part) // 2
        for piece in (part.cut(0, half), part.cut(half, len(part))):
            yield from evaluated(piece, expression, label, user_code, check, keep=keep)
    else:
        yield part, column


def evaluate(expression: Any, label: str, batch: pa.RecordBatch) -> pa.Array:
    """Return what the expression gives for a batch. Raises ``UnknownColumn`` and ``StepError``."""
    try:
        return _meant(expression, batch)
    except ArithmeticError as error:
        raise StepError(f"{label} cannot be evaluated on these columns: {error}.") from error
    except (pa.ArrowException, KeyError, ValueError) as error:
        unknown = missing_field(error)
        if unknown is not None:
            raise unknown_column(label, unknown, batch.schema.names) from None
        joined = "'add_checked'" in str(error) and "string" in str(error)
        raise StepError(
            f"{label} cannot be evaluated on these columns: {error}{_JOIN if joined else ''}"
        ) from error


def _meant(expression: Any, batch: pa.RecordBatch) -> pa.Array:
    """Evaluate what the expression means for columns of these types: as numbers first, and then as texts."""
    numbers, *texts = meanings(expression)
    try:
        return _computed(numbers, batch)
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError):
        for each in texts:
            with contextlib.suppress(pa.ArrowException):
                return _computed(each, batch)
        raise


def _computed(expression: Any, batch: pa.RecordBatch) -> pa.Array:
    try:
        return _projected(expression, batch)
    except pa.ArrowInvalid as error:
        return _compared_as_floats(expression, batch, error)
    except pa.ArrowNotImplementedError:
        if not any(map(_is_other_text, batch.schema.types)):
            raise
        return _projected(expression, _with_one_text_type(batch))


def _projected(expression: Any, batch: pa.RecordBatch) -> pa.Array:
    # `Table.filter` would import pyarrow.dataset, and that pandas.
    from pyarrow._acero import Declaration, ProjectNodeOptions, TableSourceNodeOptions

    source = Declaration("table_source", TableSourceNodeOptions(pa.Table.from_batches([batch])))
    made = Declaration("project", ProjectNodeOptions([expression], ["made"]), [source])
    return one_array(made.to_table(use_threads=False).column(0))


def _with_one_text_type(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch with all texts, and columns of nothing but nulls, as strings: Arrow joins no others."""
    columns = [
        column.cast(pa.string()) if _is_other_text(column.type) else column for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _is_other_text(type_: pa.DataType) -> bool:
    return type_ in (pa.large_string(), pa.string_view(), pa.null())


def _compared_as_floats(expression: Any, batch: pa.RecordBatch, error: pa.ArrowInvalid) -> pa.Array:
    """Evaluate again with integers as float64, where that changes none of them.

    Arrow takes the 0.5 of ``id > 0.5`` for a float32, and refuses to compare integers beyond 2**24 with it. Any
    other error stays one: as floats, a division by zero would be none.
    """
    if "not in range" not in str(error):
        raise error from None
    if str(EXACT) in str(error):
        raise ArithmeticError(_ROUNDED) from error
    try:
        columns = [
            column.cast(pa.float64()) if pa.types.is_integer(column.type) else column
            for column in batch.columns
        ]
        return _projected(expression, pa.RecordBatch.from_arrays(columns, names=batch.schema.names))
    except pa.ArrowException as again:
        if str(EXACT) in str(again):
            raise ArithmeticError(_ROUNDED) from again
        raise error from None
