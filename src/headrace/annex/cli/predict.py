"""`headrace predict` and `headrace run`: a model over files, or a job that a script describes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.annex.cli import outcome
from headrace.annex.cli.answer import FAILED, Answer, Stopped, UsageMistake, code_of, code_of_interrupt
from headrace.annex.cli.failures import complain
from headrace.annex.cli.flags import Flags
from headrace.annex.cli.prediction import Prediction
from headrace.annex.cli.scripts import Script, check_outside_output, script_at
from headrace.annex.cli.writes import Output
from headrace.errors import HeadraceError
from headrace.session import invocation

if TYPE_CHECKING:
    from headrace.result import Result

PREDICT_EXAMPLES = """\
  headrace predict fare.onnx trips/ -o fares/ --inputs km,hour --output fare
  headrace predict fares:Fare 'trips/*.csv' -o fares/ --key id --workers 4
  headrace predict net.pt2 photos/ -o labels/ --read size=224,224 --num-gpus 1
  headrace predict fares:Fare trips/ -o fares/ --on-error reject --max-errors 0.001
  headrace predict fares:Fare trips/ -o fares/ --metric 'error=MAE(label=paid, prediction=fare)'
"""

RUN_EXAMPLES = """\
  headrace run job.py -o fares/
  headrace run job.py -o fares/ --workers 4 --on-error reject
  headrace run job.py -- --day 2026-11-21
"""

Out = Annotated[
    Path,
    typer.Option("--out", "-o", metavar="OUT", help="The folder or address to write to.", show_default=False),
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

    def work() -> None:
        check_outside_output(Path(what.model), out)
        data = what.dataset().with_options(**flags.options())
        output.write_dataset(data, out)

    return answered("predict", work, out, output)


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
    defaults: what the script sets itself, by with_options, goes before.
    """

    def work() -> None:
        job = script_at(script)
        if out is not None and not job.names("dataset") and not job.names("main"):
            raise UsageMistake(
                f"-o {out}: {script} sets no variable `dataset` that could be written there. The script was not run.",
                "headrace run",
            )
        check_outside_output(script, out)
        flags.into_environment()
        for name, value in output.modes().items():
            os.environ[f"HEADRACE_{name.upper()}"] = ",".join(value) if name == "key" else str(value)
        _carry_out(job, args or [], out, output)

    return answered("run", work, out, output)


def _carry_out(job: Script, args: list[str], out: Path | None, output: Output) -> None:
    """Run a script and what it describes."""
    from headrace.dataset.dataset import Dataset

    found = job.carry_out(args, guard=True)
    data, main = found.get("dataset"), found.get("main")
    if callable(main) and not job.guarded and not isinstance(main, type):
        returned = _called(main)
        if isinstance(returned, Dataset):
            data = returned
        elif isinstance(returned, int) and not isinstance(returned, bool) and returned:
            raise SystemExit(returned)
        else:
            data = None
    elif job.guarded and out is None:
        data = None
    if isinstance(data, Dataset):
        if out is None:
            raise UsageMistake(
                f"{job.path} describes a dataset; give the folder for it: -o OUT.", "headrace run"
            )
        output.write_dataset(data, out)
    elif out is not None:
        has = "a `dataset` that is not one of Headrace" if data is not None else "no `dataset`"
        reason = f"-o {out}: {job.path} has {has} that could be written there."
        present = invocation.current()
        if present is not None and present.opened is not None:
            complain(f"{reason} The script has written an output itself: leave -o out.")
            raise SystemExit(FAILED)
        raise UsageMistake(reason, "headrace run")


def _called(main: Callable[[], Any]) -> Any:
    from headrace.annex.cli.answer import ScriptFailed

    try:
        return main()
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise ScriptFailed from error


def answered(command: str, work: Callable[[], object], out: Path | None, output: Output) -> Answer:
    """Do the work of a command; answer, and write the stats, however it ends."""
    present = invocation.current()
    assert present is not None  # the program carries out one command line
    code = 0
    output.check_stats(out)
    try:
        work()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 0 if error.code is None else FAILED
        if isinstance(error.code, str) or code:
            data = {"command": command, **outcome.of_failure(error, code or FAILED, out, present.opened)}
            output.leave_stats(data)
            raise Stopped(data) from error
    except (Exception, KeyboardInterrupt) as error:
        code = FAILED
        if isinstance(error, HeadraceError):
            code = code_of(error, begun=present.opened is not None)
        elif isinstance(error, KeyboardInterrupt):
            code = code_of_interrupt(error)
        data = {"command": command, **outcome.of_failure(error, code, out, present.opened)}
        output.leave_stats(data)
        raise Stopped(data) from error
    answer = _answer(command, present.results)
    output.leave_stats(answer.data)
    return answer


def _answer(command: str, results: list[Result]) -> Answer:
    if len(results) == 1:
        return Answer(outcome.code_for(*results), {"command": command, **outcome.of_result(results[0])})
    code = outcome.code_for(*results)
    runs = [outcome.of_result(result) for result in results]
    status = "done with rejects" if code else "done"
    return Answer(code, {"command": command, "status": status, "exit_code": code, "outputs": runs})
