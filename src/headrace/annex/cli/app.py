"""The program: its commands, and how each of them ends."""

from __future__ import annotations

import contextlib
import functools
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated, Any

import typer

from headrace.annex.cli import answer as answers
from headrace.annex.cli import (
    clean,
    compare,
    demo,
    estimate,
    failures,
    look,
    predict,
    publish,
    rejected,
    report,
    resume,
    run_batch,
    runs,
    sql,
    status,
    verify,
    watch,
)
from headrace.annex.cli.answer import (
    CLOSED_PIPE,
    DONE,
    FAILED,
    UNPUBLISHED,
    USAGE,
    Answer,
    OutputWriter,
    ScriptFailed,
    Stopped,
    UsageMistake,
    answer_of,
    as_interrupts,
    code_of,
    code_of_interrupt,
)
from headrace.annex.cli.flags import flat
from headrace.annex.cli.help import COMMANDS, OURS, HelpCommand, HelpGroup
from headrace.annex.cli.texts import in_flags
from headrace.core.process import hold_standard_streams
from headrace.core.terminal import say
from headrace.errors import HeadraceError, nearest
from headrace.session import invocation

_EXAMPLES = """\
A first run
  headrace demo                                  a small data set, a model, and a run of it
  headrace inspect trips/                        what is there?
  headrace predict fare.onnx trips/ -o fares/    a fare for every trip
  headrace verify fares/                         is all as it was written?

Exit codes
  0    done
  1    failed
  2    the command cannot be carried out as it was given; nothing was done
  3    done, and some rows were set aside (--on-error reject)
  4    done, and not published, as something that --require asks for is not met
  130  interrupted; 143 by SIGTERM, 129 by SIGHUP
"""

app = typer.Typer(
    name="headrace",
    help="Offline batch inference: a dataset through a model, fast, and safe to kill.",
    no_args_is_help=True,
    cls=HelpGroup,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)


def _version(asked: bool) -> None:
    if asked:
        from headrace.version import __version__

        say(f"headrace {__version__}", sys.stdout)
        raise typer.Exit()


