"""Every error that Headrace raises, in one tree.

A message is one paragraph: what happened, where (file, rows, step), what to do. Foreign errors become ours
at one edge and stay chained as ``__cause__``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from typing import Any, Self

from headrace.core.terminal import visible


class HeadraceError(Exception):
    """Base of every error of Headrace."""

    row: str = ""
    """The values of the row at hand, as the message shows them; empty if it shows none."""

    foreign_cause: bool = False
    """The cause is an error of the user's code: its traceback goes with this error to the driver."""

    ends_run: bool = False
    """A model raised it, and no row is at fault: it ends the run as it is, whatever ``on_error`` says."""

    def __str__(self) -> str:
        return visible(str(self.args[0])) if self.args else ""


class NotOffered(HeadraceError, AttributeError):
    """A method or a name that Headrace does not have; the message says why, and what to do instead.

    Do what the message names, or do that step in another library before or after the run.
    """


class NotASequence(NotOffered, TypeError):
    """A dataset was used as a list or a frame is: iterated over, indexed, or asked for its length.

    Use ``take``, ``count`` or ``iter_batches``.
    """


class PackageUnusable(NotOffered):
    """Something that an installed package brings for Headrace, and that cannot be used; the message says why.

    Update the package, or remove it.
    """


class ArgumentError(HeadraceError, ValueError):
    """A value that the method cannot use.

    Give a value that the message allows.
    """


class UnknownArgument(ArgumentError, TypeError):
    """An argument name that the method does not have; the message names the nearest one.

    Correct the name, or leave the argument out.
    """


class PlanError(HeadraceError):
    """A plan that can never run; found before any work.

    Change the plan as the message says; nothing was done.
    """


class UnknownColumn(PlanError, KeyError, ValueError):
    """A column that is not there; the message names the nearest one.

    Correct the name, or add the column in a step before.
    """


class ColumnExists(PlanError):
    """A model's result has the name of a column that is there already.

    Choose another ``output=``, leave the old column out with ``keep=``, or say ``replace=True``.
    """


class NotPicklable(PlanError):
    """A function that cannot be sent to a worker; the message says which part of it.

    Create that value inside the function, or in the constructor of a class.
    """


class ResourcesUnavailable(PlanError):
    """The plan asks for more GPUs or memory than this machine has.

    Ask for less, or run where there is more. ``take`` and ``engine="inline"`` need no GPU.
    """


