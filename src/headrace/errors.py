"""Every error that Headrace raises, in one tree.

::

    HeadraceError
    ├── NotOffered (AttributeError)         what another library has, and Headrace does not
    │   └── NotASequence (TypeError)        what lists and frames can do, and a dataset cannot
    ├── ArgumentError (ValueError)          a value that a method cannot use
    │   └── UnknownArgument (TypeError)     an argument name that does not exist
    ├── PlanError                           a plan that can never run, refused before any work
    │   ├── UnknownColumn (KeyError)
    │   ├── ColumnExists
    │   ├── NotPicklable
    │   └── ResourcesUnavailable
    ├── SourceError                         reading
    │   ├── NothingMatched (FileNotFoundError)
    │   ├── UnreadableFile (ValueError)
    │   ├── StoreFailed                     an object store that refuses, or cannot be reached
    │   ├── SchemaMismatch
    │   └── InputChanged
    ├── ModelError                          a model that cannot be used
    │   ├── ModelUnreadable
    │   ├── ModelChanged
    │   ├── UntrustedPickle
    │   ├── EndpointRefused                 a model behind an address that refuses all requests
    │   ├── EndpointUnavailable             … or that does not answer any
    │   ├── SpendingCapReached              … or that has cost what it may cost
    │   └── MissingLibrary (ImportError)
    ├── StepError                           the user's own function or model
    │   ├── BadInput
    │   ├── BadReturn (ValueError)
    │   ├── OutputSchemaChanged
    │   └── TooManyErrors
    ├── SinkError                           writing
    │   ├── ForeignOutput
    │   ├── OutputWriteFailed
    │   ├── RunLocked
    │   ├── UnsafeStore                     an object store that ignores conditions
    │   ├── OutputExists
    │   ├── PlanChanged
    │   └── JournalDamaged
    └── EngineError                         where the work runs
        ├── WorkerDied
        │   ├── NeverReady
        │   ├── NodeLost
        │   ├── CallLost
        │   └── ActorDied
        ├── CallCancelled (CancelledError)
        ├── ExecutorClosed (RuntimeError)
        ├── TimedOut (TimeoutError)
        ├── ShardFailed
        ├── OutOfMemory
        ├── Stalled
        ├── LedgerMismatch
        └── UnsafeCluster

A message is one paragraph: what happened, where (file, rows, step), what to do. Foreign errors become ours
at one edge and stay chained as ``__cause__``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from typing import TYPE_CHECKING

from headrace.core.terminal import visible

if TYPE_CHECKING:
    from typing_extensions import Self


class HeadraceError(Exception):
    """Base of every error of ours."""

    row: str = ""
    """The values of the row at hand, as the message shows them; empty if it shows none."""

    foreign_cause: bool = False
    """The cause is an error of the user's code: its traceback goes with this error to the driver."""

    ends_run: bool = False
    """A model raised it, and no row is at fault: it ends the run as it is, whatever ``on_error`` says."""

    def __str__(self) -> str:
        return visible(str(self.args[0])) if self.args else ""


class NotOffered(HeadraceError, AttributeError):
    """A method or a name that Headrace does not have; the message says why, and what to do instead."""


class NotASequence(NotOffered, TypeError):
    """A dataset was used as a list or a frame is: iterated over, indexed, or asked for its length."""


class ArgumentError(HeadraceError, ValueError):
    """A value that the method cannot use."""


class UnknownArgument(ArgumentError, TypeError):
    """An argument name that the method does not have; the message names the nearest one."""


class PlanError(HeadraceError):
    """A plan that can never run; found before any work."""


class UnknownColumn(PlanError, KeyError):
    """A column that is not there; the message names the nearest one."""


class ColumnExists(PlanError):
    """A model's result has the name of a column that is there already."""


class NotPicklable(PlanError):
    """A function that cannot be sent to a worker; the message says which part of it."""


class ResourcesUnavailable(PlanError):
    """The plan asks for more GPUs or memory than this machine has."""


class SourceError(HeadraceError):
    """Reading the input failed, or a source of the user's own raised.

    ``data``: what of the message was taken from the input itself.
    """

    data: tuple[str, ...] = ()

    def showing(self, *data: str) -> Self:
        """Note what of the message is data; returns the error."""
        self.data = data
        return self

    def without_data(self) -> SourceError:
        """Return an error that says the same with ``…`` for all data.

        >>> print(UnreadableFile("row 3 holds 'secret'").showing("'secret'").without_data())
        row 3 holds …
        """
        text = str(self)
        for shown in self.data:
            text = text.replace(visible(shown), "…")
        return type(self)(text)


class NothingMatched(SourceError, FileNotFoundError):
    """No input file at this path or pattern."""


class UnreadableFile(SourceError, ValueError):
    """A file that is damaged, truncated, not of its format, or that we may not open."""


class StoreFailed(SourceError):
    """An object store cannot be reached, or refuses: credentials, region, bucket. No fault of a row or a file."""

    passing: bool = True
    """Trying again later may help; False if the store has refused."""


class SchemaMismatch(SourceError):
    """Two input files whose schemas cannot be unified."""


class InputChanged(SourceError):
    """An input file is not the one that was planned with (size or time of change differ)."""


class ModelError(HeadraceError):
    """A model cannot be used."""


class ModelUnreadable(ModelError):
    """A model file that is missing, damaged, of a kind or a version that the library cannot read."""


class ModelChanged(ModelError):
    """A model file that is not the one whose ``sha256`` was given."""


