"""`headrace predict`, `run` and `sql`: a model over files, the job of a script, a query; and how it ended."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.annex.cli.answer import (
    DONE,
    FAILED,
    REJECTS,
    UNPUBLISHED,
    Answer,
    Stopped,
    UsageMistake,
    code_of,
    code_of_interrupt,
    complain,
)
from headrace.annex.cli.flags import Flags, Output
from headrace.annex.cli.prediction import Prediction
from headrace.annex.cli.scripts import Script, check_outside_output, script_at
from headrace.annex.cli.texts import argument, flag, output_of
from headrace.core.terminal import size_of
from headrace.errors import HeadraceError
from headrace.readers import by_name
from headrace.session import invocation
from headrace.version import __version__

if TYPE_CHECKING:
    from headrace.core.work import Ledger
    from headrace.dataset.dataset import Dataset
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

Target = Annotated[Path, flag("--out -o OUT", "The folder or address to write to.")]
MaybeTarget = Annotated[
    Path | None, flag("--out -o OUT", "The folder that the script's dataset is written to.")
]


def predict(what: Prediction, *, out: Target, output: Output, flags: Flags) -> Answer:
    """Run a model over files: every row gets the model's result, and lands in OUT.

    Killed at any moment and given again, the command goes on where it stopped: no row is lost, none is done twice.
    """

    def work() -> None:
        check_outside_output(Path(what.model), out)
        data = what.dataset().with_options(**flags.options())
        output.write_dataset(data, out)

    return answered("predict", work, out, output)


def run(
    script: Annotated[Path, argument("JOB.PY", "The script.")],
    args: Annotated[list[str] | None, argument("[-- ARGS]", "What the script finds in sys.argv.")] = None,
    *,
    out: MaybeTarget = None,
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


SQL_EXAMPLES = """\
  headrace sql 'SELECT * FROM rides JOIN zones USING (zone)' --rides rides/ --zones zones.csv -o joined/
  headrace sql 'SELECT zone, avg(fare) FROM fares GROUP BY zone' --fares fares/