class SourceError(HeadraceError):
    """Reading the input failed, or a source of the user's own raised.

    See which file and row the message names.

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
    """No input file at this path or pattern.

    Correct the path; patterns are relative to the present folder.
    """


class UnreadableFile(SourceError, ValueError):
    """A file that is damaged, truncated, not of its format, or that we may not open.

    Replace the file, or set its rows aside with ``on_error="reject"``.
    """


class StoreFailed(SourceError):
    """An object store cannot be reached, or refuses: credentials, region, bucket. No fault of a row or a file.

    Check credentials, region and address, and run the same command again.
    """

    passing: bool = True
    """Trying again later may help; False if the store has refused."""


class SchemaMismatch(SourceError):
    """Two input files whose schemas cannot be unified.

    Give the columns one type, by a ``schema=`` of the reader or in a step before a ``union``.
    """


class InputChanged(SourceError):
    """An input file is not the one that was planned with (size or time of change differ).

    Put the old file back, or make the output again with ``mode="overwrite"``.
    """


class ModelError(HeadraceError):
    """A model cannot be used.

    See which model the message names.
    """


class ModelUnreadable(ModelError):
    """A model file that is missing, damaged, of a kind or a version that the library cannot read.

    Save the model again, with the version of the library that is installed.
    """


class ModelChanged(ModelError):
    """A model file that is not the one whose ``sha256`` was given.

    Use the right file, or correct ``sha256=``.
    """


class UntrustedPickle(ModelError):
    """A model file whose reading could run any code; it takes ``trust_pickle=True``.

    Save the model in the safe format that the message names. Only if you trust its maker: ``trust_pickle=True``.
    """


class EndpointRefused(ModelError):
    """An endpoint refuses whatever is asked: its key, its model or its address is wrong. Nothing is tried again.

    Correct the key, the address or the model, and run the same program again: it goes on.
    """

    ends_run = True


class EndpointUnavailable(ModelError):
    """An endpoint cannot be reached, is overloaded or silent, or an engine has stopped.

    Run the same program again when the server answers: it goes on.
    """

    ends_run = True


class SpendingCapReached(ModelError):
    """A budget of a language model is used up; the run goes on with more.

    Run the same program with a greater ``hr.llm.Budget``, or after midnight (UTC) if it is that of the day.
    """

    ends_run = True


class MissingLibrary(ModelError, ImportError):
    """The library that a model needs is not installed; the message has the pip command.

    Run the pip command, on every machine that has workers.
    """


class StepError(HeadraceError):
    """The user's function raised; the cause carries its own traceback.

    Correct the function, and run again with ``on_change="continue"``. Or set such rows aside with
    ``on_error="reject"``.
    """

    foreign_cause = True


class BadInput(StepError):
    """The model needs columns of another kind, number, dtype or shape; the message shows both.

    Choose other ``inputs=``, or convert the columns in a step before.
    """


class BadReturn(StepError, ValueError):
    """The user's function returned something that is not a batch.

    Return one result per row: an array, a list, a dict of them, a DataFrame or a table.
    """


class OutputSchemaChanged(StepError):
    """The user's function returned columns that do not fit the output's schema, which the first rows have decided.

    Return the same types from each batch, or give the ``schema=`` that the message names.
    """


class TooManyErrors(StepError):
    """More rows failed than ``max_errors`` allows.

    Look at ``hr.read_rejected(OUT)``, correct the cause, and run again; or allow more.
    """


class SinkError(HeadraceError):
    """Writing the output failed, or a sink of the user's own raised.

    See which file the message names; what was finished before is kept.
    """


class ForeignOutput(SinkError):
    """The output folder holds files that are not ours, or lies inside the input.

    Choose an empty folder, outside of the input.
    """


class OutputWriteFailed(SinkError):
    """A write was refused: by the operating system (full disk, read-only, …), or by an object store.

    Free space or correct the permissions, and run the same command again.
    """


class RunLocked(SinkError):
    """Another driver is working on this output.

    Wait until the other one has ended, or choose another output.
    """


class UnsafeStore(SinkError):
    """An object store that ignores conditions, by which two drivers are kept apart.

    Use another store, or a folder.
    """


class OutputExists(SinkError):
    """The output holds a finished run, and ``mode="error"`` was asked for.

    Choose another folder, or ``mode="overwrite"``.
    """


class PlanChanged(SinkError):
    """The output belongs to a run of another shape or of other code.

    Say ``on_change="continue"`` or ``"restart"``, ``mode="overwrite"``, or choose another folder.
    """


class JournalDamaged(SinkError):
    """The journal, the record of finished work, has a damaged record before valid ones.

    Restore the folder from a copy, or write to a new folder.
    """


class RequirementNotMet(HeadraceError):
    """An output is not as ``require`` asks. All of it was computed and kept, and no reader sees it.

    Look at the figures; then publish it all the same, discard it, or run again with other requirements.
    """

    figures: tuple[Any, ...] = ()
    """Each with ``name``, ``asked``, ``found``, ``met`` and ``note``."""

    output: str = ""
    """The output, as ``hr.publish`` and ``hr.discard`` take it."""


class EngineError(HeadraceError):
    """The place where the work runs failed.

    Run the same command again; what was finished before is kept.
    """


class WorkerDied(EngineError):
    """A worker process ended before it answered.

    See the signal and the rows in the message: memory, a crash in native code, or a kill from outside.
    """


class NeverReady(WorkerDied):
    """A worker process ended before it could work on anything: no shard is the cause.

    Try your imports and classes with ``engine="inline"``, or free memory.
    """


class NodeLost(WorkerDied):
    """A machine of the cluster is gone, and a worker or a block with it: no shard is the cause.

    Run the same command again on a cluster that has a machine.
    """


class CallLost(WorkerDied):
    """A call of an executor ended its worker as often as it may be tried.

    Try the call in this process; allow more tries with ``max_retries=``.
    """


class ActorDied(WorkerDied):
    """The process of an actor ended, or its constructor never did, and there is no other in its place.

    Allow more tries with ``max_retries=``, or find out why it ended.
    """


class CallCancelled(EngineError, CancelledError):
    """A call of an executor was cancelled while it ran, or before it began.

    Submit the call again if you need its result.
    """


class ExecutorClosed(EngineError, RuntimeError):
    """An executor that is shut down takes no calls, and values that were put into it are gone.

    Make the calls before ``shutdown``, or connect again.
    """


class TimedOut(EngineError, TimeoutError):
    """A result was not there in the time that was given.

    Wait longer, or find out what the call is at.
    """


class ShardFailed(EngineError):
    """A shard ended its worker as often as is allowed.

    Do what the message says: a number as ``batch_size=``, or rows that are written to a folder.
    """


class OutOfMemory(EngineError):
    """What a worker needs does not fit into ``memory_limit``.

    Make batches smaller (``batch_size=``), use fewer workers, or raise ``memory_limit=``.
    """


class Stalled(EngineError):
    """Nothing moved for ``stall_timeout`` seconds.

    See the stacks that the message shows: something waits for what never comes.
    """


class LedgerMismatch(EngineError):
    """Rows that were counted in two places do not agree: some were lost, or came twice. A bug in Headrace.

    Report it with the output of ``headrace status OUT --json``.
    """


class UnsafeCluster(EngineError):
    """A cluster on other machines to which anybody can connect.

    Give the cluster a token; ``hr.Ray(allow_unauthenticated=True)`` uses it without one.
    """


class RemoteTraceback(Exception):
    """The user's traceback, as text, from the process in which it was raised."""

    def __str__(self) -> str:
        return f"\n{visible(str(self.args[0]))}" if self.args else ""


REFUSALS = (ArgumentError, PlanError, NothingMatched, PackageUnusable, UntrustedPickle)
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