class UntrustedPickle(ModelError):
    """A model file whose reading could run any code; it takes ``trust_pickle=True``."""


class EndpointRefused(ModelError):
    """An endpoint refuses whatever is asked: its key, its model or its address is wrong. Nothing is tried again."""

    ends_run = True


class EndpointUnavailable(ModelError):
    """An endpoint does not answer any request, or an engine has stopped.

    An endpoint cannot be reached, is overloaded, or is silent.
    """

    ends_run = True


class SpendingCapReached(ModelError):
    """A run has used up ``max_cost`` or ``max_total_tokens``; it goes on with more."""

    ends_run = True


class MissingLibrary(ModelError, ImportError):
    """The library that a model needs is not installed; the message has the pip command."""


class StepError(HeadraceError):
    """The user's function raised; the cause carries its own traceback."""

    foreign_cause = True


class BadInput(StepError):
    """The model needs columns of another kind, number, dtype or shape; the message shows both."""


class BadReturn(StepError, ValueError):
    """The user's function returned something that is not a batch."""


class OutputSchemaChanged(StepError):
    """The user's function returned columns that do not fit the output's schema, which the first rows have decided."""


class TooManyErrors(StepError):
    """More rows failed than ``max_errors`` allows."""


class SinkError(HeadraceError):
    """Writing the output failed, or a sink of the user's own raised."""


class ForeignOutput(SinkError):
    """The output folder holds files that are not ours, or lies inside the input."""


class OutputWriteFailed(SinkError):
    """A write was refused: by the operating system (full disk, read-only, …), or by an object store."""


class RunLocked(SinkError):
    """Another driver is working on this output."""


class UnsafeStore(SinkError):
    """An object store that ignores conditions, by which two drivers are kept apart."""


class OutputExists(SinkError):
    """The output holds a finished run, and ``mode="error"`` was asked for."""


class PlanChanged(SinkError):
    """The output belongs to a run of another shape or of other code."""


class JournalDamaged(SinkError):
    """The journal, the record of finished work, has a damaged record before valid ones."""


class EngineError(HeadraceError):
    """The place where the work runs failed."""


class WorkerDied(EngineError):
    """A worker process ended before it answered."""


class NeverReady(WorkerDied):
    """A worker process ended before it could work on anything: no shard is the cause."""


class NodeLost(WorkerDied):
    """A machine of the cluster is gone, and a worker or a block with it: no shard is the cause."""


class CallLost(WorkerDied):
    """A call of an executor ended its worker as often as it may be tried."""


class ActorDied(WorkerDied):
    """The process of an actor ended, or its constructor never did, and there is no other in its place."""


class CallCancelled(EngineError, CancelledError):
    """A call of an executor was cancelled while it ran, or before it began."""


class ExecutorClosed(EngineError, RuntimeError):
    """An executor that is shut down takes no calls, and values that were put into it are gone."""


class TimedOut(EngineError, TimeoutError):
    """A result was not there in the time that was given."""


class ShardFailed(EngineError):
    """A shard ended its worker as often as is allowed."""


class OutOfMemory(EngineError):
    """What a worker needs does not fit into ``memory_limit``."""


class Stalled(EngineError):
    """Nothing moved for ``stall_timeout`` seconds."""


class LedgerMismatch(EngineError):
    """Rows that were counted in two places do not agree: some were lost, or came twice. A bug in Headrace."""


class UnsafeCluster(EngineError):
    """A cluster on other machines to which anybody can connect.

    ``hr.Ray(allow_unauthenticated=True)`` uses it anyway.
    """


class RemoteTraceback(Exception):
    """The user's traceback, as text, from the process in which it was raised."""

    def __str__(self) -> str:
        return f"\n{visible(str(self.args[0]))}" if self.args else ""


REFUSALS = (ArgumentError, PlanError, NothingMatched, UntrustedPickle)
"""Errors that say that a command cannot be carried out as it was given: the user has to change the command."""


def nearest(name: str, choices: Iterable[str]) -> str:
    """Return ``" Did you mean 'x'?"`` for the nearest of ``choices``, or an empty string.

    >>> nearest("fair", ["fare", "hour"])
    " Did you mean 'fare'?"
    >>> nearest("expression", ["version", "expr"])
    " Did you mean 'expr'?"
    """
    import difflib  # needed only where something is wrong

    known = list(choices)
    found = (
        difflib.get_close_matches(name, known, n=1, cutoff=0.75)
        or [choice for choice in known if len(choice) > 1 and name.startswith(choice)]
        or difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    )
    return f" Did you mean {found[0]!r}?" if found else ""


def unknown_column(asking: str, name: str, names: Sequence[str]) -> UnknownColumn:
    """Return the error of a step, or an argument, that asks for a column which is none of ``names``.

    >>> print(unknown_column("select_columns(['fair'])", "fair", ["fare", "hour"]))
    select_columns(['fair']) asks for column 'fair', but the columns here are fare, hour. Did you mean 'fare'?
    """
    shown = ", ".join(names[:20]) + (", …" if len(names) > 20 else "")
    known = f"the columns here are {shown}" if names else "there are no columns"
    return UnknownColumn(f"{asking} asks for column {name!r}, but {known}.{nearest(name, names)}")


@contextmanager
def data_hidden(*, hide: bool) -> Iterator[None]:
    """Have errors of sources raised without data."""
    try:
        yield
    except SourceError as error:
        if not hide or not error.data:
            raise
        raise error.without_data() from None
