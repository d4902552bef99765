"""Errors on their way from a worker to the user's screen."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any

from headrace import errors
from headrace.core.process import end_fork, is_worker
from headrace.core.source_ports import Source
from headrace.core.target_ports import Sink, Writer
from headrace.core.terminal import encodable, one_line
from headrace.core.work import ErrorReport, StagedFile, Task
from headrace.errors import HeadraceError, RemoteTraceback, SinkError, SourceError

if TYPE_CHECKING:
    import pyarrow as pa

MESSAGE_CHARS = 2_000
NAME_CHARS = 200
TRACEBACK_CHARS = 20_000
_OURS = ("headrace", "asyncio", "concurrent")  # what stands between a run and the user's code


def is_interrupt(error: BaseException) -> bool:
    """Say whether somebody wants the run to end.

    Workers ignore SIGINT: a ``KeyboardInterrupt`` there is an error that the user's code raised, like any other.
    Whoever catches an error of the user's asks this; a fork of a worker ends here, so that nobody goes on with it.
    """
    if is_worker():
        end_fork(error)
        return False
    return isinstance(error, KeyboardInterrupt)


def words(error: BaseException) -> str:
    """Return what the error says, at most 2,000 characters of it, even if asking it raises; UTF-8 can hold it."""
    try:
        text = str(error)
    except BaseException as second:
        if is_interrupt(second):
            raise
        return f"(no message: its __str__ raised {name_of(second)})"
    return shortened(encodable(text), MESSAGE_CHARS)


def name_of(error: BaseException) -> str:
    """Return the name of an error's class, fit for a line of ours.

    >>> name_of(ValueError("x"))
    'ValueError'
    """
    return shortened(one_line(class_name(type(error))), NAME_CHARS)


def class_name(kind: type) -> str:
    """Return a class's own name, whatever its metaclass says."""
    name: str = type.__dict__["__name__"].__get__(kind)
    return name


def library_of(kind: type) -> str:
    """Return the name of the package that a class is from."""
    return str(type.__dict__["__dict__"].__get__(kind).get("__module__", "")).partition(".")[0]


def shortened(text: str, most: int) -> str:
    """Cut the middle out of a long text.

    >>> shortened("abcdefghij", 5)
    'ab … ij'
    """
    half = most // 2
    return text if len(text) <= most else f"{text[:half]} … {text[-half:]}"


def report(error: BaseException) -> ErrorReport:
    """Put an error into words that can travel: ours by class and message, foreign ones with a traceback."""
    if isinstance(error, HeadraceError):
        cause = error.__cause__
        text = user_traceback(cause) if cause is not None and error.foreign_cause else ""
        return ErrorReport(type(error).__name__, str(error), text, row=error.row)
    text = _formatted(error, error.__traceback__)
    said = f"{name_of(error)}: {words(error)}"
    message = f"An unexpected error inside Headrace: {said}. This is a bug in Headrace."
    return ErrorReport("HeadraceError", message, text)


def without_message(error: BaseException) -> Exception:
    """Return an error with the traceback of another and without its message, which may hold data."""
    return RuntimeError(f"{name_of(error)} (its text is hidden)").with_traceback(error.__traceback__)


def of_a_call(error: BaseException) -> ErrorReport:
    """Put into words what a call of a worker raised: an import that fails there is the plan's, not ours."""
    odd = isinstance(error, (ImportError, AttributeError)) or not isinstance(error, Exception)
    if odd and not isinstance(error, HeadraceError):
        return ErrorReport(
            "StepError",
            f"A worker could not load the plan's functions: {name_of(error)}: {words(error)}. A function "
            "that is imported must be importable in a fresh process with the same sys.path and working directory.",
            user_traceback(error),
        )
    return report(error)


def revive(failure: ErrorReport) -> HeadraceError:
    """Make the error again in the driver; the user's own traceback is its cause."""
    kind = getattr(errors, failure.kind, HeadraceError)
    error: HeadraceError = kind(failure.message)
    error.row = failure.row
    if failure.traceback:
        error.__cause__ = RemoteTraceback(failure.traceback)
    return error


def user_traceback(error: BaseException) -> str:
    """Format a traceback from the user's first own frame on; "" for an error of ours that no code of theirs is in."""
    if library_of(type(error)) == "headrace" and first_line(error) is None:
        return ""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None and _is_ours(trace):
        trace = trace.tb_next
    return _formatted(error, trace)


def _formatted(error: BaseException, trace: TracebackType | None) -> str:
    """Format a traceback, of an error that may be odd in any way."""
    try:
        text = "".join(traceback.format_exception(type(error), error, trace))
    except Exception:  # it asks errors for their attributes, which may be anything
        text = "".join(
            [
                "Traceback (most recent call last):\n",
                *traceback.format_tb(trace),
                f"{name_of(error)}: {words(error)}",
            ]
        )
    return shortened(encodable(text.rstrip()), TRACEBACK_CHARS)


def of_the_user(error: BaseException) -> str:
    """Return the traceback of the user's code that an error of ours tells of; an empty string if there is none."""
    cause = error.__cause__
    for each in (cause, cause.__cause__ if cause is not None else None):
        if isinstance(each, RemoteTraceback):
            return str(each).strip()
    theirs = isinstance(error, HeadraceError) and error.foreign_cause
    return user_traceback(cause) if cause is not None and theirs else ""


