"""What happened, as frozen values for observers. An event says; it never decides."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from headrace.core.answered import Answered, Tokens
from headrace.core.asked import RequirementsAsked, RunAsked
from headrace.core.human import plural, size
from headrace.core.terminal import one_line
from headrace.core.work import Faults, Ledger, Timings


class StageDescribed(msgspec.Struct, frozen=True):
    """A stage: its steps in words, and how many workers it has at most; ``steps`` are the same, one by one.

    ``sized_by``: the step whose ``concurrency`` or ``compute`` says how many workers there are, if one does.
    ``gpus``: of each worker. ``batches``: the steps whose ``batch_size`` is a number, with it.
    """

    name: str
    workers: int
    steps: tuple[str, ...] = ()
    sized_by: str = ""
    gpus: float = 0.0
    batches: dict[str, int] = {}


class RunDescribed(msgspec.Struct, frozen=True):
    """What a driver is about to do, with what, and where; comes before ``RunStarted``.

    ``elapsed``: seconds that it took to come so far. ``options`` are those that differ from the defaults, in words;
    ``plan`` is what ``explain`` says. ``source`` is what is read, in a
    word; ``inputs`` are the first paths it was given, of ``input_files`` files in all; ``command`` is what this
    process was started with, ``resume`` what to type to go on; ``models`` are steps with the digests of their models,
    ``packages`` versions of libraries. ``every_row``: none may be set aside.
    """

    run: str
    version: str
    python: str
    system: str
    host: str
    process: int
    cores: int
    memory_limit: int
    engine: str
    options: dict[str, str]
    plan: str
    steps: tuple[str, ...]
    stages: tuple[StageDescribed, ...]
    elapsed: float = 0.0
    source: str = ""
    inputs: tuple[str, ...] = ()
    input_files: int = 0
    command: str = ""
    resume: str = ""
    folder: str = ""
    models: tuple[tuple[str, str], ...] = ()
    packages: dict[str, str] = {}
    every_row: bool = False


class InputMade(msgspec.Struct, frozen=True):
    """Rows were made before the run, which reads them; comes after ``RunDescribed``, again when the run goes on.

    ``by`` says who made them, ``what`` how, such as a query; ``inputs`` are the rows of each dataset that they were
    made from. ``spilled``: the bytes that did not fit into memory meanwhile. ``rejected``: how many
    rows failed before, by the output that has them.

    >>> print(InputMade("duckdb 2.0.0", "SELECT …", {"rides": 4000, "zones": 7}, 3500, 9000, 0.5, 3 << 30))
    4,000 rows of rides and 7 rows of zones became 3,500 rows in 0.5 s, by duckdb 2.0.0, 3 GiB spilled
    """

    by: str
    what: str
    inputs: dict[str, int]
    rows: int
    bytes: int
    seconds: float
    spilled: int = 0
    rejected: dict[str, int] = {}

    def __str__(self) -> str:
        given = (
            " and ".join(f"{plural(rows, 'row')} of {name}" for name, rows in self.inputs.items())
            or "nothing"
        )
        spilled = f", {size(self.spilled)} spilled" if self.spilled else ""
        said = f"{given} became {plural(self.rows, 'row')} in {self.seconds:.1f} s, by {self.by}{spilled}"
        rejected = [
            f"; {plural(rows, 'row')} failed before, see {place}" for place, rows in self.rejected.items()
        ]
        return one_line("".join([said, *rejected]))


class MachineWork(msgspec.Struct, frozen=True):
    """What counts of a machine's work in a fleet. ``seconds``: 0 where others took over what it had left.

    >>> print(MachineWork("k3f9a2xq", "host-3", 4, 2000, 1990, 10, 8.0))
    k3f9a2xq on host-3: 2,000 rows in 4 parts, 10 rejected, 250 rows/s
    """

    name: str
    host: str
    shards: int
    rows: int
    written: int
    rejected: int
    seconds: float

    @property
    def speed(self) -> float:
        """The rows that it read in a second; 0: unknown."""
        return self.rows / self.seconds if self.seconds > 0 else 0.0

    def __str__(self) -> str:
        rejected = f", {self.rejected:,} rejected" if self.rejected else ""
        end = f", {self.speed:,.0f} rows/s" if self.seconds > 0 else ", and others did the rest"
        host = f" on {self.host}" if self.host else ""
        parts = plural(self.shards, "part")
        return one_line(f"{self.name}{host}: {plural(self.rows, 'row')} in {parts}{rejected}{end}")


class MachinesWorked(msgspec.Struct, frozen=True):
    """What the machines of a fleet have done, before one of them completes the output; after ``RunDescribed``."""

    machines: tuple[MachineWork, ...]


class RunStarted(msgspec.Struct, frozen=True):
    """A run begins or goes on: ``shards_done`` of ``shards`` were committed before, with so many rows and bytes.

    ``last_shards``: how many rows the last shards have, -1 where that is not known, or their bytes if ``size`` is not
    0. ``size``: the bytes of the input, where only reading tells how many rows it has; ``size_done`` of them were
    done before, and ``sizes`` has those of the shards that are left. ``likely``: about how many rows there are, by
    the beginning of the input; 0 where that is known, or does not tell.
    """

    run: str
    output: str
    shards: int
    shards_done: int
    rows_done: int
    rows: int  # -1 when only reading would tell
    workers: int
    written_done: int = 0
    rejected_done: int = 0
    nulled_done: int = 0
    bytes_done: int = 0
    last_shards: tuple[int, ...] = ()
    number: int = 1  # of the runs of this output
    answered_done: Answered | None = None
    size: int = 0
    size_done: int = 0
    sizes: dict[int, int] = {}
    faults_done: Faults = Faults()
    likely: int = 0


class RowsRead(msgspec.Struct, frozen=True):
    """A worker got on inside its shard of ``of`` rows (-1 if that is not known); may be told again after a retry.

    ``size``: the bytes of the input that these rows are of; 0 where that is not known yet. ``waited``: the seconds
    that it waited for the stage before.
    """

    worker: int
    shard: int
    rows: int
    faults: Faults = Faults()
    of: int = -1
    size: int = 0
    waited: float = 0.0


class RowsBegun(msgspec.Struct, frozen=True):
    """A worker of an earlier ``stage`` got on: so many ``rows`` of its shard went through the stage, by one ``task``.

    ``size``: the bytes of the input that these rows are of; 0 where that is not known yet.
    """

    stage: int
    worker: int
    shard: int
    task: int
    rows: int
    size: int = 0


class WorkerReady(msgspec.Struct, frozen=True):
    """A worker can work now: constructing the user's classes and loading models took it ``seconds``."""

    worker: int
    seconds: float


