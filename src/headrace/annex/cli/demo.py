"""`headrace demo`: a small data set, a model that is trained on the spot, and a run of it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.annex.cli.answer import DONE, REJECTS, Answer, UsageMistake, answer_of, in_flags, wants_json
from headrace.annex.cli.texts import argument, flag, in_shell
from headrace.core.terminal import say, size_of
from headrace.session import invocation

if TYPE_CHECKING:
    import pyarrow as pa

DEMO_EXAMPLES = """\
  headrace demo
  headrace demo my-demo/ --rows 10000000     long enough to kill it, and to give the command again
"""

_FILES = 4
_BROKEN = 90  # rows, of a million
_HIDDEN = 32
_COMMAND = [
    *("predict", "fare:Fare", "trips/", "-o", "fares/", "--inputs", "km,hour", "--output", "fare"),
    *("--on-error", "reject", "--metric", "error=MAE(label=paid, prediction=fare)"),
]

_MODEL = '''\
"""A model of your own is a class that works on one batch: made once in each worker, then called."""

from pathlib import Path

import numpy as np


class Fare:
    """What a taxi ride costs, from its length and the hour: a small network in numpy."""

    def __init__(self):
        self.weights = dict(np.load(Path(__file__).with_name("fare.npz")))

    def __call__(self, batch):  # arrays of the columns that --inputs names
        if (batch["km"] < 0).any():
            raise ValueError("a ride of less than no length")
        x = np.stack([batch["km"] / 10, np.sin(batch["hour"] / 24 * 6.283), np.cos(batch["hour"] / 24 * 6.283)], 1)
        return np.tanh(x @ self.weights["hidden"] + self.weights["bias"]) @ self.weights["out"]
'''


def demo(
    context: typer.Context,
    folder: Annotated[Path, argument("FOLDER", "Where it is made.")] = Path("headrace-demo"),
    *,
    rows: Annotated[
        int, flag("--rows N", "Rows of the data set. Default: 1,000,000.", least=100)
    ] = 1_000_000,
) -> Answer:
    """Make a small data set and a model in FOLDER, and run the model over the data.

    Needs nothing but Headrace itself. Some of the rows are broken, and set aside with their reason. Given again, it
    shows what is done twice: nothing.
    """
    if folder.exists() and (not folder.is_dir() or (any(folder.iterdir()) and not _is_ours(folder))):
        raise UsageMistake(f"{folder} holds something else already: name a new folder, headrace demo FOLDER.")
    if not _is_ours(folder):
        _make(folder, rows)
        _note(
            f"Made {folder}/trips: {rows:,} taxi rides in {_FILES} Parquet files.\nMade {folder}/fare.py: a model.\n"
        )
    argv = list(_COMMAND)
    command = f"$ headrace {in_shell(argv)}"
    if len(command) > size_of(sys.stderr)[0]:
        command = command.replace(" --", " \\\n    --")  # as a shell takes it
    _note(f"$ cd {in_shell([str(folder)])}\n{command}")
    before = os.getcwd()
    os.chdir(folder)
    try:
        with invocation.running([*argv, *(["--json"] if wants_json() else [])], words=in_flags):
            answer = answer_of(context.find_root().command, argv)
        shown = _first_rows(Path("fares"))
    finally:
        os.chdir(before)
    code = DONE if answer.code == REJECTS else answer.code  # the broken rows are part of it
    data = {**answer.data, "command": "demo", "exit_code": code}
    return Answer(code, data, f"{shown}\n\n{_next(folder)}")


def _is_ours(folder: Path) -> bool:
    return (folder / "fare.npz").exists() and (folder / "trips").is_dir()


def _note(text: str) -> None:
    say(text, sys.stderr)


def _next(folder: Path) -> str:
    out = in_shell([str(folder / "fares")])
    return (
        "Go on with\n"
        f"  headrace status {out}      what the run did\n"
        f"  headrace verify {out}      is all as it was written?\n"
        f"  headrace inspect {out}     what is there?\n"
        "or give the same command again: finished work is recognised."
    )


def _first_rows(out: Path) -> str:
    """Return the first rows of the output as a small table."""
    import pyarrow.parquet as pq

    from headrace.core.tables import rows_table

    part = min(out.glob("part-*"))
    table = next(pq.ParquetFile(part).iter_batches(batch_size=3, use_threads=False))
    return rows_table(table.to_pylist(), [table.schema]).text(size_of(sys.stdout)[0])


# ---------------------------------------------------------------- data and model


def _make(folder: Path, rows: int) -> None:
    """Write the data set and the model."""
    import numpy as np
    import pyarrow.parquet as pq

    rng = np.random.default_rng(7)
    trips = _trips(rng, rows)
    (folder / "trips").mkdir(parents=True, exist_ok=True)
    size = -(-rows // _FILES)
    for number in range(_FILES):
        pq.write_table(trips.slice(number * size, size), folder / "trips" / f"trips-{number}.parquet")
    (folder / "fare.py").write_text(_MODEL, encoding="utf-8")
    hidden, bias, out = _trained(rng, trips.slice(0, 20_000))
    np.savez(folder / "fare.npz", hidden=hidden, bias=bias, out=out)


def _trips(rng: Any, rows: int) -> pa.Table:
    import numpy as np
    import pyarrow as pa

    km, hour = rng.gamma(2.0, 3.0, rows), rng.integers(0, 24, rows)
    paid = 3.5 + 1.8 * km + np.where((hour < 6) | (hour > 20), 2.0, 0.0) + rng.normal(0, 0.8, rows)
    broken = rng.choice(rows, max(1, rows * _BROKEN // 1_000_000), replace=False)
    km[broken] = -1.0
    return pa.table({"id": np.arange(rows), "km": km, "hour": hour, "paid": paid.round(2)})


def _trained(rng: Any, trips: pa.Table) -> tuple[Any, Any, Any]:
    """Return the weights: the hidden layer is random, the last one fits the fares best."""
    import numpy as np

    km, hour = (trips[name].to_numpy() for name in ("km", "hour"))
    x = np.stack([km / 10, np.sin(hour / 24 * 6.283), np.cos(hour / 24 * 6.283)], 1)
    hidden, bias = rng.normal(0, 1.0, (3, _HIDDEN)), rng.normal(0, 1.0, _HIDDEN)
    whole = km >= 0
    out, *_ = np.linalg.lstsq(np.tanh(x @ hidden + bias)[whole], trips["paid"].to_numpy()[whole], rcond=None)
    return hidden, bias, out