"""
SQL_NAMES = {"allow_extra_args": True, "ignore_unknown_options": True}


def sql(
    context: typer.Context,
    query: Annotated[str, argument("QUERY", "One SELECT.")],
    *,
    out: Annotated[Path | None, flag("--out -o OUT", "The folder or address to write to.")] = None,
    rows: Annotated[int, flag("--rows N", "Without OUT: show N rows.", least=1)] = 20,
    query_engine: Annotated[
        str, flag("--query-engine NAME", "duckdb or polars. Default: duckdb.")
    ] = "duckdb",
    output: Output,
    flags: Flags,
) -> Answer:
    """Answer a query over files, and write its rows to OUT, or show the first of them.

    Each table that the query names is an option of its name: --rides 'rides/*.parquet'. It may be given more than
    once, for several paths. DuckDB answers the query; its result is written as every output is.
    """

    def data() -> Dataset:
        from headrace.annex.queries.source import sql as queried

        given = {
            name: by_name.dataset_of(paths, by_name.format_of(paths), {})
            for name, paths in _tables(context.args).items()
        }
        return queried(query, query_engine=query_engine, **given).with_options(**flags.options())

    if out is None:
        from headrace.core.tables import rows_table

        sample, schemas = data()._first(rows)
        text = rows_table(sample, schemas).text(size_of(sys.stdout)[0])
        return Answer(DONE, {"sample": sample}, text)

    return answered("sql", lambda: output.write_dataset(data(), out), out, output)


def _tables(words: list[str]) -> dict[str, list[str]]:
    """Return the paths of each table, from ``--name PATH`` and ``--name=PATH``."""
    found: dict[str, list[str]] = {}
    left = iter(words)
    for word in left:
        name, sign, path = word.removeprefix("--").partition("=")
        name = name.replace("-", "_")
        if not word.startswith("--") or not name.isidentifier():
            raise UsageMistake(f"{word}: after the query come tables, such as --rides PATH.", "headrace sql")
        given = path if sign else next(left, None)
        if not given:
            raise UsageMistake(f"--{name}: it takes a path, as a table that the query names.", "headrace sql")
        found.setdefault(name, []).append(given)
    return found


# ----------------------------------------------------------------
# How a run ended, in the plain values of ``--json`` and ``--stats``.


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
            data = {"command": command, **of_failure(error, code or FAILED, out, present.opened)}
            output.leave_stats(data)
            raise Stopped(data) from error
    except (Exception, KeyboardInterrupt) as error:
        code = FAILED
        if isinstance(error, HeadraceError):
            code = code_of(error, begun=present.opened is not None)
        elif isinstance(error, KeyboardInterrupt):
            code = code_of_interrupt(error)
        data = {"command": command, **of_failure(error, code, out, present.opened)}
        output.leave_stats(data)
        raise Stopped(data) from error
    answer = _answer(command, present.results)
    output.leave_stats(answer.data)
    return answer


def _answer(command: str, results: list[Result]) -> Answer:
    if len(results) == 1:
        return Answer(code_for(*results), {"command": command, **of_result(results[0])})
    code = code_for(*results)
    runs = [of_result(result) for result in results]
    status = "done with rejects" if code else "done"
    return Answer(code, {"command": command, "status": status, "exit_code": code, "outputs": runs})


def code_for(*results: Result) -> int:
    """Return the exit code of runs that were carried out."""
    return REJECTS if any(result.rejected for result in results) else DONE


def of_result(result: Result) -> dict[str, Any]:
    """Return the fields of a result. ``completion_stats`` has the words of managed batch services."""
    from headrace.core.work import REJECTED
    from headrace.result import Metrics
    from headrace.session.read import reported

    ledger = result.ledger
    metrics = result.metrics if isinstance(result.metrics, Metrics) else Metrics(result.metrics, notes={})
    return {
        "status": "done with rejects" if result.rejected else "done",
        "exit_code": code_for(result),
        "output": str(result.path),
        "run": result.run,
        **_counts(ledger, incomplete=0),
        "files": result.files,
        "bytes": result.bytes,
        "seconds": round(result.seconds, 3),
        "resumed": result.resumed,
        "rejected_folder": os.path.join(result.path, REJECTED) if result.rejected else None,
        "left_out": list(result.left_out),
        "report": str(result.report),
        "metrics": {},
        **reported(metrics),
        "headrace": __version__,
    }


def of_failure(
    error: BaseException, code: int, output: Path | None, opened: tuple[Path | str, str] | None
) -> dict[str, Any]:
    """Return what is known when a run did not end well: what of it is in the output for good.

    ``opened`` is the run that the command worked on; what others have left in the output is none of its doing.
    """
    committed = _committed(opened)
    status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
    return {
        "status": "unpublished" if code == UNPUBLISHED else status,
        "exit_code": code,
        "output": output_of(output) if output is not None else None,
        **committed,
        "headrace": __version__,
    }


def _committed(opened: tuple[Path | str, str] | None) -> dict[str, Any]:
    from headrace.output.places.place import looked_at
    from headrace.output.runs import load

    if opened is None:
        return {}
    try:
        with looked_at(opened[0]) as output:
            run = load(output.root, opened[1])
        state = run.state
    except (HeadraceError, OSError):
        return {}
    ledger = state.ledger
    planned = sum(shard.rows for shard in run.shards) if run.counted else None
    incomplete = None if planned is None else max(0, planned - ledger.read)
    return {"run": run.name, **_counts(ledger, incomplete=incomplete)}


def _counts(ledger: Ledger, *, incomplete: int | None) -> dict[str, Any]:
    return {
        "rows": {name: getattr(ledger, name) for name in ("read", "written", "rejected", "nulled")},
        "completion_stats": {
            "successful_count": ledger.written - ledger.nulled,
            "failed_count": ledger.rejected + ledger.nulled,
            "incomplete_count": incomplete,
        },
    }
