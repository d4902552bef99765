"""The user's code and expressions at work: timed, and with an error that says where it failed."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa

from headrace.core.answered import Answered, both
from headrace.core.arrow.batch import one_array
from headrace.core.arrow.forms import EXACT
from headrace.core.arrow.values import ConversionError
from headrace.core.events import CallRetried, Event, ModelAsked
from headrace.core.failures import is_interrupt, name_of, without_message, words
from headrace.core.process import backoff, end_fork, ending_forks, is_worker
from headrace.core.terminal import say
from headrace.core.work import Fault, Reject
from headrace.errors import BadInput, BadReturn, HeadraceError, StepError, unknown_column
from headrace.plan.expressions import meanings, missing_field
from headrace.plan.physical import ErrorPolicy
from headrace.worker.messages import hidden, is_lasting, preview
from headrace.worker.meter import Meter
from headrace.worker.rows import Rows

Where = Callable[[Rows], str]

FIRST_RETRY_SECONDS = 0.5  # seconds before a call that failed is tried again, doubled each time
LONGEST_RETRY_SECONDS = 30.0


def passes(error: BaseException, tried: int, policy: ErrorPolicy) -> bool:
    """Say whether what raised an error for the ``tried``-th time is to be tried again."""
    return tried <= policy.max_retries and isinstance(error, policy.retry_on) and not is_interrupt(error)


def wait_for_retry(tried: int) -> None:
    """Wait before what failed for the ``tried``-th time is tried again."""
    time.sleep(backoff(tried, FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS))


class UserCode:
    """Runs the user's code on some rows, takes the time, and says where it failed.

    ``label`` is what messages call the code, ``noun`` what it should give back; ``chosen`` is the argument that
    left columns out, if one did. ``step`` is the step's number in the meter.
    """

    def __init__(
        self,
        label: str,
        noun: str,
        where: Where,
        meter: Meter,
        chosen: str = "",
        *,
        step: int = 0,
        policy: ErrorPolicy = ErrorPolicy(),  # noqa: B008 - frozen
    ) -> None:
        self._label = label
        self._noun = noun
        self._chosen = chosen
        self._where = where
        self._meter = meter
        self._step = step
        self._policy = policy
        self.row: int | None = None
        self.done = 0
        meter.add_user_code(step, self)

    @property
    def tolerant(self) -> bool:
        """True if rows that fail do not end the run."""
        return self._policy.on_error != "raise"

    @property
    def nulls_failures(self) -> bool:
        """True if rows that fail go on with a null instead of a result."""
        return self._policy.on_error == "null"

    @contextmanager
    def locating_errors(self, rows: Rows, *, counted: bool = True) -> Iterator[None]:
        """Turn what the user's code raises into a ``StepError`` that names file, rows and step.

        Code that goes row by row keeps the number of the row at hand in ``row``, and
        counts in ``done`` itself what it does in several goes (``counted=False``).
        """
        self.row = None
        try:
            with self.timed(len(rows) if counted else 0):
                yield
        except BaseException as error:
            if is_interrupt(error) or (isinstance(error, StepError) and not isinstance(error, BadInput)):
                raise
            at = self.row
            raise self.step_error(error, rows if at is None else rows.cut(at, at + 1))  # noqa: B904 - has its cause

    @contextmanager
    def timed(self, rows: int) -> Iterator[None]:
        """Take the time, and count ``rows`` as done."""
        start = time.perf_counter()
        try:
            yield
            end_fork()
        except BaseException as error:
            end_fork(error)
            raise
        finally:
            self._meter.count_step(self._step, time.perf_counter() - start)
            self.done += rows
            self._meter.report_progress()

    @contextmanager
    def reporting_call(self, rows: Rows) -> Iterator[None]:
        """Report the start and end of a call over these rows, if calls are watched."""
        end = self.report_start(rows)
        try:
            yield
        finally:
            if end is not None:
                end()

    def report_start(self, rows: Rows) -> Callable[[], None] | None:
        """Report to the driver that a call starts, if calls are watched; return what reports its end."""
        watch = self._meter.watch
        return partial(watch.report_end, watch.report_start(self._label, rows)) if watch is not None else None

    @property
    def seconds(self) -> float:
        """How long the code has taken in this attempt, with what converts its batches."""
        return self._meter.step_seconds[self._step]

    @property
    def is_watched(self) -> bool:
        """True if the start and end of each call are reported to the driver."""
        return self._meter.watch is not None

    @property
    def repeats_calls(self) -> bool:
        """True if calls that raise some errors are tried again, after a while."""
        return bool(self._policy.retry_on)

    @property
    def has_suspects(self) -> bool:
        """True if some rows of the shard may kill the worker: then only one batch is in flight."""
        return self._meter.watch is not None and self._meter.watch.has_suspects

    def split_suspects(self, rows: Rows) -> Iterable[Rows]:
        """Split a batch so that rows that may kill the worker are separate."""
        return self._meter.watch.split_suspects(rows) if self._meter.watch is not None else (rows,)

    def wait_before_retry(self, error: BaseException, tried: int, most: int = sys.maxsize) -> bool:
        """Say whether a call that failed for the ``tried``-th time is to be tried again, once its time has come.

        It is tried ``most`` times more, or as often as the policy has it.
        """
        again = tried <= most and passes(error, tried, self._policy)
        if again:
            self.report(CallRetried, name_of(error))
            wait_for_retry(tried)
        return again

    def with_retries(
        self, call: Callable[[Any], Any], restored_row: Callable[[int], Any]
    ) -> Callable[[Any], Any]:
        """Return the function with its patience, for code that goes row by row; its forks end once they leave it.

        ``restored_row(row)`` gives a row as it was: a call that failed may have changed it.
        """
        call = ending_forks(call)
        if not self._policy.retry_on:
            return call

        def with_retries(row: Any) -> Any:
            for tried in itertools.count(1):
                try:
                    return call(row)
                except BaseException as error:
                    if not self.wait_before_retry(error, tried):
                        raise
                assert self.row is not None
                row = restored_row(self.row)

        return with_retries

    def step_error(self, error: BaseException, rows: Rows) -> StepError:
        """Return a ``StepError`` that says what the user's code raised, and at which rows."""
        kind: type[StepError] = StepError
        cause: BaseException | None = error.__cause__
        said = words(error)
        if not self._policy.show_data:
            said = hidden(said, rows)
        if isinstance(error, ConversionError):
            kind, text = BadReturn, f"{self._label} returned something that is not {self._noun}: {said}."
        elif isinstance(error, BadInput):
            said = said.rstrip(".")
            kind, text = BadInput, f"{self._label}: {said}{'' if said.endswith(('?', '!')) else '.'}"
        else:
            cause = error
            name = name_of(error)
            from headrace.worker.messages import hint_on  # only to say what is wrong

            hint = hint_on(error, said, rows, chosen=self._chosen, by_row=self._noun == "a row")
            text = f"{self._label} raised {f'{name}: {said}' if said else name}{hint}"
        shown = self._preview(rows)
        located = kind(f"{text} It was working on {self._where(rows)}{shown}.")
        located.row = shown
        located.__cause__ = cause if cause is None or self._policy.show_data else without_message(cause)
        return located

    def is_row_error(self, error: BaseException) -> bool:
        """Say whether an error may come from some of the rows, so that bisecting is worth while."""
        if is_interrupt(error) or is_lasting(error):
            return False
        return isinstance(error, BadInput) or not isinstance(error, HeadraceError)

    def exit_if_device_is_lost(self, error: BaseException) -> None:
        """Exit if the device is unusable after this error, and failing rows are wanted: another worker continues."""
        if self.tolerant and is_lasting(error) and is_worker():
            say(f"{self._label} raised {name_of(error)}: {words(error)}", sys.stderr)
            os._exit(1)

    def fault_of(self, error: BaseException) -> Fault:
        """Return why a row failed that raised this."""
        kind = "BadReturn" if isinstance(error, ConversionError) else name_of(error)
        return Fault(self._label, kind, words(error))

    def explained(self, faults: list[Fault], rows: Rows, error: BaseException) -> list[Fault]:
        """Return the faults of single rows with what they say of the batch; ``error`` was that of the whole batch."""
        from headrace.worker.messages import batch_hint  # only to say what is wrong

        hint = batch_hint(self.fault_of(error), faults, error, rows, chosen=self._chosen)
        if not hint:
            return faults
        return [
            Fault(fault.step, fault.kind, f"{fault.message.rstrip('.')}. {hint}".lstrip(". "))
            for fault in faults
        ]

    def reject_row(self, row: Rows, fault: Fault, *, keep: bool = True) -> Fault:
        """Reject a row that fails by itself; or count it as nulled, if it may go on with a null."""
        span = row.spans[0]
        first, last = span.bounds()
        kept = keep and self.nulls_failures
        self._meter.add_rejects([Reject(span.split, first, last, fault, kept)])
        if kept:
            self._meter.nulled += 1
        else:
            self._meter.steps[self._step].rejected += 1
        return fault

    def count_dropped(self, rows: int) -> None:
        """Count rows that the step removed as intended."""
        self._meter.steps[self._step].dropped += rows

    def count_output(self, rows: int, made: int) -> None:
        """Count rows that a function dropped or added."""
        counts = self._meter.steps[self._step]
        counts.dropped += max(0, rows - made)
        counts.added += max(0, made - rows)

    def count_answered(self, answered: Answered | None) -> None:
        """Count what a language model has answered."""
        self._meter.answered = both(self._meter.answered, answered)

    def report(self, kind: Callable[..., Event], *what: Any) -> None:
        """Report an event of a ``kind`` that begins with the worker and the step: ``what`` follows."""
        self._meter.report(kind(-1, self._label, *what))

    def report_asked(self, asked: ModelAsked, taken: int) -> None:
        """Report what a language model was asked so far; ``taken``: rows that have gone on with their answers."""
        self._meter.report(msgspec.structs.replace(asked, step=self._label, taken=taken))

    def _preview(self, rows: Rows) -> str:
        """Show the values of a single row, if they may be shown."""
        if len(rows) != 1 or not self._policy.show_data:
            return ""
        values = preview(rows.batch)
        return f": {values}" if values else ""