def first_line(error: BaseException) -> tuple[str, int] | None:
    """Return the line at which an error left the user's code for ours; None if it is ours altogether."""
    trace = error.__traceback__
    while trace is not None and _is_ours(trace):
        trace = trace.tb_next
    return None if trace is None else (trace.tb_frame.f_code.co_filename, trace.tb_lineno)


def _is_ours(trace: TracebackType) -> bool:
    name: Any = trace.tb_frame.f_globals.get("__name__", "")
    return str(name).split(".")[0] in _OURS


HIDDEN = "(its text is hidden: it may hold data)"


def is_foreign(adapter: object) -> bool:
    """Say whether the class of a source, a format or a target is defined outside Headrace.

    >>> from headrace.sources.range import RangeSource
    >>> is_foreign(RangeSource(3)), is_foreign(type("Mine", (RangeSource,), {"__module__": "mine"})(3))
    (False, True)
    """
    return library_of(type(adapter)) != "headrace"


@contextmanager
def errors_of_source(source: Source, where: Callable[[], str], *, show_data: bool = True) -> Iterator[None]:
    """Turn what a source of the user's raises into a ``SourceError``; ``where`` says what it is reading."""
    try:
        yield
    except BaseException as error:
        if not _is_theirs(source, error):
            raise
        raise _located(SourceError, source, error, f"reading {_asked(where)}", show_data)  # noqa: B904 - has its cause


@contextmanager
def errors_of_sink(sink: Sink, task: Task, *, show_data: bool = True) -> Iterator[None]:
    """Turn what a format of the user's, or a target, raises into a ``SinkError`` that names shard and output."""
    try:
        yield
    except BaseException as error:
        adapter = next((each for each in (sink.format, sink.target) if each and is_foreign(each)), None)
        if adapter is None or not _is_theirs(adapter, error):
            raise
        doing = f"writing part {task.shard.index} to {sink.root}"
        raise _located(SinkError, adapter, error, doing, show_data)  # noqa: B904 - has its cause


@contextmanager
def errors_of_publishing(sink: Sink) -> Iterator[None]:
    """Turn what a target of the user's raises, when rows are committed already, into a ``SinkError``."""
    try:
        yield
    except BaseException as error:
        if sink.target is None or not _is_theirs(sink.target, error):
            raise
        doing = f"publishing in {sink.root}"
        raise _located(SinkError, sink.target, error, doing, show_data=True)  # noqa: B904 - has its cause


def opened(sink: Sink, task: Task, schema: pa.Schema, *, show_data: bool = True) -> Writer:
    """Open the part of an attempt; what a format of the user's raises, now or later, is a ``SinkError``."""
    with errors_of_sink(sink, task, show_data=show_data):
        writer = sink.open(task, schema)
    return ForeignWriter(writer, sink, task, show_data=show_data) if is_foreign(sink.format) else writer


class ForeignWriter:
    """A writer whose errors say which format of the user's raised them."""

    def __init__(self, writer: Writer, sink: Sink, task: Task, *, show_data: bool) -> None:
        self._writer = writer
        self._sink = sink
        self._task = task
        self._show_data = show_data

    def write(self, batch: pa.RecordBatch) -> None:
        """See ``Writer.write``."""
        with errors_of_sink(self._sink, self._task, show_data=self._show_data):
            self._writer.write(batch)

    def close(self) -> tuple[StagedFile, ...]:
        """See ``Writer.close``."""
        with errors_of_sink(self._sink, self._task, show_data=self._show_data):
            return self._writer.close()

    def sync(self) -> None:
        """See ``Writer.sync``."""
        with errors_of_sink(self._sink, self._task, show_data=self._show_data):
            self._writer.sync()

    def abort(self) -> None:
        """See ``Writer.abort``."""
        self._writer.abort()


def _is_theirs(adapter: object, error: BaseException) -> bool:
    return is_foreign(adapter) and not is_interrupt(error) and not isinstance(error, HeadraceError)


def _asked(where: Callable[[], str]) -> str:
    """Return where it was, unless asking the adapter raises, too."""
    try:
        return where()
    except Exception as error:
        return f"a place that it could not name ({name_of(error)})"


def _located(
    kind: type[SourceError] | type[SinkError],
    adapter: object,
    error: BaseException,
    doing: str,
    show_data: bool,
) -> HeadraceError:
    said = words(error).rstrip(".") if show_data or not words(error) else HIDDEN
    raised = f"{name_of(error)}: {said}," if said else name_of(error)
    located = kind(f"{class_name(type(adapter))} raised {raised} while {doing}.")
    located.foreign_cause = True
    located.__cause__ = error if show_data else without_message(error)
    return located


class RowsFailed(Exception):
    """Some rows of a batch failed by themselves; the others have their results.

    ``errors``: by the number of the row in the batch, from 0. ``results``: a row for each row of the batch; what it
    holds for those that failed does not matter. A predictor that raises it is not called again for parts of the
    batch to find the rows at fault, which may cost something.

    >>> import pyarrow as pa
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