@app.callback(epilog=_EXAMPLES)
def _program(
    context: typer.Context,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show whole tracebacks of errors. Also: HEADRACE_DEBUG=1.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    context.obj = debug


def _add(
    panel: str | None,
    function: Callable[..., Answer | int],
    examples: str,
    group: typer.Typer = app,
    *,
    bare: bool = False,
    also: dict[str, Any] | None = None,
) -> None:
    """Make a function a command: its docstring is its help, which it shows unless it goes ``bare`` of arguments."""
    epilog = "Examples\n" + examples.rstrip()
    command = group.command(
        cls=HelpCommand, rich_help_panel=panel, epilog=epilog, no_args_is_help=not bare, context_settings=also
    )
    OURS[function.__name__.replace("_", "-")] = function
    command(flat(function))


_add("Run", demo.demo, demo.EXAMPLES, bare=True)
_add("Run", predict.predict, predict.PREDICT_EXAMPLES)
_add("Run", predict.run, predict.RUN_EXAMPLES)
_add("Run", sql.sql, sql.EXAMPLES, also=sql.NAMES)
_add("Run", resume.resume, resume.EXAMPLES)
_add("Run", resume.join, resume.JOIN_EXAMPLES)
_add("Run", run_batch.run_batch, run_batch.EXAMPLES)
_add("Before a run", look.inspect, look.INSPECT_EXAMPLES)
_add("Before a run", look.explain, look.EXPLAIN_EXAMPLES)
_add("Before a run", estimate.estimate, estimate.EXAMPLES)
_add("During a run", watch.watch, watch.EXAMPLES)
_add("During a run", status.status, status.EXAMPLES)
_add("After a run", runs.runs, runs.EXAMPLES)
_add("After a run", report.report, report.EXAMPLES)
_add("After a run", verify.verify, verify.EXAMPLES)
_add("After a run", rejected.rejected, rejected.EXAMPLES)
_add("After a run", resume.retry_rejected, resume.RETRY_EXAMPLES)
_add("After a run", publish.publish, publish.PUBLISH_EXAMPLES)
_add("After a run", publish.discard, publish.DISCARD_EXAMPLES)
_add("After a run", compare.compare, compare.EXAMPLES)
_add("After a run", clean.clean, clean.EXAMPLES)


def carry_out(argv: Sequence[str]) -> int:
    """Carry out a command line; whatever happens, return an exit code."""
    hold_standard_streams()
    name = next((word for word in argv if not word.startswith("-")), "")
    of_package = bool(name) and name not in OURS and name in COMMANDS.brought
    end = argv.index(name) + 1 if of_package else argv.index("--") if "--" in argv else len(argv)
    options = argv[:end]  # the words behind are for a script, or for a package's command
    writer = OutputWriter(as_json="--json" in options)
    debug = failures.wants_debug("--debug" in options)
    with writer.redirected(), _warnings_as_lines(), as_interrupts():
        try:
            answer = _of_package(name, list(argv[end:])) if of_package else _answered(list(argv), options)
        except BrokenPipeError:
            return _closed_pipe()
        except BaseException as error:
            answer = _failed(error, debug=debug)
            answer = replace(answer, data={"command": name if name in OURS else None, **answer.data})
        try:
            writer.write(answer)
        except BrokenPipeError:
            writer.close()
            return _closed_pipe()
        except OSError as error:
            writer.close()
            failures.complain(
                f"The result could not be printed: {error.strerror}. The command itself was carried out."
            )
            return answer.code or FAILED
    return answer.code


def _answered(argv: list[str], options: Sequence[str]) -> Answer:
    if "" in options:  # as a path it would be the present folder
        raise UsageMistake(
            'One of the arguments is empty. A shell makes an empty argument of "$NAME" if NAME is not set. Nothing '
            "was done."
        )
    with invocation.running([word for word in argv if word != "--debug"], words=in_flags):
        return answer_of(_command(), argv)


def _of_package(name: str, argv: list[str]) -> Answer:
    """Carry out a command that an installed package brings."""
    main = COMMANDS.get(name)
    assert main is not None
    try:
        code = main(argv)
    except (HeadraceError, SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise ScriptFailed from error
    return Answer(code if isinstance(code, int) else DONE)


@functools.cache
def _command() -> Any:
    return typer.main.get_command(app)


def _failed(error: BaseException, *, debug: bool) -> Answer:
    """Report what ended a command, and return the answer."""
    if isinstance(error, Stopped):
        assert error.__cause__ is not None
        answer = _failed(error.__cause__, debug=debug)
        code = error.data.get("exit_code", answer.code)
        return Answer(code, {**error.data, **answer.data, "exit_code": code})
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else DONE if error.code is None else FAILED
        if isinstance(error.code, str):
            failures.complain(error.code)
        return Answer(code, {"status": "done" if code == DONE else "failed", "exit_code": code})
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        code = code_of_interrupt(error)
        return Answer(code, {"status": "interrupted", "exit_code": code})
    if isinstance(error, _CLICK):
        if type(error).__name__ == "NoArgsIsHelpError":
            typer.echo(error.format_message())
        else:
            text, command = _usage(error)
            failures.complain(text)
            failures.hint(command)
        code = USAGE
    elif isinstance(error, ScriptFailed):
        assert error.__cause__ is not None
        error = error.__cause__
        failures.show_script(error, debug=debug)
        code = FAILED
    elif isinstance(error, HeadraceError):
        failures.show(error, debug=debug)
        if isinstance(error, UsageMistake) and error.command:
            failures.hint(error.command)
        code = code_of(error)
    else:
        failures.show(error, debug=True)
        failures.complain("This is a bug in Headrace: please report it with the lines above.")
        code = FAILED
    status = "unpublished" if code == UNPUBLISHED else "failed"
    return Answer(code, {"status": status, "exit_code": code, "error": failures.described(error)})


_CLICK: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")


def _usage(error: Any) -> tuple[str, str]:
    """Return what is wrong with a command line, and the command whose help explains it."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "headrace"
    name = getattr(error, "option_name", None)
    if name is not None and context is not None and type(error).__name__ == "NoSuchOption":
        known = [opt for each in context.command.params for opt in each.opts if opt.startswith("--")]
        return f"There is no option {name}.{nearest(name, [*known, '--help'])}", command
    return " ".join(error.format_message().split()), command


@contextlib.contextmanager
def _warnings_as_lines() -> Any:
    """Show warnings as lines of ours: there is no line of the user's that they could point at."""
    with warnings.catch_warnings():
        shown = warnings.showwarning

        def show(
            message: Any, category: Any, filename: str, lineno: int, file: Any = None, line: Any = None
        ) -> None:
            if category is UserWarning and file is None:
                failures.complain(str(message))
            else:
                shown(message, category, filename, lineno, file, line)

        warnings.showwarning = show
        yield


def _closed_pipe() -> int:
    """End without a message, also when Python flushes its streams: nobody reads the output any more."""
    answers.discard(sys.stdout)
    return CLOSED_PIPE