# ---------------------------------------------------------------- Arrow expressions

_ROUNDED = (
    "it mixes fractions with integers beyond 2**53, which floats cannot hold exactly. Compare integers with whole "
    "numbers (`id > 0` instead of `id > 0.5`), or use a function of a row, which is exact: filter(lambda row: …)"
)

_OF_UINT64 = f"not in range: 0 to {2**63 - 1}"
_HINTS = (
    (_OF_UINT64, "Compare it with a number of its own type, hr.col('n') > hr.lit(1).cast('uint64')"),
    (
        r"'add_checked'.*string",
        "+ joins texts only with texts: cast other values first, hr.col('n').cast('string')",
    ),
    (r"Precision is not", "Compare decimals with a fraction, `price > 1.0`, or with decimal.Decimal(1)"),
    (
        r"no kernel matching input types \((date|time).*, .*string\)",
        "Cast the text: hr.col('day') >= hr.lit('2026-01-31').cast('date32'), or .cast('timestamp[us]')",
    ),
)


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
        for piece in part.halves():
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
        hint = next((f". {hint}" for pattern, hint in _HINTS if re.search(pattern, str(error))), "")
        raise StepError(f"{label} cannot be evaluated on these columns: {error}{hint}") from error


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
        return _projected(expression, _cast_where(_is_other_text, batch, pa.string()))


