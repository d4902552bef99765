"""The ports of what works on rows or watches: a predictor, a metric, an observer.

A class ``…Parts`` has what one may have besides. Each port has a contract suite in ``headrace.testing``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

from headrace.core.events import Event

if TYPE_CHECKING:
    import pyarrow as pa


class Predictor(Protocol):
    """A model on its way to where it works: made in the driver, sent by pickle, loaded once per worker.

    ``predict`` may be async, for a model that is asked over a network; then all methods are called on one event loop
    of the worker, ``load`` and ``close`` may be async, too, and several batches are awaited at a time.

    One that knows which rows of a batch failed raises ``RowsFailed`` (of ``headrace.core.failures``) with the
    results of the others. An error of ours with ``ends_run`` ends the run whatever ``on_error`` says. ``label`` is
    what messages call it. What it may have besides is in ``PredictorParts``; it need not inherit from anything.
    """

    def load(self) -> None:
        """Make ready to predict. Called once per worker, before the first batch, and never in the driver."""
        ...

    def predict(self, batch: Any) -> Any:
        """Return one result per row: an array, a list, or a dict, DataFrame or Table with names of its own.

        ``batch`` has the input columns in the order in which the user named them; numpy arrays in it are
        read-only views; lists that are of one length in this batch, and ragged tensors of one shape, come as one
        array (n, k…). Called by one thread.
        """
        ...

    def close(self) -> None:
        """Let go of everything. Called once, when the worker ends in good order."""
        ...


class Ahead(Protocol):
    """What a model does for all rows before the run begins, which then finds it in its folder. In the driver.

    ``looking`` is a predictor that is given all rows and notes what they need; its results are dropped. ``words`` say
    what is done just now. ``may`` is False where it does something only if an earlier driver has begun it.
    ``at_once`` is the predictor that does nothing before, for a sample; ``shares`` what is paid, of what it costs
    then, at least and at most.
    """

    looking: Any
    at_once: Any
    shares: tuple[float, float]
    words: str
    may: bool

    def check(self, folder: str, after: Sequence[Any], *, elsewhere: bool) -> None:
        """Refuse a run for which it cannot be done.

        ``folder`` "": the run has none. ``after`` are the steps behind. ``elsewhere``: workers are on other machines.
        """
        ...

    def wanted(self, folder: str) -> bool:
        """Say whether there is anything to do, or to complete. Called before what follows."""
        ...

    def open(self, tell: Callable[[Event], None], alive: Callable[[], None]) -> None:
        """Begin; ``tell`` takes events. ``alive`` is to be called a few times a second; what it raises ends it."""
        ...

    def carry_out(self) -> bool:
        """Do what was begun or noted; say whether rows are to be looked at, which they are next then. In a thread."""
        ...

    def close(self) -> None:
        """Let go of everything."""
        ...


class Rates(Protocol):
    """Rates that many machines have together, such as requests in a minute: they send by turns."""

    def turn(self, name: str, seconds: float) -> float:
        """Be the only one who sends by a rate of that name for so many seconds, beginning now: returns 0.

        Where it is the turn of another, returns after how many seconds to ask again.
        """
        ...


class Shares(Protocol):
    """A budget that many machines have together, in amounts such as money and tokens. Asks where the output lies."""

    def take(self, caps: Sequence[float | None], needed: Sequence[float]) -> list[float] | None:
        """Take so much of each amount, or more; None if that would be more than its cap, which may be none."""
        ...

    def give_back(self, amounts: Sequence[float]) -> None:
        """Let others have what was taken and not needed."""
        ...


class PredictorParts:
    """What a predictor may have besides, and what holds for one that has it not."""

    batch_format: Literal["numpy", "pandas", "pyarrow"] | None = None
    """In which form it takes its batches. Default: the one that the user asked for."""

    names_column: str | None = None
    """It gets a column of that name, too: a text for each row of the run, which is the same when the run goes on."""

    identity: Callable[[], Any] | None = None
    """Returns what tells the model from another, such as the hash of its file. Default: that is found out from the
    object, as for any other argument."""

    prompt_version: str = ""
    """What names the way in which a language model is asked, for the record of a run."""

    weights: Callable[[], str] | None = None
    """Says for ``explain`` what workers share of it."""

    keep_in: Callable[[str], None] | None = None
    """Called before ``load`` with a folder of the run, if it has one: what is put there is there again when the run
    goes on, and removed when it has ended."""

    sharing: Callable[[Rates, Shares | None], Any] | None = None
    """Returns it as many machines have it together: it sends by turns of these rates, and spends no more than it
    takes of the shares. Raises ``PlanError`` where it counts something that they cannot share."""

    submit: Callable[[Any], Any] | None = None
    """Begins to predict a batch, on a device that computes by itself, and returns a handle of whatever kind."""

    collect: Callable[[Any], Any] | None = None
    """Waits for the batch of a handle, and returns what ``predict`` would. A handle is collected once, or never if
    nobody needs the result; those of several shards in any order. ``close`` may come while some are not."""

    in_flight: int = 2
    """How many batches are submitted before the first is collected; read after ``load``."""

    retried: deque[str] | None = None
    """The names of errors after which it has tried again itself, for the run to tell; they are taken out."""

    asked: Any = None
    """What a language model is asked; its ``settings`` say how: its caps, where answers are kept."""

    ahead: Ahead | None = None
    """What is done for all rows before the run begins, such as by a batch service."""

    asked_so_far: Any = None
    """What a language model has used so far; another object whenever that is more."""

    columns: tuple[str, ...] | None = None
    """The columns that it makes. Default: those that ``output=`` names."""

    preparing: Any = None
    """A preprocessor of its checkpoint, which calls of ``predict`` pass over."""

    def input_ends(self, ended: bool) -> None:
        """Called with whether rows come but those that it was given."""

    def kind_of(self, path: str) -> str | None:
        """Say, as a static method, of which kind the model at a path is; None if none of this library is there."""
        return None


class Accumulator(Protocol):
    """A metric that is counted where the rows are, and merged: rows in parts, in any order, give the same.

    Merging is associative and commutative, and merging an empty one changes nothing. States are merged in the order
    of shards, so a metric that adds floats up still gives the same for the same shards. An instance travels to the
    workers by pickle. What it may have besides is in ``AccumulatorParts``; it need not inherit from anything.
    """

    @property
    def columns(self) -> Sequence[str]:
        """The columns that ``update`` reads."""
        ...

    def empty(self) -> Accumulator:
        """Return one with the same settings that has seen no row."""
        ...

    def update(self, batch: pa.RecordBatch) -> None:
        """Take more rows: a batch with ``columns``, whose memory may be used again afterwards."""
        ...

    def merge(self, other: Any) -> None:
        """Take in what another with the same settings has seen; the other is not used any more."""
        ...

    def result(self) -> Any:
        """Return what comes out for the rows so far; None where there is nothing to tell."""
        ...

    def to_bytes(self) -> bytes:
        """Return the state: it is kept with the shard that its rows are of."""
        ...

    def from_bytes(self, data: bytes) -> Accumulator:
        """Return one with these settings and that state."""
        ...


class AccumulatorParts:
    """What a metric may have besides, and what holds for one that has it not."""

    def prepare(self, dataset: Any) -> Any:
        """Return the dataset with the columns that it reads, where it has them made first. Default: as it is."""
        return dataset

    def describe(self) -> Mapping[str, Any] | None:
        """Return plain JSON values that tell it from one with other settings. Default: class and columns do, and its
        code and attributes."""
        return None

    def note(self) -> str:
        """Return words beside the result, such as why there is none."""
        return ""

    def chart(self) -> Mapping[str, Any] | None:
        """Return plain data that the report draws: see ``headrace.accumulators.base``."""
        return None


class Observer(Protocol):
    """Somebody who watches. One that raises is logged and dropped; the run goes on.

    ``ObserverParts`` says what it may have besides; it need not inherit from anything.
    """

    def on_event(self, event: Event) -> None:
        """See one event; called from the driver's loop, so be quick."""
        ...


class ObserverParts:
    """What an observer may have besides ``on_event``, and what is done where it has it not."""

    def attach(self, state: Any) -> None:
        """Take the state of the run (``headrace.observers.run_state.RunState``), before the first event.

        It includes each event that follows.
        """

    def tick(self) -> None:
        """Draw, if there is something to draw; called about five times a second."""

    def close(self) -> None:
        """The run is over. May be called more than once."""

    def excuse(self, error: Exception) -> str:
        """Say what an error means that is no defect of the observer's, such as a full disk. Default: each is one."""
        return ""
