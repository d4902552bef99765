"""`millrace predict` and `millrace run`: a model over files, or a job that a script describes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import millrace.launch as launch
from millrace.cli import invocation, outcome
from millrace.cli.answer import Answer
from millrace.cli.ends import code_of_interrupt
from millrace.cli.exits import FAILED, Stopped, UsageMistake, code_of
from millrace.cli.flags import Flags
from millrace.cli.prediction import Prediction
from millrace.cli.scripts import Script, script_at
from millrace.cli.writes import Output
from millrace.core.paths import here
from millrace.errors import MillraceError

if TYPE_CHECKING:
    from millrace.launch import Launch
    from millrace.result import Result

PREDICT_EXAMPLES = """\
  millrace predict fare.onnx trips/ -o fares/ --inputs km,hour --output fare
  millrace predict fares:Fare 'trips/*.csv' -o fares/ --key id --workers 4
  millrace predict net.pt2 photos/ -o labels/ --read size=224,224 --num-gpus 1
  millrace predict fares:Fare trips/ -o fares/ --on-error reject --max-errors 0.001
  millrace predict fares:Fare trips/ -o fares/ --metric 'error=MAE(label=paid, prediction=fare)'
"""

RUN_EXAMPLES = """\
  millrace run job.py -o fares/
  millrace run job.py -o fares/ --workers 4 --on-error reject
  millrace run job.py -- --day 2026-11-21
"""

Out = Annotated[
    Path,
    typer.Option("--out", "-o", metavar="OUT", help="The folder that is written.", show_default=False),
]
MaybeOut = Annotated[
    Path | None,
    typer.Option(
        "--out",
        "-o",
        metavar="OUT",
        help="The folder that the script's dataset is written to.",
        show_default=False,
    ),
]


def predict(what: Prediction, *, out: Out, output: Output, flags: Flags) -> Answer:
    """Run a model over files: every row gets the model's result, and lands in OUT.

    Killed at any moment and given again, the command goes on where it stopped: no row is lost, none is done twice.
    """
    with _launched() as started:

        def work() -> None:
            invocation.check_apart(Path(what.model), out)
            data = what.dataset().with_options(**flags.options())
            output.carried_out(data, out)

        return _told("predict", work, started, out, output)


def run(
    script: Annotated[Path, typer.Argument(metavar="JOB.PY", help="The script.", show_default=False)],
    args: Annotated[
        list[str] | None, typer.Argument(metavar="[-- ARGS]", help="What the script finds in sys.argv.")
    ] = None,
    *,
    out: MaybeOut = None,
    output: Output,
    flags: Flags,
) -> Answer:
    """Carry out a script that describes a job: its dataset is written to OUT, or its main() is called.

    The script runs as Python would run it. If it sets a variable `dataset` and has no main, that is written to OUT;
    else main() is called, unless the script has an `if __name__ == "__main__":` that does it. Options given here are
    defaults: what the script says itself, by with_options, counts more.
    """
    with _launched() as started:

        def work() -> None:
            job = script_at(script)
            invocation.check_apart(script, out)
            flags.into_environment()
            for name, value in output.modes().items():
                os.environ[f"MILLRACE_{name.upper()}"] = value
            _carry_out(job, args or [], out, output)

        return _told("run", work, started, out, output)


def _carry_out(job: Script, args: list[str], out: Path | None, output: Output) -> None:
    """Run a script and what it describes."""
    from millrace.dataset import Dataset

    found = job.carry_out(args, guard=True)
    data, main = found.get("dataset"), found.get("main")
    if callable(main) and not job.guarded and not isinstance(main, type):
        said = _called(main)
        if isinstance(said, Dataset):
            data = said
        elif isinstance(said, int) and not isinstance(said, bool) and said:
            raise SystemExit(said)
        else:
            data = None
    elif job.guarded and out is None:
        data = None
    if isinstance(data, Dataset):
        if out is None:
            raise UsageMistake(f"{job.path} describes a dataset; say where it goes: -o OUT.", "millrace run")
        output.carried_out(data, out)
    elif out is not None:
        has = "a `dataset` that is none of Millrace's" if data is not None else "no `dataset`"
        raise UsageMistake(f"-o {out}: {job.path} has {has} that could be written there.", "millrace run")


def _called(main: Callable[[], Any]) -> Any:
    from millrace.cli.exits import ScriptFailed

    try:
        return main()
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise ScriptFailed from error


@contextmanager
def _launched() -> Iterator[Launch]:
    """Have the command line kept with what is written."""
    try:
        yield launch.begin(invocation.present(), here())
    finally:
        launch.end()


def _told(
    command: str, work: Callable[[], None], started: Launch, out: Path | None, output: Output
) -> Answer:
    """Carry out what was asked for; answer, and leave the stats, however it ends."""
    code = 0
    output.check_stats(out)
    try:
        work()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 0 if error.code is None else FAILED
        if isinstance(error.code, str) or code:
            data = {"command": command, **outcome.of_failure(error, code or FAILED, out, started.opened)}
            output.leave_stats(data)
            raise Stopped(data) from error
    except (Exception, KeyboardInterrupt) as error:
        code = FAILED
        if isinstance(error, MillraceError):
            code = code_of(error)
        elif isinstance(error, KeyboardInterrupt):
            code = code_of_interrupt(error)
        data = {"command": command, **outcome.of_failure(error, code, out, started.opened)}
        output.leave_stats(data)
        raise Stopped(data) from error
    answer = _answer(command, started.results)
    output.leave_stats(answer.data)
    return answer


def _answer(command: str, results: list[Result]) -> Answer:
    if len(results) == 1:
        return Answer(outcome.code_for(*results), {"command": command, **outcome.of_result(results[0])})
    code = outcome.code_for(*results)
    runs = [outcome.of_result(result) for result in results]
    status = "done with rejects" if code else "done"
    return Answer(code, {"command": command, "status": status, "exit_code": code, "outputs": runs})