def _projected(expression: Any, batch: pa.RecordBatch) -> pa.Array:
    # `Table.filter` would import pyarrow.dataset, and that pandas.
    from pyarrow._acero import Declaration, ProjectNodeOptions, TableSourceNodeOptions

    source = Declaration("table_source", TableSourceNodeOptions(pa.Table.from_batches([batch])))
    made = Declaration("project", ProjectNodeOptions([expression], ["made"]), [source])
    return one_array(made.to_table(use_threads=False).column(0))


def _cast_where(
    test: Callable[[pa.DataType], bool], batch: pa.RecordBatch, type_: pa.DataType
) -> pa.RecordBatch:
    columns = [column.cast(type_) if test(column.type) else column for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _is_other_text(type_: pa.DataType) -> bool:
    """Say whether a column may be text, or nothing but nulls, without being of strings: Arrow joins no others."""
    return type_ in (pa.large_string(), pa.string_view(), pa.null())


def _compared_as_floats(expression: Any, batch: pa.RecordBatch, error: pa.ArrowInvalid) -> pa.Array:
    """Evaluate again with integers as float64, where that changes none of them.

    Arrow takes the 0.5 of ``id > 0.5`` for a float32, and refuses to compare integers beyond 2**24 with it. Any
    other error stays one: as floats, a division by zero would be none.
    """
    if "not in range" not in str(error) or _OF_UINT64 in str(error):
        raise error from None
    if str(EXACT) in str(error):
        raise ArithmeticError(_ROUNDED) from error
    try:
        return _projected(expression, _cast_where(pa.types.is_integer, batch, pa.float64()))
    except pa.ArrowException as again:
        if str(EXACT) in str(again):
            raise ArithmeticError(_ROUNDED) from again
        raise error from None
