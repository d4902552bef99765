"""A log of one's own: the events of runs as JSON lines in a file."""

from __future__ import annotations

import os
from pathlib import Path

from headrace.core.arguments import known_arguments
from headrace.core.events import Event
from headrace.errors import ArgumentError
from headrace.observers.record import Record
from headrace.observers.run_state import RunState


class Log:
    """Appends the events of a run as JSON lines to a file, for many runs if you like.

    Each driver's first line has the run's name, ``run``. The lines are those of ``OUT/_headrace/<run>/events.jsonl``,
    which every run has; docs/report.md lists them. They are written twice a second and never synced. A file that
    cannot be written is left out, with a warning; the run goes on. A pipe is written to while it has a reader.

    Parameters
    ----------
    path
        The file; what is in it stays.

    Raises
    ------
    ArgumentError
        It is no path.

    Examples
    --------
    >>> import pathlib, tempfile, headrace as hr
    >>> folder = tempfile.mkdtemp()
    >>> data = hr.range(3).with_options(observers=[hr.observers.Log(f"{folder}/runs.jsonl")], engine="inline")
    >>> data.with_options(progress=False).write_csv(f"{folder}/out").rows
    3
    >>> pathlib.Path(folder, "runs.jsonl").read_text()[:50]  # doctest: +ELLIPSIS
    '{"at":...,"event":"described",...
    """

    @known_arguments
    def __init__(self, path: str | os.PathLike[str]) -> None:
        if not (isinstance(path, (str, os.PathLike)) and os.fspath(path)):
            raise ArgumentError(f"Log({path!r}): it takes the path of a file.")
        self._path = Path(path)
        self._record: Record | None = None

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    def attach(self, state: RunState) -> None:
        """Begin with another run, whose times and samples are read from ``state``."""
        self.close()
        self._record = Record(self._path, ours=False)
        self._record.attach(state)

    def on_event(self, event: Event) -> None:
        """Append an event; it is in the file half a second later."""
        if self._record is not None:
            self._record.on_event(event)

    def tick(self) -> None:
        """Write the lines that wait, twice a second."""
        if self._record is not None:
            self._record.tick()

    def close(self) -> None:
        """Write the lines that wait, and close the file."""
        if self._record is not None:
            self._record.close()
