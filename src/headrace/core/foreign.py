"""Errors of sources, formats and targets that are not ours: which class raised, where, and its own traceback."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from headrace.core.failures import class_name, is_interrupt, library_of, name_of, without_message, words
from headrace.core.ports import Sink, Source, Writer
from headrace.core.work import StagedFile, Task
from headrace.errors import HeadraceError, SinkError, SourceError

if TYPE_CHECKING:
    import pyarrow as pa

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
        source = getattr(source, "wraps", source)
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
        doing = f"writing shard {task.shard.index} to {sink.root}"
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