CallEnd = Literal["done", "going on", "put off", "failed", "lost"]


class Worked(msgspec.Struct, frozen=True):
    """A worker of ``stage`` was at a shard for ``seconds``, until now.

    ``outcome``: the attempt, or the task of an earlier stage, is done; it goes on later; it is put off until more is
    known; it failed; or the worker is gone. What is done says how many ``rows`` it has read, and by ``timings`` what
    took how long: reading, computing and encoding may overlap, so these may add up to more than ``seconds``.
    """

    stage: int
    worker: int
    shard: int
    attempt: int
    seconds: float
    outcome: CallEnd
    rows: int = 0
    timings: Timings = Timings()


class MemoryTaken(msgspec.Struct, frozen=True):
    """The private memory of the run's processes, in bytes: of the driver, of each stage's workers, and of blocks."""

    driver: int
    blocks: int
    stages: tuple[int, ...]
    limit: int


class BatchShrunk(msgspec.Struct, frozen=True):
    """Memory did not suffice for a batch of ``before`` rows: this worker gives ``step`` at most ``now`` at a time."""

    worker: int
    step: str
    before: int
    now: int


class CallRetried(msgspec.Struct, frozen=True):
    """A call of the user's code failed with an error of a kind that passes, and is tried again."""

    worker: int
    step: str
    error: str


class ModelAsked(msgspec.Struct, frozen=True):
    """What a worker's ``step`` has asked of a language model so far, and what all have that count in one place.

    ``session`` is a name for what the worker has loaded, ``own`` what that has used, ``given`` how many rows it has
    an answer for, and ``taken`` how many of them have gone on. ``place`` names where is counted, for all workers of a
    machine and all drivers of a run if the output is in a folder: ``total`` is what was used, of ``sent`` requests of
    which ``ended`` had any outcome. The others are under way, or were when their process was killed. ``parts`` are
    the total by model and version of the prompt.
    """

    worker: int
    step: str
    session: str
    own: Tokens
    given: int
    taken: int
    place: str
    total: Tokens
    sent: int = 0
    ended: int = 0
    priced: bool = False
    parts: tuple[tuple[str, Tokens], ...] = ()


class BatchesAtWork(msgspec.Struct, frozen=True):
    """Before the run begins, a batch service works on requests of ``step``: on so many, of which some are answered.

    ``batches`` are those that are not fetched yet, by the names that the service has for them.

    >>> print(BatchesAtWork("prompt(m)", 3000, 1200, ("batch_a", "batch_b")))
    prompt(m): 1,200 of 3,000 requests are answered; at work: batch_a, batch_b
    """

    step: str
    requests: int
    answered: int
    batches: tuple[str, ...] = ()

    def __str__(self) -> str:
        names = ", ".join(self.batches[:3]) + ", …" * (len(self.batches) > 3)
        at_work = f"; at work: {names}" if names else ""
        return f"{self.step}: {self.answered:,} of {self.requests:,} requests are answered{at_work}"


