"""The user's code at work: timed, and with an error that says where it failed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from millrace.core.values import ConversionError
from millrace.errors import BadInput, BadReturn, StepError, nearest
from millrace.run.failures import is_interrupt, words
from millrace.run.memory import is_out_of_memory
from millrace.run.rows import Rows

Where = Callable[[Rows], str]


class Meter:
    """Counts rows and seconds of one attempt; ``steps`` has (rows in, rows out) for each step."""

    def __init__(self, steps: int) -> None:
        self.steps = [[0, 0] for _ in range(steps)]
        self.read_rows = 0
        self.lead: Guard | None = None  # the first step with user code: where its rows are, the attempt is
        self.seconds = {"read": 0.0, "steps": 0.0, "write": 0.0, "wait": 0.0}
        self.tell: Callable[[], None] = lambda: None  # called now and then as the user's code gets on
        self.shrunk: Callable[[str, int, int], None] = lambda label, before, now: None

    @property
    def done_rows(self) -> int:
        """How many of the rows read went through the first step with user code."""
        return self.read_rows if self.lead is None else self.lead.done

    def counts(self) -> tuple[tuple[int, int], ...]:
        """Return (rows in, rows out) of each step so far."""
        return tuple((taken, given) for taken, given in self.steps)

    @contextmanager
    def timing(self, what: str) -> Iterator[None]:
        """Add the time that the block takes to ``what``."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[what] += time.perf_counter() - start


class Guard:
    """Runs the user's code on some rows, takes the time, and says where it failed.

    ``label`` is what messages call the code, ``noun`` what it should give back; ``chosen`` is the argument that
    left columns out, if one did.
    """

    def __init__(self, label: str, noun: str, where: Where, meter: Meter, chosen: str = "") -> None:
        self._label = label
        self._noun = noun
        self._chosen = chosen
        self._where = where
        self._meter = meter
        self.row: int | None = None
        self.done = 0
        if meter.lead is None:
            meter.lead = self

    @contextmanager
    def over(self, rows: Rows, *, counted: bool = True) -> Iterator[None]:
        """Turn what the user's code raises into a ``StepError`` that names file, rows and step.

        Code that goes row by row keeps the number of the row at hand in ``row``, and
        counts in ``done`` itself what it does in several goes (``counted=False``).
        """
        start = time.perf_counter()
        self.row = None
        try:
            yield
        except ConversionError as error:
            raise BadReturn(
                f"{self._label} gave something that is not {self._noun}: {words(error)}. {self._place(rows)}"
            ) from error.__cause__
        except BadInput as error:
            said = words(error).rstrip(".")
            end = "" if said.endswith(("?", "!")) else "."
            raise BadInput(f"{self._label}: {said}{end} {self._place(rows)}") from error.__cause__
        except StepError:
            raise
        except BaseException as error:  # a function that calls sys.exit() ends no worker
            if is_interrupt(error):
                raise
            message = words(error)
            said = f"{type(error).__name__}: {message}" if message else type(error).__name__
            hint = self._hint(error, message, rows)
            raise StepError(f"{self._label} raised {said}{hint} {self._place(rows)}") from error
        finally:
            self._meter.seconds["steps"] += time.perf_counter() - start
            self.done += len(rows) if counted else 0
            self._meter.tell()

    def shrunk(self, before: int, now: int) -> None:
        """Tell that the code gets fewer rows at a time from now on."""
        self._meter.shrunk(self._label, before, now)

    def _place(self, rows: Rows) -> str:
        at = self.row
        return f"It was working on {self._where(rows if at is None else rows.cut(at, at + 1))}."

    def _hint(self, error: BaseException, message: str, rows: Rows) -> str:
        if isinstance(error, ValueError) and "read-only" in message:
            return ". Batches are read-only views of the input: copy an array before writing to it (`x = x.copy()`)."
        if (len(rows) == 1 or self.row is not None) and is_out_of_memory(error):
            end = "" if message.endswith((".", "!", "?")) else "."
            return (
                f"{end} That is for a single row: give it smaller inputs or a smaller dtype, let fewer workers share "
                "the memory (memory=, num_gpus=, concurrency=), or use a device with more."
            )
        names = rows.batch.schema.names
        key = _missing_key(error)
        if key is not None and key not in names:
            chosen = f" `{self._chosen}=` leaves all others out." if self._chosen else ""
            return (
                f". The columns that it gets are {', '.join(names) or 'none'}.{nearest(key, names)}{chosen}"
            )
        return "" if message.endswith((".", "!", "?")) else "."


def _missing_key(error: BaseException) -> str | None:
    if not isinstance(error, KeyError) or len(error.args) != 1 or not isinstance(error.args[0], str):
        return None
    key = error.args[0]
    if key.startswith('Field "') and key.endswith("does not exist in schema"):  # a pyarrow Table
        return key.split('"')[1]
    return key


def stretch(start: str, end: str) -> str:
    """Say from where to where, in the words of ``Source.locate``.

    >>> stretch("a.csv, row 3", "a.csv, row 9")
    'a.csv, rows 3 to 9'
    """
    if start == end:
        return start
    place, _, first = start.rpartition(" ")
    same, _, last = end.rpartition(" ")
    if place == same and first.isdigit() and last.isdigit():
        return f"{place}s {first} to {last}"
    return f"the rows from {start} to {end}"
