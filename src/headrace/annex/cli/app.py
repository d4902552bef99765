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

from headrace.annex.cli import before, demo, outputs, predict, resume, runs
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
    close,
    code_of,
    code_of_interrupt,
    complain,
    described,
    hint,
    in_flags,
    show,
    show_script,
    wants_debug,
)
from headrace.annex.cli.flags import flat
from headrace.annex.cli.help import COMMANDS, OURS, HelpCommand, HelpGroup
from headrace.core.process import hold_standard_streams
from headrace.core.terminal import say
from headrace.errors import HeadraceError, nearest
from headrace.session import invocation
from headrace.session.invocation import as_interrupts

_EXAMPLES = """\
A first run
  headrace demo                                  a small job, made and run
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


def _add(panel: str, functions: Sequence[Callable[..., Answer | int]]) -> None:
    """Make functions of this package commands. The docstring of each is its help, and its module has its examples."""
    for function in functions:
        name = function.__name__
        module = sys.modules[function.__module__]
        command = app.command(
            cls=HelpCommand,
            rich_help_panel=panel,
            epilog="Examples\n" + getattr(module, f"{name.upper()}_EXAMPLES").rstrip(),
            no_args_is_help=name not in _BARE,
            context_settings=predict.SQL_NAMES if name == "sql" else None,
        )
        OURS[name.replace("_", "-")] = function
        command(flat(function))


_BARE = ("demo",)
"""Commands that do something without any argument; others show their help."""

_add(
    "Run",
    [demo.demo, predict.predict, predict.run, predict.sql, resume.resume, resume.join],
)
_add("Before a run", [before.inspect, before.explain, before.estimate])
_add("During a run", [runs.watch, runs.status])
_add("After a run", [runs.runs, runs.report, outputs.verify, outputs.rejected, resume.retry_rejected])
_add("After a run", [outputs.publish, outputs.discard, outputs.compare, outputs.clean])


def carry_out(argv: Sequence[str]) -> int:
    """Carry out a command line; whatever happens, return an exit code."""
    hold_standard_streams()
    name = next((word for word in argv if not word.startswith("-")), "")
    of_package = bool(name) and name not in OURS and name in COMMANDS.brought
    end = argv.index(name) + 1 if of_package else argv.index("--") if "--" in argv else len(argv)
    options = argv[:end]  # the words behind are for a script, or for a package's command
    writer = OutputWriter(as_json="--json" in options)
    debug = wants_debug("--debug" in options)
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
            complain(
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
            complain(error.code)
        return Answer(code, {"status": "done" if code == DONE else "failed", "exit_code": code})
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        code = code_of_interrupt(error)
        return Answer(code, {"status": "interrupted", "exit_code": code})
    if isinstance(error, _CLICK):
        if type(error).__name__ == "NoArgsIsHelpError":
            typer.echo(error.format_message())
        else:
            text, command = _usage(error)
            complain(text)
            hint(command)
        code = USAGE
    elif isinstance(error, ScriptFailed):
        assert error.__cause__ is not None
        error = error.__cause__
        show_script(error, debug=debug)
        code = FAILED
    elif isinstance(error, HeadraceError):
        show(error, debug=debug)
        if isinstance(error, UsageMistake) and error.command:
            hint(error.command)
        code = code_of(error)
    else:
        show(error, debug=True)
        complain("This is a bug in Headrace: please report it with the lines above.")
        code = FAILED
    status = "unpublished" if code == UNPUBLISHED else "failed"
    return Answer(code, {"status": status, "exit_code": code, "error": described(error)})


_CLICK: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")


def _usage(error: Any) -> tuple[str, str]:
    """Return what is wrong with a command line, and the command whose help explains it."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "headrace"
    name = getattr(error, "option_name", None)
    if name is not None and context is not None and type(error).__name__ == "NoSuchOption":
        known = [opt for each in context.command.params for opt in each.opts if opt.startswith("--")]
        return f"There is no option {name}.{nearest(name, [*known, '--help'])}", command
    words = " ".join(error.format_message().split())
    if context is not None and type(error).__name__ == "MissingParameter":
        example = (
            next(filter(None, (context.command.epilog or "").splitlines()[1:]), "").split("   ")[0].strip()
        )
        words += f" For example: {example}" if example else ""
    return words, command


@contextlib.contextmanager
def _warnings_as_lines() -> Any:
    """Show warnings as lines of ours: there is no line of the user's that they could point at."""
    with warnings.catch_warnings():
        shown = warnings.showwarning

        def show(
            message: Any, category: Any, filename: str, lineno: int, file: Any = None, line: Any = None
        ) -> None:
            if category is UserWarning and file is None:
                complain(str(message))
            else:
                shown(message, category, filename, lineno, file, line)

        warnings.showwarning = show
        yield


def _closed_pipe() -> int:
    """End without a message, also when Python flushes its streams: nobody reads the output any more."""
    close(sys.stdout)
    return CLOSED_PIPE