class ModelPaid(msgspec.Struct, frozen=True):
    """What language models were asked for in a run, by all its drivers: what it used, and the answers that came.

    ``unanswered``: requests that were under way when their process ended, of which nobody knows whether they were
    answered. ``speed`` are tokens a second, in and out, of the last driver. ``priced``: the cost is known. ``parts``
    are the total by model and version of the prompt.
    """

    total: Tokens
    unanswered: int = 0
    speed: tuple[float, float] = (0.0, 0.0)
    priced: bool = False
    parts: tuple[tuple[str, Tokens], ...] = ()


class BatchSized(msgspec.Struct, frozen=True):
    """A worker found that ``step`` does best with ``rows`` rows at a time: ``rows_per_second``, in the step alone."""

    worker: int
    step: str
    rows: int
    rows_per_second: float


class ShardCommitted(msgspec.Struct, frozen=True):
    """A shard's rows are in the output for good."""

    shard: int
    attempt: int
    ledger: Ledger
    bytes: int
    timings: Timings
    faults: Faults = Faults()


class ShardRetried(msgspec.Struct, frozen=True):
    """A shard is tried again, for ``reason``."""

    shard: int
    attempt: int
    reason: str


class WorkerLost(msgspec.Struct, frozen=True):
    """A worker process ended on its own."""

    worker: int
    reason: str


class WorkerRetired(msgspec.Struct, frozen=True):
    """A worker had to be ended so that the run stays within its memory; ``replaced``: another takes its place.

    ``idle``: it was between two shards, so that nothing has to be done again.
    """

    stage: int
    worker: int
    taken: int
    limit: int
    replaced: bool
    idle: bool
    reason: str


class ShardDivided(msgspec.Struct, frozen=True):
    """A shard is in ``parts`` now: it did not fit into memory; or, ``early``, the first of them is done already.

    ``sizes`` are the bytes of the input of each.
    """

    shard: int
    parts: int
    early: bool = False
    sizes: dict[int, int] = {}


class ShardsAdded(msgspec.Struct, frozen=True):
    """The run has further shards, which it did not know when it began: so many, with so many rows (-1: unknown).

    ``sizes`` are the bytes of the input of each.
    """

    shards: int
    rows: int
    sizes: dict[int, int] = {}


class PoolResized(msgspec.Struct, frozen=True):
    """A stage's pool has another size now, as there is more or less for it to do."""

    stage: int
    workers: int


class PoolWaits(msgspec.Struct, frozen=True):
    """A pool has ``here`` workers and has been waiting for the cluster to place more of them for ``seconds``."""

    pool: str
    here: int
    wanted: int
    each: str
    seconds: float


class StageUse(msgspec.Struct, frozen=True):
    """What a stage was: its steps in words, its workers at most, and the share of their time in which they worked."""

    name: str
    workers: int
    busy: float


class Ceiling(msgspec.Struct, frozen=True):
    """Memory did not suffice for more than ``rows`` rows at a time in ``step``."""

    step: str
    rows: int


class Batches(msgspec.Struct, frozen=True):
    """What ``step`` does best with, as its workers found: from ``least`` to ``most`` rows at a time."""

    step: str
    least: int
    most: int


class RunFinished(msgspec.Struct, frozen=True):
    """The run is complete and ``_SUCCESS`` stands, or it ended with ``error``."""

    run: str
    output: str
    ledger: Ledger
    timings: Timings
    bytes: int
    files: int
    seconds: float
    error: str = ""
    retries: int = 0
    stages: tuple[StageUse, ...] = ()
    ceilings: tuple[Ceiling, ...] = ()
    faults: Faults = Faults()
    retried: tuple[tuple[str, str, int], ...] = ()  # step, class of the error, calls
    retired: int = 0  # workers, for want of memory
    divided: int = 0  # shards
    batches: tuple[Batches, ...] = ()
    trace: str = ""  # the user's own traceback, if their code raised the error
    row: str = ""  # values of the row that ended the run, which ``error`` does not have
    spent: tuple[tuple[str, float], ...] = ()  # what the workers did, and the share of their time, most first
    paid: ModelPaid | None = None  # for answers of language models
    columns: dict[str, str] = {}  # of the output, with their types


class MetricsCounted(msgspec.Struct, frozen=True):
    """The metrics of the whole output: results and notes by name, and plain data for drawing those that have some.

    ``shards``: they are those of so many shards so far, while the run goes on; 0: of all.
    """

    results: dict[str, Any]
    notes: dict[str, str]
    charts: dict[str, Any]
    shards: int = 0


Event = (
    RunDescribed
    | RunAsked
    | InputMade
    | MachinesWorked
    | RunStarted
    | RowsRead
    | RowsBegun
    | WorkerReady
    | Worked
    | MemoryTaken
    | BatchShrunk
    | CallRetried
    | ModelAsked
    | BatchesAtWork
    | BatchSized
    | ShardCommitted
    | ShardRetried
    | WorkerLost
    | WorkerRetired
    | ShardDivided
    | ShardsAdded
    | PoolResized
    | MetricsCounted
    | RequirementsAsked
    | PoolWaits
    | RunFinished
)
